"""Which calls belong to a training step, and what layers are told in it."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
from models import compiled, images, layers, small_cnn
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain import rules
from tf_comptrain.compression.instrumentation import instrumentation

X, Y = images(8)
TIGHT = 1e-6


def held(model):
    return {name for name, site in instrumentation(model).sites().items() if site.read_state().stream_bytes}


def untold_gradients(model):
    """Of a loop that passes no `training=`: dropout is off, and a normalization uses its moving statistics."""

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x=x, y=y, y_pred=model(x))
        return tape.gradient(loss, model.trainable_variables)

    return [gradient.numpy() for gradient in step(tf.constant(X), tf.constant(Y))]


@pytest.mark.parametrize("scope", [None, True, False])
def test_layers_compute_what_keras_has_them_compute(scope):
    model = compiled(small_cnn())
    plain = untold_gradients(model)
    ct.compress_model(model, error_bound=TIGHT)
    with contextlib.nullcontext() if scope is None else ct.training_scope(scope):
        ours = untold_gradients(model)
    assert bool(held(model)) == (scope is not False)
    for a, b in zip(ours, plain):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


class Critic(keras.Model):
    """A train step of its own that tells the inner model nothing."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def train_step(self, data):
        x, y = data[:2]
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self.inner(x))
        variables = self.inner.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return {"loss": loss}


def test_a_train_step_of_the_model_is_one_whatever_it_passes():
    model = compiled(Critic(small_cnn()))
    ct.compress_model(model)
    model.fit(X, Y, verbose=0)
    assert held(model)


def test_a_gradient_penalty_by_a_plain_call():
    class Penalty(Critic):
        def compute_loss(self, x=None, y=None, y_pred=None, **kwargs):
            with ct.training_scope(False), tf.GradientTape() as tape:
                tape.watch(x)
                slope = self.inner(x)
            penalty = tf.reduce_sum(tf.square(tape.gradient(slope, x)))
            return penalty + super().compute_loss(x=x, y=y, y_pred=y_pred, **kwargs)

    model = compiled(Penalty(small_cnn()))
    ct.compress_model(model)
    assert np.isfinite(model.train_on_batch(X, Y))
    assert held(model)


class FrozenPart(keras.Model):
    """What follows a layer that was called with training=False is told the same by Keras."""

    def __init__(self):
        super().__init__()
        self.drop, self.conv = layers.Dropout(0.5), layers.Conv2D(8, 3, activation="tanh", name="conv")
        self.pool, self.head = layers.GlobalAveragePooling2D(), layers.Dense(10)

    def call(self, x):
        return self.head(self.pool(self.conv(self.drop(x, training=False))))


def test_what_follows_a_layer_in_inference_is_held_too():
    model = compiled(FrozenPart())
    ct.compress_model(model)
    model.fit(X, Y, verbose=0)
    assert any("/conv_" in name for name in held(model))


class Drops(layers.Layer):
    """No `training` argument of its own: only Keras' context tells the inner layer."""

    def __init__(self):
        super().__init__(name="drops")
        self.conv, self.drop = layers.Conv2D(8, 3), layers.Dropout(0.5, seed=3)

    def call(self, x):
        return self.drop(self.conv(x))


def trained(way, eager):
    keras.utils.set_random_seed(0)
    block = ct.Recompute(Drops()) if way == "recompute" else Drops()
    parts = [keras.Input(X.shape[1:]), block, layers.GlobalAveragePooling2D(), layers.Dense(10)]
    model = compiled(keras.Sequential(parts), run_eagerly=eager)
    if way == "rule":
        ct.compress_model(model, error_bound=TIGHT)
    model.fit(X, Y, verbose=0)
    return model


@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
@pytest.mark.parametrize("way", ["rule", "recompute"])
def test_the_second_run_is_told_what_the_first_was(way, eager, monkeypatch):
    monkeypatch.setattr(rules.base, "_RULES", dict(rules.base._RULES))
    ct.register_rule(Drops)(ct.rules.FromInput())
    ours = trained(way, eager)
    assert way != "rule" or [name.partition("/")[2] for name in held(ours)] == ["input"]
    for a, b in zip(ours.get_weights(), trained("plain", eager).get_weights()):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_unfreezing_is_noticed():
    model = small_cnn()
    model.get_layer("conv2").trainable = False
    ct.compress_model(compiled(model))
    model.fit(X, Y, verbose=0)
    assert not any("relu1" in name for name in held(model))
    model.get_layer("conv2").trainable = True
    compiled(model).fit(X, Y, verbose=0)
    assert any("relu1" in name for name in held(model))
