"""`_keras/fit_loop.py`: datasets, epochs, callbacks."""

import os
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiny import batch, fit, network

from tf_comptrain import _keras

layers = keras.layers


@pytest.mark.parametrize(
    "change, expected",
    [
        (lambda data: data, None),
        (lambda data: data.batch(2).prefetch(1), "BatchDataset"),
        (lambda data: data.batch(2, num_parallel_calls=2), "ParallelBatchDataset"),
        (lambda data: data.padded_batch(2, padded_shapes=()).map(lambda x: 2 * x), "PaddedBatchDataset"),
        (lambda data: data.batch(2).unbatch(), None),
        (lambda data: data.batch(2).flat_map(tf.data.Dataset.from_tensor_slices), None),
        (lambda data: tf.data.Dataset.zip((data, data)), None),
    ],
)
def test_what_made_batches(change, expected):
    assert _keras.batching_of(change(tf.data.Dataset.range(4))) == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda d: d.batch(2), 2),
        (lambda d: d.prefetch(9).batch(2), 2),  # of samples
        (lambda d: d.batch(2).prefetch(5), 5),
        (lambda d: d.batch(2).shuffle(4).prefetch(tf.data.AUTOTUNE), 5),
        (lambda d: d.batch(2).map(lambda x: x, num_parallel_calls=3), 3),
        (
            lambda d: d.shuffle(99).map(lambda x: tf.fill([2], x)).prefetch(1),
            2,
        ),  # of what batches are made of
        (lambda d: d.batch(2).prefetch(9999), 64),
    ],
)
def test_batches_that_a_dataset_makes_ahead(change, expected):
    assert _keras.batches_in_flight(iter(change(tf.data.Dataset.range(4)))) == expected
    assert _keras.batches_in_flight(iter([1, 2])) == 2


def test_the_batches_of_arrays_are_made_ahead():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    found = []
    model.make_train_function()
    step = model.train_function
    model.train_function = lambda iterator: found.append(_keras.batches_in_flight(iterator)) or step(iterator)
    model.fit(np.zeros((8, 4)), np.zeros((8, 1)), batch_size=2, verbose=0)
    assert set(found) == {1 + min(os.cpu_count(), 16)}


def test_shuffles_that_cannot_be_repeated():
    tf.random.set_seed(None)  # with one, TensorFlow gives each shuffle a seed
    data = tf.data.Dataset.range(4)
    steady = data.shuffle(4, seed=1, reshuffle_each_iteration=False)
    assert _keras.unsteady_shuffle_of(data) is None
    assert _keras.unsteady_shuffle_of(steady.batch(2)) is None
    assert "reorders" in _keras.unsteady_shuffle_of(data.shuffle(4, seed=1).map(lambda x: x))
    assert "without a seed" in _keras.unsteady_shuffle_of(data.shuffle(4, reshuffle_each_iteration=False))
    assert "reorders" in _keras.unsteady_shuffle_of(tf.data.Dataset.zip((steady, data.shuffle(2))))


def test_all_of_a_training_is_made_before_it():
    model = keras.Sequential([layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"], jit_compile=False)
    _keras.build_for_fit(model, tf.data.Dataset.from_tensors(batch()))
    assert model.built and model.optimizer.built and model.train_function is not None
    assert len(model.optimizer.variables) == 4  # steps, learning rate, two slots
    made = {id(variable) for variable in _keras.all_variables(model)}
    fit(model)
    assert {id(variable) for variable in _keras.all_variables(model)} == made


def test_a_model_must_be_compiled_for_that():
    with pytest.raises(ValueError, match="compile"):
        _keras.build_for_fit(network(compiled=False), tf.data.Dataset.from_tensors(batch()))


def test_logs_of_an_epoch():
    model = network(metrics=["mae"])
    history = fit(model)
    found = _keras.epoch_logs(model, {"loss": 100.0, "mae": 100.0})
    assert set(found) == {"loss", "mae"}
    np.testing.assert_allclose(found["loss"], history.history["loss"][0], rtol=1e-6)


class OwnStep(keras.Model):
    def train_step(self, data):
        return {"mine": tf.constant(1.0)}


def test_logs_of_a_step_of_the_users():
    model = OwnStep()
    model.compile(jit_compile=False)
    assert _keras.epoch_logs(model, {"mine": 3.0}) == {"mine": 3.0}


def test_the_dataset_of_a_training():
    with _keras.fitting("data"):
        assert _keras.fitted_dataset() == "data"
    assert _keras.fitted_dataset() != "data"


class Resized(keras.callbacks.Callback):
    """Looks at the dataset of `fit`, and resizes it for the second epoch."""

    def __init__(self, elastic):
        super().__init__()
        self.elastic, self.steps = elastic, []

    def on_train_begin(self, logs=None):
        self.dataset = _keras.fitted_dataset()

    def on_epoch_begin(self, epoch, logs=None):
        self.elastic.size = (2, 4)[epoch]
        self.steps.append(0)

    def on_train_batch_end(self, batch, logs=None):
        self.steps[-1] += 1


def test_epochs_have_as_many_steps_as_the_dataset_has_batches():
    _keras.follow_cardinality()
    _keras.follow_cardinality()  # once for the process
    elastic = SimpleNamespace(samples=4, size=2)
    elastic.steps_in = lambda samples: -(-samples // elastic.size)
    size = tf.Variable(2, dtype=tf.int64)

    def batches(_):
        return tf.data.Dataset.from_tensor_slices(batch()).batch(size)

    data = tf.data.Dataset.range(1).flat_map(batches)
    data.elastic = elastic
    data.cardinality = lambda: tf.constant(elastic.steps_in(elastic.samples), tf.int64)
    model, resized = network(), Resized(elastic)
    resize = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: size.assign(elastic.size))
    model.fit(data, epochs=2, verbose=0, callbacks=[resized, resize])
    assert resized.dataset is data
    assert resized.steps == [2, 1]
    assert model.optimizer.iterations == 3


def test_attributes_of_callbacks_that_are_of_the_process(tmp_path):
    callback = keras.callbacks.TensorBoard(str(tmp_path), profile_batch=0, write_graph=False)
    callback.set_model(network())
    assert set(_keras.PROCESS_ATTRIBUTES) <= set(vars(callback))
