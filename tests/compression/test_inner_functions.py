"""Layers, losses and steps that users decorate with `tf.function` are held as those without it."""

import numpy as np
import pytest
import tensorflow as tf
from models import images
from tensorflow import keras

import tf_comptrain as ct

layers = keras.layers
FILTERS = 8


class Block(layers.Layer):
    """A convolution and a normalization; `decorate` is what becomes of the function that runs them."""

    def __init__(self, decorate):
        super().__init__()
        self.convolution = layers.Conv2D(FILTERS, 3, padding="same", activation="gelu")
        self.normalization = layers.BatchNormalization()
        self._run = decorate(self._forward)

    def build(self, shape):
        self.convolution.build(shape)
        self.normalization.build((*shape[:-1], FILTERS))

    def _forward(self, x, training):
        return self.normalization(self.convolution(x), training=training)

    def call(self, x, training=None):
        return self._run(x, training)

    def compute_output_shape(self, shape):
        return (*shape[:-1], FILTERS)


def trained(decorate, compress, jit_compile=False, loss_decorated=lambda loss: loss):
    """(losses of three steps, weights, report)"""
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((16, 16, 3))
    for _ in range(2):
        x = Block(decorate)(x)
    model = keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def total(y, p):
        return loss(y, p)

    model.compile("sgd", loss_decorated(total), jit_compile=jit_compile)
    report = ct.compress_model(model, error_bound=1e-4) if compress else None
    x, y = images(16)
    found = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]
    return found, model.get_weights(), report


@pytest.mark.parametrize("jit_compile", [False, True], ids=["executor", "XLA"])
def test_a_decorated_layer_is_held_as_one_that_is_not(jit_compile):
    plain, weights, _ = trained(tf.function, False, jit_compile)
    ours, found, report = trained(tf.function, True, jit_compile)
    _, _, other = trained(lambda function: function, True, jit_compile)
    np.testing.assert_allclose(ours, plain, rtol=1e-4)
    for a, b in zip(found, weights):
        np.testing.assert_allclose(a, b, atol=2e-4)
    rows, others = (
        sorted((row.layer_class, row.shape, row.storage) for row in one.rows) for one in (report, other)
    )
    assert rows == others
    assert any(row.storage == "compress" for row in report.rows)


def test_a_decorated_loss():
    plain, _, _ = trained(lambda function: function, False, loss_decorated=tf.function)
    ours, _, report = trained(lambda function: function, True, loss_decorated=tf.function)
    np.testing.assert_allclose(ours, plain, rtol=1e-4)
    assert not any("PartitionedCall" in row.layer_class for row in report.rows)


def test_what_is_compiled_by_itself_is_kept_and_says_so():
    def compiled_apart(function):
        return tf.function(function, jit_compile=True)

    plain, _, _ = trained(compiled_apart, False)
    ours, _, report = trained(compiled_apart, True)
    np.testing.assert_allclose(ours, plain, rtol=1e-4)
    inside = [row for row in report.rows if "PartitionedCall" in row.layer_class]
    assert inside and all(row.storage == "keep" and "tf.function of its own" in row.note for row in inside)


def test_a_loop_of_ones_own():
    """The forward pass is a function under the tape."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((16, 16, 3)), layers.Conv2D(16, 3, activation="gelu"), layers.Flatten()]
    )
    forward = tf.function(lambda x: tf.reduce_mean(model(x, training=True) ** 2))
    x, _ = images(8)

    @tf.function
    def gradient(x):
        with tf.GradientTape() as tape:
            loss = forward(x)
        return tape.gradient(loss, [v.value for v in model.trainable_variables])

    plain = tf.function(gradient.python_function)(x)
    report = ct.compress_model(model)
    ours = gradient(x)
    assert any(row.storage == "compress" for row in report.rows)
    for a, b in zip(ours, plain):
        assert 0 < tf.norm(a - b) < 0.1 * tf.norm(b)
