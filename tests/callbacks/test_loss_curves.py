"""What becomes of the batch on the loss curves that trainings have: it never collapses."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_comptrain.callbacks._tuner import TunerLimits, TunerState, decide

EPOCHS, START, LARGEST = 60, 64, 512
RESTING, PER_SAMPLE = 50_000_000, 1_000_000
_NOISE = random.Random(0)


def steered(losses, hold=15, limit=10**9, error=None, per_sample=PER_SAMPLE):
    """The state after a training with these losses, its actions, and the batch of each epoch."""
    limits = TunerLimits(limit_bytes=limit, max_batch=1024, min_batch=START // 8, hold=hold)
    state, actions, batches = TunerState(START), [], [START]
    for loss in losses[:-1]:
        state, action, _ = decide(state, limits, loss, RESTING + per_sample * state.batch, RESTING, error)
        actions.append(action)
        batches.append(state.batch)
    return state, actions, batches


def curve(of_epoch, epochs=EPOCHS):
    return [of_epoch(k) for k in range(epochs)]


def noisy(of_epoch, noise):
    return [of_epoch(k) * (1 + noise * _NOISE.gauss(0, 1)) for k in range(EPOCHS)]


def but(of_epoch, epoch, value):
    return [value if k == epoch else of_epoch(k) for k in range(EPOCHS)]


def falling(rate, start=2.0):
    return lambda k: start * (1 - rate) ** k


# Grows to what a quarter of the training at each size allows. 32 of them were found from outside.
GROWING = {
    "0.5 % an epoch": curve(falling(0.005)),
    "0.9 % an epoch": curve(falling(0.009)),
    "1.5 % an epoch": curve(falling(0.015)),
    "3 % an epoch": curve(falling(0.03)),
    "0.5 %, 200 epochs": curve(falling(0.005), 200),
    "fast, then a slow tail": curve(lambda k: 1 + 2 * 0.9**k),
    "1 / sqrt": curve(lambda k: 2 / math.sqrt(k + 1)),
    "log": curve(lambda k: 4 - 0.3 * math.log(k + 1)),
    "converged after 15": curve(lambda k: max(0.1, 2 * 0.8**k)),
    "3 %, noise of 2 %": noisy(falling(0.03), 0.02),
    "3 %, noise of 5 %": noisy(falling(0.03), 0.05),
    "1 %, noise of 2 %": noisy(falling(0.01), 0.02),
    "noise alone": noisy(lambda k: 1.0, 0.02),
    "one spike": but(falling(0.03), 20, 6.0),
    "one lucky epoch": but(falling(0.03), 5, 0.4),
    "one NaN before it grew": but(falling(0.03), 10, math.nan),
    "first epoch NaN": but(falling(0.03), 0, math.nan),
    "first epoch infinite": but(falling(0.03), 0, math.inf),
    "one of minus infinity": but(falling(0.03), 10, -math.inf),
    "below 0": curve(lambda k: -1.0 * k),
    "log likelihood": curve(lambda k: -10 - 0.05 * k),
    "crosses 0": curve(lambda k: 1 - 0.05 * k),
    "0 from epoch 10 on": curve(lambda k: max(0.0, 1 - 0.1 * k)),
    "all 0": curve(lambda k: 0.0),
    "noise at 1e-8": curve(lambda k: 1e-8 + 1e-9 * _NOISE.random()),
    "offset of a regularizer": curve(lambda k: 100 + 2 * 0.9**k),
    "0.5 %, hold of 1": curve(falling(0.005)),
    "steps of a schedule": curve(lambda k: (2.0, 1.0, 0.5)[k // 20] * 0.995**k),
    "warmup: rises for 3 epochs": curve(lambda k: 3 + 0.1 * k if k < 3 else 3.3 * 0.97**k),
    "cosine": curve(lambda k: 1 + math.cos(math.pi * k / EPOCHS)),
    "power law with a floor": curve(lambda k: 1.7 + 2 * (k + 1) ** -0.3),
    "double descent": curve(lambda k: 2 * 0.95**k + 0.01 * math.exp(-(((k - 8) / 3) ** 2))),
    "sawtooth of 3 epochs": curve(lambda k: 2 * 0.98**k + 0.02 * (k % 3)),
    "quantized to 0.1": curve(lambda k: round(2 * 0.97**k, 1)),
    "halves every epoch": curve(lambda k: 2.0**-k),
    "huge": curve(lambda k: 1e30 * 0.97**k),
    "tiny": curve(lambda k: 1e-30 * 0.97**k),
    "minus 1 / sqrt": curve(lambda k: -2 * math.sqrt(k + 1)),
    "two plateaus": curve(lambda k: 1.0 if k < 30 else 0.5),
    "noise of 20 % on 5 %": noisy(falling(0.05), 0.2),
    "heavy tails": curve(lambda k: 2 * 0.97**k + 0.02 * min(_NOISE.paretovariate(1), 50)),
    "an epoch that repeats": curve(lambda k: 2 * 0.97 ** (k // 2)),
    "every tenth epoch is bad": curve(lambda k: 2 * 0.97**k * (1.5 if k % 10 == 9 else 1)),
    "rises slowly at the end": curve(lambda k: 2 * 0.9**k + 0.00001 * k),
}  # fmt: skip
# Never below the start, whatever else.
HELD = {
    "cyclic learning rate": curve(lambda k: 1 + 0.2 * math.sin(k / 3) - 0.01 * k),
    "diverging": curve(lambda k: 1.02**k),
    "NaN from epoch 10 on": curve(lambda k: math.nan if k >= 10 else 2 * 0.97**k),
    "all NaN": curve(lambda k: math.nan),
    "restarts of 20 epochs": curve(lambda k: 0.5 + math.cos(math.pi * (k % 20) / 20) / 2),
    "U": curve(lambda k: 1 + (k - 30) ** 2 / 900),
}


@pytest.mark.parametrize("name", GROWING)
def test_grows(name):
    hold = 1 if "hold of 1" in name else len(GROWING[name]) // 4
    state, actions, batches = steered(GROWING[name], hold)
    assert batches == sorted(batches) and state.batch >= LARGEST, (actions, batches)


@pytest.mark.parametrize("name", HELD)
def test_is_never_below_the_start(name):
    _, _, batches = steered(HELD[name])
    assert min(batches) >= START, batches


def test_a_start_of_8_grows_too():
    limits = TunerLimits(limit_bytes=10**9, max_batch=1024, min_batch=1, hold=15)
    state, batches = TunerState(8), []
    for loss in curve(falling(0.005)):
        state, _, _ = decide(state, limits, loss, RESTING + PER_SAMPLE * state.batch, RESTING)
        batches.append(state.batch)
    assert batches == sorted(batches) and batches[-1] == 128


def test_memory_alone_asks_for_less_than_the_start():
    state, actions, batches = steered(GROWING["3 % an epoch"], limit=90_000_000)
    assert min(batches) == state.batch and state.batch < START and actions[0] == "lower"
    state, _, batches = steered(GROWING["3 % an epoch"], per_sample=10**9)
    assert state.batch == START // 8 and batches == sorted(batches, reverse=True)


def test_growth_that_makes_a_training_diverge_is_taken_back_to_the_size_before():
    limits = TunerLimits(limit_bytes=10**9, max_batch=1024, min_batch=8, hold=10)
    state, loss, batches = TunerState(START), 2.0, []
    for _ in range(EPOCHS):  # falls, but at a batch above 128 it rises
        loss *= 1.05 if state.batch > 128 else 0.98
        state, _, _ = decide(state, limits, loss, RESTING + PER_SAMPLE * state.batch, RESTING)
        batches.append(state.batch)
    assert max(batches) == 256 and batches[-1] == 128 and state.ceiling == 128


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(
    rate=st.floats(0.0, 0.1),
    noise=st.floats(0.0, 0.1),
    offset=st.floats(-100, 100),
    sign=st.sampled_from([1, -1]),
    bad=st.dictionaries(st.integers(0, EPOCHS - 1), st.sampled_from([math.nan, math.inf, 50.0, -50.0]), max_size=2),
    seed=st.integers(0, 10**6),
    error=st.sampled_from([None, 0.05, 0.2]),
)  # fmt: skip
def test_under_any_noise_the_batch_ends_at_its_start_or_above(rate, noise, offset, sign, bad, seed, error):
    draw = random.Random(seed)
    size = 2.0 if sign > 0 else -2.0 * (1 - rate) ** EPOCHS
    losses = [
        offset + size * (1 - rate) ** (sign * k) * (1 + noise * draw.gauss(0, 1)) for k in range(EPOCHS)
    ]
    for epoch, value in bad.items():
        losses[epoch] = value
    state, actions, batches = steered(losses, error=error)
    assert min(batches) >= START
    # Back is only ever to a size that it grew from.
    assert {b for a, b in zip(actions, batches[1:]) if a == "lower"} <= set(batches[: len(batches) - 1])
    assert state.bound_scale >= 0.25
