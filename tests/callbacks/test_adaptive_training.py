"""AdaptiveTraining: error bounds and batch size together."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers
from tensorflow.python.framework import config

import tf_comptrain as ct
from tf_comptrain.compression.instrumentation import instrumentation

SAMPLES, HUGE = 64, 2**50


def arrays():
    random = np.random.default_rng(0)
    y = random.integers(0, 4, SAMPLES)
    x = random.normal(size=(SAMPLES, 8, 8, 3)) + y[:, None, None, None] / 3
    return x.astype("float32"), y


def data(batch_size=8):
    return ct.elastic_batch(tf.data.Dataset.from_tensor_slices(arrays()), batch_size)


def network(kind=keras.Model):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(8, 3, activation="relu", name="first")(inputs)
    x = layers.Conv2D(8, 3, activation="relu", name="second")(x)
    model = kind(inputs, layers.Dense(4, activation="softmax")(layers.Flatten()(x)))
    ct.compress_model(model)
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9), "sparse_categorical_crossentropy", jit_compile=False
    )
    return model


class Losses(keras.callbacks.Callback):
    def __init__(self, *losses):
        super().__init__()
        self.losses = losses

    def on_epoch_end(self, epoch, logs=None):
        logs["loss"] = self.losses[epoch]


def test_steers_both():
    model = network()
    training = ct.AdaptiveTraining(HUGE, max_batch=32, hold=1, verbose=0)
    training.bounds = ct.AdaptiveErrorBound(8, warmup=4)
    history = model.fit(data(), epochs=4, verbose=0, callbacks=[Losses(4.0, 3.0, 2.0, 1.0), training])
    assert history.history["batch_size"] == [8, 16, 32, 32]
    assert training.bounds.updates and any(history.history["error_bounds"])
    assert 0 < training.bounds.gradient_error < 0.25


def test_a_batch_knows_the_error_of_the_gradients():
    """Where the law says that the bounds hardly matter a stall does not tighten them."""
    scales = []
    for tolerance, limits in ((0.2, (0.5, 0.5)), (0.01, (1e-6, 0.01))):
        model = network()
        training = ct.AdaptiveTraining(HUGE, hold=4, max_batch=16, tolerance=tolerance, verbose=0)
        training.bounds = ct.AdaptiveErrorBound(8, tolerance=tolerance, warmup=0, limits=limits)
        flat = [1.0, 1.01, 1.0, 1.01, 1.0, 1.01]
        model.fit(data(), epochs=6, verbose=0, callbacks=[Losses(*flat), training])
        scales.append([decision.action for decision in training.batch.decisions][-1])
    assert scales == ["tighten", "grow"]


def test_the_error_follows_the_scale_of_the_bounds():
    model = network()
    training = ct.AdaptiveTraining(HUGE, max_batch=8, interval=1000, verbose=0)
    training.bounds = ct.AdaptiveErrorBound(1000, warmup=0)
    model.fit(data(), epochs=1, verbose=0, callbacks=[training])
    before = training.bounds.gradient_error
    instrumentation(model).scale_bounds(0.5)
    assert training.bounds.gradient_error == pytest.approx(before / 2)


def test_short_of_memory_bounds_loosen_before_the_batch_is_lowered(monkeypatch):
    model = network()
    training = ct.AdaptiveTraining(HUGE, max_batch=8, verbose=0)
    training.bounds = ct.AdaptiveErrorBound(1000, warmup=0, limits=(1e-6, 0.01))
    peaks = iter([HUGE // 2] * 12 + [HUGE + 1] + [HUGE // 2] * 99)
    monkeypatch.setattr(training.batch._peak, "read", lambda: next(peaks))
    monkeypatch.setattr(training.batch._peak, "stop", lambda: HUGE // 2)
    model.fit(data(), epochs=2, verbose=0, callbacks=[training])
    assert "loosen" in [decision.action for decision in training.batch.decisions]
    assert training.batch.decisions[-1].batch == 8


@pytest.fixture
def determinism():
    tf.config.experimental.enable_op_determinism()
    yield
    config.disable_op_determinism()


def test_a_restart_goes_on_as_if_nothing_had_happened(determinism, tmp_path):

    class Stop(Exception):
        pass

    class Stops(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if int(self.model.optimizer.iterations) == 14:
                raise Stop

    def training():
        return ct.AdaptiveTraining("1TB", max_batch=32, hold=2, interval=4, verbose=0)

    def fit(model, callbacks, folder):
        settings = {"batch_size": 8, "epochs": 5, "snapshot_every": 3, "verbose": 0}
        return ct.fit(model, *arrays(), callbacks=callbacks, checkpoint_dir=folder, **settings)

    whole, again = network(), network()
    expected = fit(whole, [training()], tmp_path / "whole")
    with pytest.raises(Stop):
        fit(network(), [training(), Stops()], tmp_path / "stopped")
    steered = training()
    found = fit(again, [steered], tmp_path / "stopped")
    assert steered.batch._state.batch > 8 and steered.bounds.updates
    assert found.history["batch_size"][-1] == expected.history["batch_size"][-1]
    for ours, theirs in zip(again.get_weights(), whole.get_weights()):
        np.testing.assert_array_equal(ours, theirs)


class Silent(keras.Model):
    """Logs no loss."""

    def train_step(self, batch):
        super().train_step(batch)
        return {"other": tf.constant(1.0)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "`memory` is missing"),
        ({"memory": "much"}, "`memory` must be"),
        ({"memory": HUGE, "max_batch": 2, "min_batch": 4}, "`max_batch` must be at least"),
        ({"memory": HUGE, "tolerance": 0}, "`tolerance` must be"),
        ({"memory": HUGE, "hold": 0}, "`hold` must be"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        ct.AdaptiveTraining(**options)


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        (lambda: data().map(lambda x, y: (x, y)), {}, "elastic_batch"),
        (data, {"memory": 1000}, "`limit_bytes` must be above"),
        (data, {"max_batch": 4}, "`max_batch` must be at least the batch size that training begins with"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_changed(dataset, options, message):
    held = tf.ones(1 << 20)  # in use already
    model = network()
    with pytest.raises(ValueError, match=message):
        model.fit(dataset(), verbose=0, callbacks=[ct.AdaptiveTraining(**{"memory": HUGE, **options})])
    assert instrumentation(model).collecting is None
    assert int(model.optimizer.iterations) == 0
    del held


def test_fewer_samples_than_replicas(monkeypatch):
    model = network()
    strategy = type("Strategy", (), {"num_replicas_in_sync": 9})()
    monkeypatch.setattr(type(model), "distribute_strategy", property(lambda self: strategy), raising=False)
    tuner = ct.AdaptiveBatchSize(HUGE)
    tuner.set_model(model)
    with pytest.raises(ValueError, match="`batch_size` must be at least a sample for each of the 9 replicas"):
        tuner._check_start(8)


def test_a_loss_that_is_not_logged_is_named():
    model = network(Silent)
    with pytest.raises(ValueError, match="steers by the logs' `loss`.*Received logs of: other"):
        model.fit(data(), verbose=0, callbacks=[ct.AdaptiveTraining(HUGE)])


@pytest.mark.long
def test_under_xla_sizes_are_few():
    """Each size is compiled anew: growth is by a quarter at least."""
    model = network()
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=True)
    training = ct.AdaptiveTraining(HUGE, hold=1, max_batch=32, verbose=0)
    history = model.fit(data(), epochs=4, verbose=0, callbacks=[Losses(4.0, 3.0, 2.0, 1.0), training])
    assert model.jit_compile and history.history["batch_size"] == [8, 16, 32, 32]
