"""memory.limit and the largest batch where XLA compiles the step: by the compiler's plan, before anything runs."""

import gc

import numpy as np
import pytest
import tensorflow as tf
from models import compiled, layers
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain import _keras
from tf_comptrain.memory import memory_limit, trial
from tf_comptrain.memory.memory_limit import StepRefusedError
from tf_comptrain.memory.trial import OK, OUT_OF_MEMORY, Job

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(1024, 64)).astype("float32"), RNG.integers(0, 10, 1024)
ROOM = 3_000_000  # beside the weights; a step of 16 samples takes a sixth of it, and one of 1,024 half as much again


def network(compress=False, **options):
    keras.utils.set_random_seed(0)
    hidden = layers.Dense(512, activation="tanh", name="hidden")
    model = keras.Sequential([keras.Input((64,)), hidden, layers.Dense(10)], name="network")
    compiled(model, jit_compile=True, **options)
    _keras.build_optimizer(model)
    if compress:
        ct.compress_model(model)
    return model


def limit():
    gc.collect()  # what a refusal would free is no room
    return ct.memory.limit(tf.config.experimental.get_memory_info(ct.memory.device())["current"] + ROOM)


def state(model):
    return [*model.get_weights(), model.optimizer.iterations.numpy()]


def assert_same(found, expected):
    for value, other in zip(found, expected):
        np.testing.assert_array_equal(value, other)


@pytest.fixture
def plans(monkeypatch):
    """The plans that limits have asked XLA for."""
    found = []

    def analysis_of(program, original=memory_limit.analysis_of):
        found.append(original(program))
        return found[-1]

    monkeypatch.setattr(memory_limit, "analysis_of", analysis_of)
    return found


@pytest.mark.long("False")
@pytest.mark.parametrize("compress", [False, True])
def test_a_step_above_the_limit_is_refused_before_it_begins(compress, plans):
    model = network(compress)
    with limit():
        model.fit(X[:16], Y[:16], batch_size=8, verbose=0)
        before = state(model)
        for refused in (
            lambda: model.fit(X, Y, batch_size=1024, verbose=0),
            lambda: model.train_on_batch(X, Y),
        ):
            with pytest.raises(tf.errors.ResourceExhaustedError, match=r"memory limit: .*\[1024, 64\]"):
                refused()
        assert_same(state(model), before)
        model.train_on_batch(X[:8], Y[:8])
    assert len(plans) == 2
    model.fit(X, Y, batch_size=1024, verbose=0)


def test_a_refusal_has_the_numbers_and_the_largest_buffers(plans):
    model = network()
    with limit() as _, pytest.raises(StepRefusedError) as refused:
        model.train_on_batch(X, Y)
    (planned,) = plans
    said = str(refused.value)
    numbers = [planned.temporary_bytes, planned.argument_bytes, planned.output_bytes]
    for number, what in zip(numbers, ("of temporary memory", "of arguments", "of results")):
        assert f"{ct.render.units.format_bytes(number)} {what}" in said
    assert planned.argument_bytes > X.nbytes and planned.total_bytes == sum(numbers)
    largest = planned.buffers[0]
    assert f"{largest.op} {largest.dtype}{largest.shape}" in said and "hidden" in said
    assert "compress_model" in said and "Lower the batch size" in said
    model = network(compress=True)
    with limit(), pytest.raises(StepRefusedError) as refused:
        model.train_on_batch(X, Y)
    assert "compress_model" not in str(refused.value)


def test_the_plan_is_enough_where_the_allocator_does_not_count(monkeypatch):
    def uncounted(name):
        raise ValueError(f"Allocator stats not available for device {name!r}")

    model = network()
    monkeypatch.setattr(tf.config.experimental, "get_memory_info", uncounted)
    monkeypatch.setattr(tf.config.experimental, "reset_memory_stats", uncounted)
    with ct.memory.limit(ROOM), pytest.raises(StepRefusedError, match="memory limit: a step of 'network'"):
        model.train_on_batch(X, Y)


