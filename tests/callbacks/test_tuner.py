"""The decisions of AdaptiveBatchSize, as pure steps."""

import math

import pytest

from tf_comptrain.callbacks._tuner import TunerLimits, TunerState, decide, fitting_batch, retreat

LIMITS = TunerLimits(limit_bytes=1000, max_batch=512, min_batch=8, margin=0.0)
RESTING = 200


def run(state, loss, peak, limits=LIMITS, error=None):
    return decide(state, limits, loss, peak, RESTING, error)


def epochs(state, losses, peak=300, limits=LIMITS, error=None):
    """The state after several epochs, and what was done in each."""
    done = []
    for loss in losses:
        state, action, _ = run(state, loss, peak, limits, error)
        done.append(action)
    return state, done


def test_the_batch_that_fits_is_in_proportion_to_the_need():
    assert fitting_batch(10, 100, 1000) == 100


def test_a_need_too_small_to_be_counted_is_no_obstacle():
    assert fitting_batch(10, 0, 1000) == 20


def test_reaches_the_limit_from_below_where_a_part_of_the_need_is_fixed():
    """200 bytes fixed and 2 a sample: room for 300."""
    state, batches = TunerState(16), []
    for loss in range(20, 10, -1):
        state, _, _ = run(state, loss, RESTING + 200 + 2 * state.batch)
        batches.append(state.batch)
    # Above 220 the forecast, 800 b / (200 + 2 b), is less than a quarter more.
    assert batches == sorted(batches) and 220 - 8 <= batches[-1] <= 300


def test_few_sizes_have_two_leading_bits():
    few = LIMITS._replace(limit_bytes=10**6, max_batch=4096, few_sizes=True)

    def lowered(limits):
        """Where batches of any size are lowered to by a peak of twice the limit."""
        return {
            retreat(TunerState(k), limits, 2 * limits.limit_bytes, RESTING)[0].batch for k in range(17, 4096)
        }

    assert lowered(few) <= {8 * k << j for k in (1, 2, 3) for j in range(10)} and 5 < len(lowered(few)) < 20
    assert len(lowered(few._replace(few_sizes=False))) > 100
    state, batches = TunerState(16), []
    for loss in range(40, 20, -1):
        state, _, _ = run(state, loss, RESTING + 200 + 250 * state.batch, few)  # room for 3,998
        batches.append(state.batch)
    assert sorted(set(batches)) == [32, 64, 128, 256, 512, 1024, 2048, 3072]


def test_a_size_that_passed_the_limit_is_not_tried_again():
    state, action, _ = run(TunerState(64, losses=(9.0, 8.0)), 2.0, 1040)
    assert (state.batch, action, state.ceiling) == (56, "lower", 56)
    state, action, reason = run(state, 1.8, RESTING + 700)  # no room for tighter bounds
    assert (state.batch, action) == (56, "keep") and "given up" in reason


def test_goes_back_to_the_size_that_fitted():
    state, action, _ = run(TunerState(128), 2.0, RESTING + 500)
    assert (state.batch, action, state.proven) == (200, "grow", 128)
    state, action, reason = retreat(state, LIMITS, 2000, RESTING)  # in proportion 88 would fit
    assert (state.batch, action, state.proven) == (128, "lower", 128) and "over the limit" in reason
    state, action, _ = retreat(state, LIMITS, RESTING + 1000, RESTING)  # that passes it too, for once
    assert (state.batch, action, state.proven) == (96, "lower", 0)


def test_between_the_size_that_fitted_and_the_one_that_did_not():
    state, _, _ = run(TunerState(64), 2.0, RESTING + 400)
    assert state.batch == 128
    state, _, _ = retreat(state, LIMITS, RESTING + 900, RESTING)
    assert (state.batch, state.ceiling) == (112, 120)


def test_over_the_limit_the_batch_is_lowered_whatever_the_loss():
    state, action, reason = run(TunerState(100), 0.1, 1200)
    assert (state.batch, action) == (80, "lower")
    assert "over the limit" in reason
    state, action, reason = run(TunerState(8), 0.1, 1200)
    assert (state.batch, action) == (8, "keep") and "`min_batch`" in reason


def test_bounds_loosen_before_the_batch_is_lowered():
    state, action, _ = retreat(TunerState(64, bound_scale=0.5), LIMITS, 1040, RESTING)
    assert (state.batch, state.bound_scale, action) == (64, 1.0, "loosen")
    state, action, _ = retreat(TunerState(64), LIMITS, 1040, RESTING, error=0.08)
    assert (state.batch, state.bound_scale, action) == (64, 2.0, "loosen")
    for error in (None, 0.15):  # nobody knows; more than the law allows
        assert retreat(TunerState(64), LIMITS, 1040, RESTING, error)[1] == "lower"
    assert retreat(TunerState(64, bound_scale=0.5), LIMITS, 1900, RESTING)[1] == "lower"  # too little to help


def test_bounds_that_memory_loosened_stay_so():
    state, _, _ = retreat(TunerState(64, bound_scale=0.5), LIMITS, 1040, RESTING)
    state, done = epochs(state, [1.0] * 8, limits=LIMITS._replace(max_batch=64))
    assert state.bound_scale == 1.0 and "tighten" not in done


def test_memory_that_no_larger_batch_can_use_tightens_bounds():
    limits = LIMITS._replace(max_batch=64)
    state, action, reason = run(TunerState(64), 2.0, RESTING + 600, limits)
    assert (state.bound_scale, action) == (0.5, "tighten") and "has room for tighter bounds" in reason
    assert run(TunerState(64), 2.0, RESTING + 700, limits)[1] == "keep"  # 1.3 times that is more than 800


