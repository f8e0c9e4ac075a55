"""Channels that are several dimensions have a scale each; what a mean multiplies sums to zero, as in plain Keras."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.graph.held.channels import channel_dimensions

SAMPLES, STEPS, HEADS, SIZE = 8, 64, 4, 16
WIDTH = HEADS * SIZE
RNG = np.random.default_rng(0)
ENGINES = pytest.mark.parametrize("jit", [False, True], ids=["executor", "XLA"])


def errors(build, x, jit, **how):
    """Of each weight's gradient at the default bounds, by path; plain runs eagerly, in less time than a trace."""

    def gradients(model, run):
        @run
        def step(x):
            with tf.GradientTape() as tape:
                y = model(x, training=True)
                loss = tf.reduce_mean(tf.sin(y) * tf.range(1.0 * y.shape[-1]) / y.shape[-1])
            return tape.gradient(loss, model.trainable_variables)

        return [gradient.numpy() for gradient in step(tf.constant(x, tf.float32))]

    keras.utils.set_random_seed(0)
    model = build()
    plain = gradients(model, lambda step: step)
    ct.compress_model(model, check=False, **how)
    ours = gradients(model, tf.function(jit_compile=jit))
    found = zip(model.trainable_variables, ours, plain)
    return {v.path: np.linalg.norm(a - b) / np.linalg.norm(b) for v, a, b in found}


def attention(part, scale):
    """With a bias of keys or values, as pretrained weights have large ones."""

    def build():
        inputs = keras.Input((STEPS, WIDTH))
        layer = keras.layers.MultiHeadAttention(HEADS, SIZE, flash_attention=False, name="attention")
        made = keras.layers.LayerNormalization()(inputs + layer(inputs, inputs))
        bias = getattr(layer, f"_{part}_dense").bias
        bias.assign(scale * np.random.default_rng(1).normal(size=bias.shape))
        return keras.Model(inputs, keras.layers.Dense(8)(made))

    return build


SEQUENCES = RNG.normal(size=(SAMPLES, STEPS, WIDTH))


@functools.lru_cache
def errors_without_a_bias(jit):
    return errors(attention("key", 0), SEQUENCES, jit)


@ENGINES
@pytest.mark.parametrize("part", ["key", "value"])
def test_keys_and_values_with_a_mean(part, jit):
    """A softmax does not see the mean of the keys, nor may the gradients."""
    small, large = errors_without_a_bias(jit), errors(attention(part, 30), SEQUENCES, jit)
    kernels = [path for path in small if path.endswith(("query/kernel", "key/kernel"))]
    assert len(kernels) == 2
    for path in kernels:
        assert large[path] < 1.5 * small[path] < 0.3


@ENGINES
@pytest.mark.parametrize("groups", [-1, 8])
def test_groups_of_a_normalization(groups, jit):
    def build():
        inputs = keras.Input((12, 12, 32))
        x = keras.layers.Conv2D(32, 1, use_bias=False)(inputs)
        x = keras.layers.ReLU()(keras.layers.GroupNormalization(groups)(x))
        return keras.Model(inputs, keras.layers.Conv2D(8, 3)(x))

    x = 1 + RNG.random(32) + 0.05 * RNG.normal(size=(SAMPLES, 12, 12, 32))
    kernel, gamma = list(errors(build, x, jit).values())[:2]
    assert kernel < 0.1 and gamma < 0.1


@ENGINES
def test_a_batch_normalization_has_its_own_channels(jit):
    """As a generator begins: what one product makes is an image, and its last dimension is normalized."""

    def build():
        inputs = keras.Input((16,))
        image = keras.layers.Reshape((8, 8, 16))(keras.layers.Dense(8 * 8 * 16)(inputs))
        x = keras.layers.ReLU()(keras.layers.BatchNormalization()(image))
        return keras.Model(inputs, keras.layers.Conv2DTranspose(8, 4, strides=2)(x))

    found = errors(build, RNG.normal(size=(32, 16)), jit, error_bound=ct.ErrorBound(0.01))
    assert len(found) == 6 and max(found.values()) < 0.02


def traced(function, *shapes):
    made = []

    def run(*inputs):
        made.append(function(*inputs))
        return made

    tf.function(run, autograph=False).get_concrete_function(*(tf.TensorSpec(shape) for shape in shapes))
    return made[0]


@pytest.mark.parametrize(
    "function, count",
    [
        (lambda x, w: tf.einsum("btc,cnh->btnh", x, w), 2),
        (lambda x, w: 2 * tf.einsum("btc,cnh->btnh", x, w) + 1, 2),
        (lambda x, w: tf.einsum("btc,cnh->bnth", x, w), 1),
        (lambda x, w: tf.einsum("btc,cnh->bnht", x, w), 1),
        (lambda x, w: tf.reshape(tf.matmul(x, w[:, 0]), [-1, 8, 4, 4]), 2),
        (lambda x, w: tf.reshape(tf.matmul(x, w[:, 0]), [-1, 2, 64]), 1),
        (lambda x, w: tf.matmul(x, w[:, 0]), 1),
        (lambda x, w: x, 1),
    ],
    ids=["heads", "scaled", "steps_last_but_one", "steps_last", "reshaped", "other_sizes", "matrix", "input"],
)
def test_dimensions_of_channels(function, count):
    weights = tf.Variable(tf.ones([32, 4, 16]))
    assert channel_dimensions(traced(lambda x: function(x, weights), [None, 8, 32])) == count


def test_a_tensor_that_is_read_many_times_is_looked_at_once():
    def doubled(x):
        for _ in range(28):  # 2^28 ways back
            x = x * tf.sigmoid(x)
        return x

    weights = tf.Variable(tf.ones([32, 4, 16]))
    made = traced(lambda x: doubled(tf.einsum("btc,cnh->btnh", x, weights)), [None, 8, 32])
    assert channel_dimensions(made) in (1, 2)
