"""Samples given by a function: each epoch has its own number of them, and all are trained."""

import numpy as np
import pytest
import tensorflow as tf
from models import compiled
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain import _keras

COUNTS = (24, 10, 37, 24)  # samples of each epoch; 3, 2, 5 and 3 steps of 8
SEEN: list = []


def network():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="dense")], name="network")
    return compiled(model)


def numbers(epoch):
    """Of the samples of an epoch."""
    return [100 * epoch + i for i in range(COUNTS[epoch])]


def samples(epoch):
    def note(number):
        SEEN.append(int(number))
        return np.full(3, number % 7 / 7, "float32")

    def sample(number):
        return tf.ensure_shape(tf.numpy_function(note, [number], tf.float32), (3,)), number % 2

    return tf.data.Dataset.from_tensor_slices(numbers(epoch)).map(sample)


class Bar(keras.callbacks.ProgbarLogger):
    """Notes what the progress bar counts to."""

    def __init__(self):
        super().__init__()
        self.targets = []

    def on_epoch_end(self, epoch, logs=None):
        self.targets.append((self.seen, self.target, self.progbar.target))
        super().on_epoch_end(epoch, logs)


def fit(model, x=samples, **kwargs):
    return ct.fit(
        model, x, **{"batch_size": 8, "epochs": len(COUNTS), "snapshot_every": 2, "verbose": 0, **kwargs}
    )


@pytest.mark.parametrize("batch", [8, 37])
def test_all_samples_of_every_epoch_are_trained(batch):
    SEEN.clear()
    model, bar = network(), Bar()
    fit(model, batch_size=batch, callbacks=[bar])
    assert [number for epoch in range(len(COUNTS)) for number in numbers(epoch)] == SEEN
    steps = [-(-count // batch) for count in COUNTS]
    assert int(model.optimizer.iterations) == sum(steps)
    assert bar.targets == [(n, n, n) for n in steps]


@pytest.mark.long("4", "8")
@pytest.mark.parametrize("at", [4, 5, 8, 12])
def test_a_restart_goes_on_in_an_epoch_of_its_own_length(tmp_path, at):
    def stop(batch, logs):
        if int(model.optimizer.iterations) == at:
            raise KeyboardInterrupt

    plain, model = network(), network()
    expected = fit(plain)
    with pytest.raises(KeyboardInterrupt):
        callback = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
        fit(model, callbacks=[callback], checkpoint_dir=tmp_path)
    model = network()
    history = fit(model, checkpoint_dir=tmp_path)
    assert int(model.optimizer.iterations) == 13 and history.history["loss"] == expected.history["loss"]
    for ours, theirs in zip(model.get_weights(), plain.get_weights()):
        np.testing.assert_array_equal(ours, theirs)
    assert fit(network(), checkpoint_dir=tmp_path).epoch == [0, 1, 2, 3]  # nothing to do


def test_a_callback_sees_the_samples_of_the_epoch():
    found = []
    note = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: found.append(_keras.fitted_dataset().elastic.steps)
    )
    fit(network(), callbacks=[note])
    assert found == [3, 2, 5, 3]


def test_another_epoch_than_the_checkpoint_s_is_refused(tmp_path):
    fit(network(), checkpoint_dir=tmp_path, epochs=2)
    with pytest.raises(ValueError, match="other data: samples is 10 there, 24 here"):
        fit(network(), lambda epoch: samples(0), checkpoint_dir=tmp_path)


def test_a_later_epoch_is_checked_and_named():
    given = {1: samples(1).batch(2), 2: samples(2).repeat(), 3: 3}
    for epoch, message in (
        (1, r"`x\(1\)` must be .* batched already"),
        (2, r"`x\(2\)` must be .* infinite length"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(network(), lambda at, epoch=epoch: given[at] if at == epoch else samples(at))
    with pytest.raises(TypeError, match="Received: int for epoch 3"):
        fit(network(), lambda epoch: given[epoch] if epoch == 3 else samples(epoch))
