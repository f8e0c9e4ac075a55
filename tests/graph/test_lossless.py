"""Lossless training: what runs again instead of being held is the operation itself."""

import math

import numpy as np
import pytest
import tensorflow as tf
from steps import Weights, compressed_gradients, plain_gradients
from tensorflow import keras

import tf_comptrain as ct
from tests.needs_xla import needs_xla

RNG = np.random.default_rng(0)
X = tf.constant(RNG.normal(size=(8, 32, 16)), tf.float32)
IMAGES = tf.constant(RNG.normal(size=(4, 16, 16, 16)), tf.float32)


def two_products(x, first, second):
    return tf.reduce_mean(tf.square(tf.matmul(tf.nn.gelu(tf.matmul(x, first)), second)))


def two_convolutions(x, first, second):
    wide = tf.nn.gelu(tf.nn.conv2d(x, first, 1, "SAME"))
    return tf.reduce_mean(tf.square(tf.nn.conv2d(wide, second, 1, "SAME")))


def transposed_convolution(x, first, second):
    wide = tf.nn.gelu(tf.nn.conv2d_transpose(x, first, (4, 32, 32, 16), 2))
    return tf.reduce_mean(tf.square(tf.nn.conv2d(wide, second, 2, "SAME")))


CASES = {
    "product": (two_products, X, ([16, 64], [64, 16]), ([16, 16], [16, 16])),
    "convolution": (two_convolutions, IMAGES, ([1, 1, 16, 64], [1, 1, 64, 16]), ([1, 1, 16, 16], [1, 1, 16, 16])),
    "transposed": (transposed_convolution, IMAGES, ([2, 2, 16, 16], [1, 1, 16, 16]), None),
}  # fmt: skip
ENGINES = [False, pytest.param(True, marks=needs_xla)]


def assert_close(ours, plain):
    for a, b in zip(ours, plain):
        assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(b)


def held_elements(found):
    return max((math.prod(row.shape) for row in found.crossings), default=0)


@pytest.mark.parametrize("jit_compile", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_a_product_of_more_values_than_it_reads_runs_again(case, jit_compile):
    loss, x, wide, narrow = CASES[case]
    found = compressed_gradients(loss, x, Weights(*wide), {"jit_compile": jit_compile}, codec="zvc")
    assert held_elements(found) < 2 * tf.size(x)
    assert_close(found.gradients, plain_gradients(loss, x, Weights(*wide)))
    if narrow is not None:
        found = compressed_gradients(loss, x, Weights(*narrow), codec="zvc")
        assert held_elements(found) == tf.size(x)  # of the product


def test_with_an_error_it_is_held():
    loss, x, wide, _ = CASES["product"]
    assert held_elements(compressed_gradients(loss, x, Weights(*wide))) == 4 * tf.size(x)


def network():
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((16, 16, 8))
    for _ in range(2):
        y = keras.layers.Conv2D(32, 1, use_bias=False)(x)
        y = keras.layers.ReLU()(keras.layers.BatchNormalization()(y))
        y = keras.layers.DepthwiseConv2D(3, padding="same", use_bias=False)(y)
        y = keras.layers.ReLU()(keras.layers.BatchNormalization()(y))
        y = keras.layers.Conv2D(8, 1, use_bias=False)(y)
        x = keras.layers.Add()([x, keras.layers.BatchNormalization()(y)])
    return keras.Model(inputs, keras.layers.Dense(4)(keras.layers.GlobalAveragePooling2D()(x)))


@pytest.mark.parametrize("jit_compile", ENGINES)
def test_batch_normalizations_run_again(jit_compile):
    x, y = RNG.normal(size=(32, 16, 16, 8)).astype("float32"), RNG.integers(0, 4, 32)
    losses = []
    for codec in (None, "zvc"):
        model = network()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, jit_compile=jit_compile)
        if codec is not None:
            ct.compress_model(model, codec=codec)
        losses.append(model.fit(x, y, batch_size=16, epochs=4, shuffle=False, verbose=0).history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-5)
    rows = ct.report(model).rows
    made = {row.layer_class for row in rows}
    assert "FusedBatchNormV3" not in made and "Conv2D" in made
    # Of each block the sum before it, and what the depthwise and the second convolution make.
    values = sum(math.prod(row.shape) for row in rows if row.storage != "bitmask")
    assert values <= 2 * (8 + 32 + 8) * 256
