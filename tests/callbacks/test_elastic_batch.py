"""Datasets whose batch size changes between epochs: exact steps, no retracing, clear errors."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import compiled

import tf_comptrain as ct

SAMPLES = 50


def samples(count=SAMPLES):
    return tf.data.Dataset.from_tensor_slices(
        (np.arange(count, dtype="float32")[:, None], np.arange(count) % 3)
    )


class Resize(keras.callbacks.Callback):
    """Sets the sizes one after the other, and notes batches and iterations of each epoch."""

    def __init__(self, data, sizes):
        super().__init__()
        self.data, self.sizes, self.epochs = data, sizes, []

    def on_epoch_begin(self, epoch, logs=None):
        self.data.elastic.resize(self.sizes[epoch])
        self.batches = 0
        self.before = int(self.model.optimizer.iterations)

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append((self.batches, int(self.model.optimizer.iterations) - self.before))


@pytest.mark.parametrize("drop_remainder", [False, True])
def test_fit_takes_exactly_the_steps_of_each_size(drop_remainder, capsys):
    traces = []

    def loss(y, prediction):
        traces.append(1)
        return keras.losses.sparse_categorical_crossentropy(y, prediction, from_logits=True)

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(3)])
    model.compile("sgd", loss)
    data = ct.elastic_batch(samples(), 8, drop_remainder)
    callback = Resize(data, [8, 16, 50, 5, 7])
    model.fit(data, epochs=5, callbacks=[callback], verbose=2)
    expected = [6, 3, 1, 10, 7] if drop_remainder else [7, 4, 1, 10, 8]
    assert callback.epochs == [(steps, steps) for steps in expected]
    shown = [int(line.split("/")[0]) for line in capsys.readouterr().out.splitlines() if " - loss" in line]
    assert shown == expected
    once = len(traces)
    model.fit(data, epochs=2, callbacks=[Resize(data, [9, 10])], verbose=0)
    assert len(traces) == once


def test_steps_per_execution_and_validation():
    model = compiled(keras.Sequential([keras.Input((1,)), keras.layers.Dense(3)]), steps_per_execution=2)
    data = ct.elastic_batch(samples(48), 8)
    callback = Resize(data, [8, 4, 12])
    model.fit(data, epochs=3, callbacks=[callback], verbose=0, validation_data=samples(7).batch(2))
    assert [iterations for _, iterations in callback.epochs] == [6, 12, 4]


def test_every_sample_once_and_shuffled_anew():
    data = ct.elastic_batch(samples().shuffle(SAMPLES, seed=0), 8)
    orders = []
    for size in (8, 20):
        data.elastic.resize(size)
        batches = [y.numpy() for _, y in data.map(lambda x, _: (x, x))]
        assert [len(b) for b in batches] == [size] * (SAMPLES // size) + [SAMPLES % size]
        orders.append(np.concatenate(batches)[:, 0].tolist())
        assert sorted(orders[-1]) == list(range(SAMPLES))
    assert orders[0] != orders[1]


def test_other_datasets_fit_as_before(capsys):
    model = compiled(keras.Sequential([keras.Input((1,)), keras.layers.Dense(3)]))
    ct.elastic_batch(samples(), 8)  # from now on Keras' iterators are watched
    model.fit(samples().batch(10), epochs=2, verbose=0)
    assert int(model.optimizer.iterations) == 10
    model.fit(np.zeros((20, 1)), np.zeros(20), batch_size=5, epochs=2, verbose=0)
    assert int(model.optimizer.iterations) == 18
    model.fit(samples().repeat().batch(10), steps_per_epoch=3, epochs=2, verbose=0)
    assert int(model.optimizer.iterations) == 24
    capsys.readouterr()
    model.fit(samples().filter(lambda x, y: True).batch(10), epochs=3, verbose=2)
    assert capsys.readouterr().out.count("5/5") == 3  # not 6, with the step that finds no data


@pytest.mark.parametrize(
    "dataset, rule",
    [
        (samples().batch(4), "batched already"),
        (samples().batch(4).map(lambda x, y: (x, y)).prefetch(1), "batched already"),
        (samples().padded_batch(4), "batched already"),
        (samples().filter(lambda x, y: y > 0), "unknown length"),
        (samples().repeat(), "infinite length"),
    ],
)
def test_bad_datasets(dataset, rule):
    with pytest.raises(ValueError, match=rule):
        ct.elastic_batch(dataset, 8)


def test_unbatched_again_is_fine():
    dataset = samples().batch(4).unbatch().apply(tf.data.experimental.assert_cardinality(SAMPLES))
    assert ct.elastic_batch(dataset, 8).elastic.steps == 7


@pytest.mark.parametrize("size", [0, -1, 2.0, True, np.True_, None, "8"])
def test_bad_sizes(size):
    with pytest.raises(ValueError, match="`batch_size` must be an integer of at least 1. Received"):
        ct.elastic_batch(samples(), size)


def test_no_batch_left():
    data = ct.elastic_batch(samples(), 8, drop_remainder=True)
    with pytest.raises(ValueError, match="at most the dataset's 50 samples"):
        data.elastic.resize(51)
    assert data.elastic.size == 8


def test_arrays_are_shuffled_anew_and_each_row_comes_once():
    x, y = np.arange(SAMPLES, dtype="float32")[:, None], np.arange(SAMPLES)
    data = ct.elastic_batch(({"x": x}, y), 8)
    orders = []
    for size in (8, 20):
        data.elastic.resize(size)
        batches = list(data)
        assert [len(labels) for _, labels in batches] == [size] * (SAMPLES // size) + [SAMPLES % size]
        for inputs, labels in batches:
            np.testing.assert_array_equal(inputs["x"][:, 0], labels)
        orders.append(np.concatenate([labels for _, labels in batches]).tolist())
        assert sorted(orders[-1]) == list(range(SAMPLES))
    assert orders[0] != orders[1]
    model = compiled(keras.Sequential([keras.Input((1,)), keras.layers.Dense(3)]))
    callback = Resize(ct.elastic_batch((x, y % 3, np.ones(SAMPLES)), 8), [8, 25])
    model.fit(callback.data, epochs=2, verbose=0, callbacks=[callback])
    assert callback.epochs == [(7, 7), (2, 2)]


def test_bad_arrays():
    with pytest.raises(ValueError, match=r"lengths \[4, 5\]"):
        ct.elastic_batch((np.zeros((4, 1)), np.zeros(5)), 2)
    with pytest.raises(TypeError, match="a tuple of arrays.*Received: ndarray"):
        ct.elastic_batch(np.zeros((4, 1)), 2)
