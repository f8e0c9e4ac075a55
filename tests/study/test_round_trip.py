"""Tensors through every codec that takes part: what comes back, and what is said of it."""

import numpy as np
import pytest

from tf_comptrain.codecs import State
from tf_comptrain.study import grid
from tf_comptrain.study.decoding import next_state
from tf_comptrain.study.grid import CONTESTANTS, FIXED_RATE, LOSSLESS, Candidate
from tf_comptrain.study.outside import cosine
from tf_comptrain.study.round_trip import round_trip


def tensor(shape=(8, 16, 16, 32)):
    """A ReLU's output, smooth in its images."""
    rows, columns = np.mgrid[0 : shape[1], 0 : shape[2]]
    waves = np.sin(0.4 * rows + 0.3 * columns)[None, :, :, None]
    noise = np.random.default_rng(0).normal(0, 0.3, shape)
    return np.maximum(waves + noise, 0).astype(np.float32)


def settings():
    for name, contestant in CONTESTANTS.items():
        for mode in contestant.modes:
            yield Candidate(name, mode, {FIXED_RATE: 4.0, LOSSLESS: 0.0}.get(mode, 0.05))


@pytest.mark.parametrize("setting", list(settings()), ids=str)
def test_what_comes_back_is_as_far_off_as_is_said(setting):
    x = tensor()
    found = round_trip(setting, setting.made(), x, mask=True, value_bytes=x.nbytes)
    error = np.abs(found.values.astype(np.float64) - x)
    row = found.row
    assert found.values.shape == x.shape and row["max_error"] == error.max()
    assert row["ratio"] == pytest.approx(x.nbytes / row["held_bytes"]) and row["ratio"] > 1
    if setting.mode == LOSSLESS:
        assert (found.values == x).all() and row["violations"] == 0
    elif setting.mode == FIXED_RATE:
        assert row["violations"] is None and 4 < 32 / row["ratio"] < 7  # bits, a scale, a bit of the mask
    else:
        of_channels = np.sqrt(x.reshape(-1, x.shape[-1]).var(axis=0, dtype=np.float64).mean())
        unit = {"abs": 1.0, "sigma": of_channels, "range": np.ptp(x)}[setting.mode]
        assert row["bound_used"] == pytest.approx(0.05 * unit, rel=1e-5)
        if setting.mode != "sigma" or CONTESTANTS[setting.codec].package is not None:
            assert row["violations"] == np.sum(
                error > row["bound_used"]
            )  # else channels have their own bounds
        assert row["violations"] == 0 or not CONTESTANTS[setting.codec].is_bounded
    assert row["zeros_kept"] == np.mean(found.values[x == 0] == 0)
    assert abs(row["bias"]) < 0.3 and abs(row["autocorrelation"]) < 0.6


def test_errors_of_neighbours_that_are_alike_show():
    x = tensor()
    smooth = grid.Candidate("cosine", "sigma", 1.0)  # keeps low frequencies alone
    fine = grid.Candidate("plane", "sigma", 0.05)
    alike, apart = (
        round_trip(setting, setting.made(), x, False, x.nbytes).row["autocorrelation"]
        for setting in (smooth, fine)
    )
    assert apart < 0.1 < alike + 0.2 and alike != apart


@pytest.mark.parametrize("shape", [(5,), (3, 17), (2, 9, 5), (2, 9, 13, 3), (2, 3, 9, 8, 2), (1, 1, 1, 1)])
def test_cosine_transform_of_any_shape(shape):
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    codec = cosine()
    back = codec.decode(codec.encode(x, 0.01, 1), shape, 1)
    assert back.shape == shape
    np.testing.assert_allclose(back, x, atol=0.1)
    assert np.sqrt(np.mean((back - x) ** 2)) < 0.02


def test_states_follow_the_formula():
    x = np.array([0.0, 3.0, -3.0, 0.0], np.float32)
    first = next_state(x, State(), 0.1, "sigma")
    assert first.bound_used == pytest.approx(0.1 * x.std()) and first.nonzero_ratio == 0.5
    again = next_state(2 * x, first, 0.1, "sigma")
    assert again.bound_used == pytest.approx(0.1 * x.std())
    assert again.running_sigma == pytest.approx(1.1 * x.std())
    assert next_state(x, State(), 0.1, "range").bound_used == pytest.approx(0.6)
    assert next_state(x, State(bound_set=0.25), 0.1, "range").bound_used == 0.25


def test_own_codecs_do_as_the_states_say():
    """What a round trip takes for the bound is what the compress op uses."""
    x = tensor()
    setting = Candidate("plane", "sigma", 0.1)
    used = round_trip(setting, setting.made(), x, False, x.nbytes).row["bound_used"]
    state = setting.made().compress(x, np.zeros(len(State._fields), np.float32), 0.1, False)[2]
    assert used == pytest.approx(
        float(state[State._fields.index("bound_used")]), rel=0.05
    )  # that one of a sample
