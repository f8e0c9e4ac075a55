"""The trend of a loss over few epochs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_comptrain.callbacks._trend import are_worse, trend_of

LOSSES = st.lists(st.floats(-5, 5).map(lambda value: round(value, 2)), min_size=4, max_size=12)


@pytest.mark.parametrize(
    ("losses", "direction"),
    [
        ([4, 3, 2], "unknown"),
        ([4, 3, 2, 1], "falling"),
        ([1, 2, 3, 4], "rising"),
        ([2.0] * 12, "flat"),
        ([4, 1, 3, 2, 4, 2], "flat"),
        ([9, 8, 7, 60, 6, 5, 4], "falling"),  # one epoch far off
        ([2.000, 1.995, 1.990, 1.985, 1.980], "falling"),
    ],
)
def test_direction(losses, direction):
    assert trend_of(losses).direction == direction


def test_the_slope_is_that_of_most_pairs():
    assert trend_of([10, 9, 8, 70, 6, 5, 4]).slope == pytest.approx(-1.0)


@settings(max_examples=60, deadline=None)
@given(LOSSES, st.sampled_from([0.25, 1.0, 8.0]), st.integers(-100, 100))
def test_offset_and_scale_are_nothing_to_it(losses, scale, offset):
    moved = [scale * loss + offset for loss in losses]
    if len(set(moved)) == len(set(losses)):  # rounding makes no two the same
        assert trend_of(moved).direction == trend_of(losses).direction


@settings(max_examples=60, deadline=None)
@given(LOSSES)
def test_the_loss_upside_down_goes_the_other_way(losses):
    other = {"falling": "rising", "rising": "falling"}
    direction = trend_of(losses).direction
    assert trend_of([-loss for loss in losses]).direction == other.get(direction, direction)


def test_noise_alone_seldom_has_a_trend():
    random = np.random.default_rng(0)
    found = [trend_of(random.normal(size=8)).direction for _ in range(400)]
    assert found.count("flat") / len(found) > 0.86  # 0.9 wanted: 0.05 on either side


def test_worse_needs_four_epochs_on_either_side():
    assert are_worse([5, 6, 7, 8], [1, 2, 3, 4])
    assert not are_worse([5, 6, 7], [1, 2, 3, 4])
    assert not are_worse([5, 6, 7, 3.5], [1, 2, 3, 4])
    assert not are_worse([1, 2, 3, 4], [5, 6, 7, 8])
