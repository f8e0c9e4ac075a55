"""ct.fit(on_oom="microbatch"): the batch stays, and its gradient is added up of parts."""

import numpy as np
import pytest
import tensorflow as tf
from needs_xla import needs_xla
from tensorflow import keras
from test_fit import BATCH, SAMPLES, Fault, data, events, stopper

import tf_comptrain as ct
from tf_comptrain import _keras
from tf_comptrain.placement import accumulation

layers = keras.layers
ROUNDING = 2e-5


def network(fault=(), jit_compile=False, loss="sparse_categorical_crossentropy", make=keras.Sequential):
    keras.utils.set_random_seed(0)
    parts = [layers.Conv2D(8, 3, padding="same", activation="relu"), layers.Conv2D(8, 3), layers.Flatten()]
    parts += [Fault(*fault, name="fault")] if fault else []
    model = make([keras.Input((8, 8, 3)), *parts, layers.Dense(10, "softmax", kernel_regularizer="l2")])
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"], jit_compile=jit_compile)
    return model


def fit(model, *given, **settings):
    settings = {"batch_size": BATCH, "epochs": 2, "snapshot_every": 2, "verbose": 0, **settings}
    return ct.fit(model, *(given or data()), on_oom="microbatch", **settings)


def close(model, other):
    pairs = zip(model.get_weights(), other.get_weights())
    return all(np.linalg.norm(a - b) <= ROUNDING * (np.linalg.norm(b) + 1) for a, b in pairs)


def change(model, x, y):
    """What a step of gradient descent does to all weights."""
    model.compile(keras.optimizers.SGD(0.1), model.loss, jit_compile=False)
    before = model.get_weights()
    model.train_on_batch(x, y)
    return np.concatenate([np.ravel(b - a) for a, b in zip(before, model.get_weights())])


@pytest.fixture(scope="module")
def undisturbed():
    model = network()
    return model, fit(model).history


def test_losses_are_those_of_the_whole_batch(undisturbed):
    model = network(fault=("backward", 5))
    history = fit(model)
    (event,) = events(history)
    assert (event.step, event.back_to, event.batch, event.new_batch) == (4, 4, BATCH, BATCH)
    assert event.microbatches == 2 and "microbatches" in event.line("")
    assert close(model, undisturbed[0])
    for name in ("loss", "accuracy"):
        np.testing.assert_allclose(history.history[name], undisturbed[1][name], rtol=ROUNDING)
    assert int(model.optimizer.iterations) == 2 * (SAMPLES // BATCH + 1)


def test_the_step_is_the_models_own_again():
    model = network(fault=("forward", 2))
    fit(model)
    assert _keras.step_set(model) is None and "train_step" not in vars(model)


@pytest.mark.long
@needs_xla
def test_a_step_that_xla_refuses_runs_in_parts(undisturbed):
    x, y = data(256)
    model, whole = network(jit_compile=True), network(jit_compile=True)
    expected = ct.fit(whole, x, y, batch_size=256, epochs=2, verbose=0).history
    planned = ct.memory.memory_analysis(network(jit_compile=True), x, y).total_bytes
    in_use = tf.config.experimental.get_memory_info("CPU:0")["current"]
    with ct.memory.limit(in_use + planned // 2):
        history = fit(model, x, y, batch_size=256)
    found = events(history)
    assert [event.microbatches for event in found] == [2, 4, 8][: len(found)] and found
    np.testing.assert_allclose(history.history["loss"], expected["loss"], rtol=1e-4)


@pytest.mark.long("True")
@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=needs_xla)])
def test_parts_take_less(jit_compile):
    x, y = map(tf.constant, data(512))
    peaks = []
    for count in (1, 4):
        model = network(jit_compile=jit_compile)
        accumulation.set_microbatches(model, count)
        if jit_compile:
            peaks.append(ct.memory.memory_analysis(model, x, y).temporary_bytes)
        else:
            peaks.append(ct.memory.measure_step(model, x, y, steps=1).peak_bytes)
    assert peaks[1] < 0.5 * peaks[0]


def test_a_compressed_model_in_parts():
    """Its gradient is as near to plain's as that of the whole batch."""
    x, y = map(tf.constant, data(64))
    plain = change(network(), x, y)
    for count in (1, 4):
        model = network()
        ct.compress_model(model)
        accumulation.set_microbatches(model, count)
        found = change(model, x, y)
        assert 0 < np.linalg.norm(found - plain) < 0.1 * np.linalg.norm(plain), count
        accumulation.set_microbatches(model, 1)
        assert "train_step" in vars(model)  # as that of a compressed model


def test_gradients_of_embeddings_stay_sparse():
    def make():
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [keras.Input((5,)), layers.Embedding(50, 8), layers.Flatten(), layers.Dense(1)]
        )
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
        return model

    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 50, (16, 5)), rng.normal(size=(16, 1))
    whole, parts = make(), make()
    accumulation.set_microbatches(parts, 4)
    for model in (whole, parts):
        for _ in range(3):
            model.train_on_batch(x, y)
    assert close(whole, parts)


def test_microbatches_go_on_in_a_new_process(tmp_path, undisturbed):
    model = network(fault=("backward", 3))
    with pytest.raises(Exception, match=".*") as stopped:
        fit(model, checkpoint_dir=tmp_path, callbacks=[stopper(5)])
    assert type(stopped.value).__name__ == "Stop"
    again = network(fault=("never", 0))
    history = fit(again, checkpoint_dir=tmp_path)
    assert [event.kind for event in events(history)] == ["out of memory", "resumed"]
    assert events(history)[-1].microbatches == 2
    assert close(again, undisturbed[0])


class OwnStep(keras.Sequential):
    def train_step(self, data):
        return super().train_step(data)


@pytest.mark.long("options1-*")
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"make": OwnStep}, "`train_step` of its own"),
        ({"loss": keras.losses.SparseCategoricalCrossentropy(reduction="sum")}, "'sum'"),
    ],
)
def test_the_batch_is_halved_where_parts_have_another_gradient(options, why):
    (event,) = events(fit(network(fault=("backward", 3), **options)))
    assert (event.new_batch, event.microbatches) == (BATCH // 2, 1) and why in event.reason


def test_the_smallest_microbatch_raises():
    model = network(fault=("backward", 1))
    before = model.get_weights()
    with pytest.raises(tf.errors.ResourceExhaustedError, match="batch size 8, and `min_batch` is 5"):
        fit(model, min_batch=5)
    assert all(np.array_equal(a, b) for a, b in zip(model.get_weights(), before))


def test_a_value_that_is_none():
    with pytest.raises(ValueError, match="`on_oom` must be 'batch' or 'microbatch'. Received: 'half'"):
        ct.fit(network(), *data(), on_oom="half")