@pytest.mark.long
def test_each_shape_is_planned_once(plans):
    model = network()
    with limit():
        for _ in range(2):  # steps of 8, and one of 4
            model.fit(X[:20], Y[:20], batch_size=8, epochs=2, verbose=0)
    assert len(plans) == 2
    with limit():
        model.fit(X[:16], Y[:16], batch_size=8, verbose=0)
    assert len(plans) == 3


def test_a_model_that_was_trained_before_has_the_limit_and_then_has_none(plans):
    model = network()
    model.train_on_batch(X[:8], Y[:8])
    with limit():
        with pytest.raises(StepRefusedError):
            model.train_on_batch(X, Y)
        inside = model.train_function
    assert model.train_function is inside
    model.train_on_batch(X, Y)
    assert len(plans) == 1


def test_training_under_a_limit_is_that_without_one():
    trained = []
    for limited in (False, True):
        model = network(steps_per_execution=2, metrics=["accuracy"])
        options = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
        if limited:
            with limit():
                history = model.fit(X[:36], Y[:36], validation_data=(X[:8], Y[:8]), **options)
        else:
            history = model.fit(X[:36], Y[:36], validation_data=(X[:8], Y[:8]), **options)
        trained.append((history.history, state(model)))
    (plain, plain_state), (ours, our_state) = trained
    assert plain.keys() == ours.keys() >= {"loss", "val_accuracy"}
    for name in plain:
        np.testing.assert_allclose(ours[name], plain[name], rtol=1e-4)
    assert our_state[-1] == plain_state[-1] == 10


@pytest.mark.long
def test_one_replica_of_a_strategy(plans):
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = network()
    with limit():
        model.fit(X[:8], Y[:8], batch_size=8, verbose=0)
        with pytest.raises(StepRefusedError):
            model.fit(X, Y, batch_size=1024, verbose=0)
    assert len(plans) == 2


def test_a_step_of_another_function_is_refused_in_one_sentence():
    model = network()

    @tf.function(jit_compile=True)
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True))
        return tape.gradient(loss, [variable.value for variable in model.trainable_variables])

    with limit():
        with pytest.raises(RuntimeError, match="tf.function of its own: train with `fit`"):
            step(X[:8])
        model.evaluate(X[:8], Y[:8], verbose=0)
        assert ct.memory.memory_analysis(model, 8).temporary_bytes > 0
    assert all(np.isfinite(gradient).all() for gradient in step(X[:8]))


@pytest.mark.long
def test_gradients_are_checked_under_a_limit():
    model = network(compress=True)
    with limit():
        model.fit(X[:32], Y[:32], batch_size=16, verbose=0)
    without = network(compress=True)
    without.fit(X[:32], Y[:32], batch_size=16, verbose=0)
    assert ct.report(model).unchecked == ct.report(without).unchecked


def test_fit_goes_on_with_a_batch_that_is_within_the_limit(monkeypatch):
    model, abandoned = network(compress=True), []
    monkeypatch.setattr(_keras, "abandon_buffers", abandoned.append)
    with limit():
        history = ct.fit(model, X, Y, batch_size=1024, verbose=0)
    events = history.history["events"][0]
    assert [(event.batch, event.new_batch) for event in events] == [(1024, 512)]
    assert "memory limit" in events[0].reason
    assert not abandoned  # XLA has not taken them, and each would be kept for good
    assert model.optimizer.iterations == 2


def test_a_trial_of_a_batch_reads_the_plan(monkeypatch):
    def never(*unused):
        raise AssertionError("a step ran")

    monkeypatch.setattr(trial, "_steps", never)
    limit_bytes = tf.config.experimental.get_memory_info(ct.memory.device())["current"] + ROOM
    fits = trial._try(Job(network, 16, False, limit_bytes, None))
    planned = ct.memory.memory_analysis(network(), 16).total_bytes
    assert fits[0] == OK and planned <= fits[1] <= limit_bytes
    outcome, _, detail = trial._try(Job(network, 1024, False, limit_bytes, None))
    assert outcome == OUT_OF_MEMORY
    assert detail.startswith("memory limit: a step of 'network' on a batch of [1024, 64]")
    assert detail.endswith("it was not begun.")
