"""The decisions of AdaptiveBatchSize, as pure steps."""

import math

import pytest

from tf_comptrain.callbacks._tuner import TunerLimits, TunerState, decide, fitting_batch, retreat

POLICY = TunerLimits(limit_bytes=1000, max_batch=512, min_batch=8, margin=0.0)
RESTING = 200


def run(state, loss, peak, policy=POLICY):
    return decide(state, policy, loss, peak, RESTING)


def test_the_batch_that_fits_is_in_proportion_to_the_need():
    assert fitting_batch(10, 100, 1000) == 100


def test_a_need_too_small_to_be_counted_is_no_obstacle():
    assert fitting_batch(10, 0, 1000) == 20


def test_reaches_the_limit_from_below_where_a_part_of_the_need_is_fixed():
    """200 bytes fixed and 2 a sample: room for 300."""
    state, batches = TunerState(16, ceiling=512), []
    for loss in range(20, 10, -1):
        state, _, _ = run(state, loss, RESTING + 200 + 2 * state.batch)
        batches.append(state.batch)
    # Above 220 the forecast, 800 b / (200 + 2 b), is less than a quarter more.
    assert batches == sorted(batches) and 220 - 8 <= batches[-1] <= 300


def test_a_size_that_passed_the_limit_is_not_tried_again():
    state, action, _ = run(TunerState(64, ceiling=512, last=9.0), 2.0, 1040)
    assert (state.batch, action, state.ceiling) == (56, "lower", 56)
    state, action, reason = run(state, 1.8, RESTING + 100)  # would fit 448
    assert (state.batch, action) == (56, "keep") and "given up" in reason


def test_goes_back_to_the_size_that_fitted():
    state, action, _ = run(TunerState(128, ceiling=512), 2.0, RESTING + 500)
    assert (state.batch, action, state.proven) == (200, "grow", 128)
    state, action, reason = retreat(state, POLICY, 2000, RESTING)  # in proportion 88 would fit
    assert (state.batch, action, state.proven) == (128, "lower", 128) and "over the limit" in reason
    state, action, _ = retreat(state, POLICY, RESTING + 1000, RESTING)  # that passes it too, for once
    assert (state.batch, action, state.proven) == (96, "lower", 0)


def test_between_the_size_that_fitted_and_the_one_that_did_not():
    state, _, _ = run(TunerState(64, ceiling=512), 2.0, RESTING + 400)
    assert state.batch == 128
    state, _, _ = retreat(state, POLICY, RESTING + 900, RESTING)
    assert (state.batch, state.ceiling) == (112, 120)


def test_holds_a_size_before_it_grows():
    policy, state, batches = POLICY._replace(hold=3), TunerState(16, ceiling=512), []
    for loss in range(20, 10, -1):
        state, _, reason = run(state, loss, 300, policy)
        batches.append(state.batch)
    assert batches == [16, 16, 32, 32, 32, 64, 64, 64, 128, 128]
    assert "epoch 1 of 3 at this size" in reason


def test_a_higher_peak_at_the_same_size_is_forgotten_slowly():
    state, rooms = TunerState(128, ceiling=512), []
    policy = POLICY._replace(hold=2)
    for loss, need in ((9.0, 700), (8.0, 500), (7.0, 500)):  # 500 alone: room for 204
        state, _, reason = run(state, loss, RESTING + need, policy)
        rooms.append(reason)
    assert state.batch == 128
    assert "room for 151 only" in rooms[1] and "room for 156 only" in rooms[2]


def test_a_loss_that_is_not_finite_is_called_that():
    state, action, reason = run(TunerState(64, ceiling=512, best=1.0, last=1.0), math.nan, 300)
    assert action == "tighten" and "not finite" in reason


def test_the_first_epoch_is_an_improvement():
    state, action, reason = run(TunerState(32, ceiling=512), 2.0, 300)
    assert (state.batch, action) == (64, "grow")
    assert "improves" in reason and "300 B of 1 kB" in reason


def test_grows_no_further_than_the_headroom_in_multiples_of_8():
    state, action, _ = run(TunerState(100, ceiling=512), 2.0, 200 + 600)  # 6 bytes a sample, room 800
    assert (state.batch, action) == (128, "grow")


def test_grows_no_further_than_max_batch():
    policy = POLICY._replace(max_batch=50)
    state, action, _ = run(TunerState(32, ceiling=50), 2.0, 210, policy)
    assert (state.batch, action) == (50, "grow")
    state, action, reason = run(state, 1.0, 215, policy)
    assert (state.batch, action) == (50, "keep")
    assert "max_batch" in reason


def test_a_gain_of_less_than_a_quarter_is_left():
    state, action, reason = run(TunerState(200, ceiling=512), 2.0, 200 + 650)
    assert (state.batch, action) == (200, "keep")
    assert "room for 246 only" in reason


def test_rising_loss_tightens_first_and_then_lowers_the_batch():
    state = TunerState(64, ceiling=512, best=1.0, last=1.0)
    seen = []
    for loss in (1.1, 1.2, 1.3):
        state, action, _ = run(state, loss, 300)
        seen.append((action, state.bound_scale, state.batch))
    assert seen == [("tighten", 0.5, 64), ("tighten", 0.25, 64), ("lower", 0.25, 32)]


def test_a_stall_counts_after_patience():
    state = TunerState(64, ceiling=512, best=1.0, last=1.0)
    state, action, _ = run(state, 1.0, 300)
    assert action == "keep"
    state, action, reason = run(state, 0.995, 300)  # better, but by less than 1%
    assert action == "tighten" and "stalls" in reason


def test_does_not_grow_back_to_where_the_loss_got_stuck():
    state = TunerState(64, ceiling=512, best=1.0, last=1.0, bound_scale=0.25)
    state, action, _ = run(state, 1.5, 300)
    assert (state.batch, action) == (32, "lower")
    state, action, reason = run(state, 0.5, 250)
    assert (state.batch, action) == (32, "keep")
    assert "given up" in reason


def test_a_loss_that_is_not_a_number_is_a_rising_one():
    state, action, _ = run(TunerState(64, ceiling=512, best=1.0, last=1.0), math.nan, 300)
    assert action == "tighten"
    assert (state.best, state.last) == (1.0, 1.0)
    assert run(TunerState(64, ceiling=512), math.nan, 300)[1] == "tighten"


def test_over_the_limit_the_batch_is_lowered_whatever_the_loss():
    state, action, reason = run(TunerState(100, ceiling=512), 0.1, 1200)
    assert (state.batch, action) == (80, "lower")
    assert "over the limit" in reason
    state, action, reason = run(TunerState(8, ceiling=512), 0.1, 1200)
    assert (state.batch, action) == (8, "keep") and "`min_batch`" in reason


@pytest.mark.parametrize("loss", [0.0, -3.0])
def test_losses_may_be_zero_or_negative(loss):
    state, _, _ = run(TunerState(32, ceiling=512), loss, 300)
    assert run(state, loss - 1.0, 300)[1] == "grow"
    assert run(state, loss + 1.0, 300)[1] == "tighten"