def test_holds_a_size_before_it_grows():
    limits, state, batches = LIMITS._replace(hold=3), TunerState(16), []
    for loss in range(20, 10, -1):
        state, _, reason = run(state, loss, 300, limits)
        batches.append(state.batch)
    assert batches == [16, 16, 32, 32, 32, 64, 64, 64, 128, 128]
    assert "epoch 1 of 3 at this size" in reason


def test_a_higher_peak_at_the_same_size_is_forgotten_slowly():
    state, rooms = TunerState(128), []
    limits = LIMITS._replace(hold=2)
    for loss, need in ((9.0, 700), (8.0, 500), (7.0, 500)):  # 500 alone: room for 204
        state, _, reason = run(state, loss, RESTING + need, limits)
        rooms.append(reason)
    assert state.batch == 128
    assert "room for 151 only" in rooms[1] and "room for 156 only" in rooms[2]


def test_the_first_epoch_may_grow():
    state, action, reason = run(TunerState(32), 2.0, 300)
    assert (state.batch, action) == (64, "grow")
    assert "300 B of 1 kB" in reason


def test_grows_no_further_than_the_headroom_in_multiples_of_8():
    state, action, _ = run(TunerState(100), 2.0, 200 + 600)  # 6 bytes a sample, room 800
    assert (state.batch, action) == (128, "grow")


def test_grows_no_further_than_max_batch():
    limits = LIMITS._replace(max_batch=50)
    state, action, _ = run(TunerState(32), 2.0, 900, limits)
    assert (state.batch, action) == (32, "keep")
    state, action, _ = run(TunerState(32), 2.0, 210, limits)
    assert (state.batch, action) == (50, "grow")
    state, action, reason = run(state, 1.0, 900, limits)
    assert (state.batch, action) == (50, "keep")
    assert "max_batch" in reason


def test_a_gain_of_less_than_a_quarter_is_left():
    state, action, reason = run(TunerState(200), 2.0, 200 + 650)
    assert (state.batch, action) == (200, "keep")
    assert "room for 246 only" in reason


def test_a_stall_tightens_bounds_where_their_error_matters_and_then_grows():
    flat = [1.0, 1.01, 1.0, 1.01, 1.0] * 3
    state, done = epochs(TunerState(64), flat, limits=LIMITS._replace(hold=5), error=0.2)
    assert done.index("tighten") == 4 and "lower" not in done
    state, done = epochs(TunerState(64), flat[:5], limits=LIMITS._replace(hold=5), error=0.05)
    assert done == ["keep"] * 4 + ["grow"] and state.bound_scale == 1.0


def test_a_rising_loss_tightens_bounds_and_leaves_the_batch():
    state, done = epochs(TunerState(64), [1 + 0.1 * k for k in range(20)], limits=LIMITS._replace(hold=5))
    assert (state.batch, state.bound_scale) == (64, 0.25)
    assert done.count("tighten") == 2 and set(done) == {"tighten", "keep"}


def test_growth_that_made_the_loss_worse_is_taken_back_for_good():
    limits = LIMITS._replace(hold=5)
    state, done = epochs(TunerState(64), [1.4, 1.3, 1.2, 1.1, 1.0], limits=limits)
    assert (state.batch, done[-1]) == (128, "grow")
    state, done = epochs(state, [1.6, 1.55, 1.6, 1.58, 1.61], limits=limits)
    assert (state.batch, done[3], state.ceiling) == (64, "undo", 64)
    state, done = epochs(state, [0.9 - 0.1 * k for k in range(9)], peak=900, limits=limits)
    assert state.batch == 64 and set(done) == {"keep"}


def test_growth_that_wrecked_the_training_is_undone_after_two_epochs():
    state, _ = epochs(TunerState(64), [1.4, 1.3, 1.2, 1.1, 1.0], limits=LIMITS._replace(hold=5))
    state, done = epochs(state, [2.5, 2.6], limits=LIMITS._replace(hold=5))
    assert (state.batch, done, state.ceiling) == (64, ["keep", "undo"], 64)


def test_no_growth_above_the_losses_of_before_the_last_one():
    limits = LIMITS._replace(hold=5)
    state, _ = epochs(TunerState(64), [1.4, 1.3, 1.2, 1.1, 1.0], limits=limits)
    assert state.batch == 128
    above, done = epochs(state, [1.45, 1.42, 1.05, 1.44, 1.03], limits=limits)
    assert above.batch == 128 and "grow" not in done
    below, done = epochs(state, [1.0, 0.98, 0.96, 0.94, 0.92], limits=limits)
    assert below.batch == 256 and done[-1] == "grow"


def test_what_is_worse_but_falls_is_given_time():
    limits = LIMITS._replace(hold=5)
    state, _ = epochs(TunerState(64), [1.4, 1.3, 1.2, 1.1, 1.0], limits=limits)
    state, done = epochs(state, [1.9, 1.8, 1.7, 1.6], limits=limits)
    assert state.batch == 128 and done == ["keep"] * 4


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_takes_growth_back(loss):
    state, action, _ = run(TunerState(32), 2.0, 300)
    assert (state.batch, action) == (64, "grow")
    state, action, reason = run(state, loss, 300)
    assert (state.batch, action) == (32, "undo") and "not finite" in reason
    state, action, _ = run(state, loss, 300)
    assert (state.batch, action) == (32, "tighten") and state.losses == ()


@pytest.mark.parametrize("loss", [0.0, -3.0])
def test_losses_may_be_zero_or_negative(loss):
    state, _, _ = run(TunerState(32), loss, 300)
    assert run(state, loss - 1.0, 300)[1] == "grow"
