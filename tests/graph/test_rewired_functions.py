"""Gradients of functions, rewired: what they read is held, and they are as plain has them."""

import numpy as np
import pytest
import tensorflow as tf
from needs_xla import needs_xla
from steps import Weights, compressed_gradients, plain_gradients
from tensorflow import keras

import tf_comptrain as ct

RNG = np.random.default_rng(0)
X = tf.constant(RNG.normal(size=(8, 12, 12, 16)), tf.float32)
FLAT = tf.reshape(X, [8, -1, 16])
MEANS = tf.constant(RNG.normal(size=(8, 144, 1)), tf.float32)


# name: (function of an activation, operations of its gradient that read a forward tensor)
CASES = {
    "matmul": (lambda x: tf.matmul(tf.tanh(x), x, transpose_b=True)[:, :, :16], ["BatchMatMulV2"]),
    "einsum": (lambda x: tf.einsum("abc,abd->acd", x, tf.tanh(x)), ["Einsum"]),
    "product": (lambda x: tf.sin(x) * tf.cos(x), ["Mul"]),
    "quotient": (lambda x: x / (2.0 + tf.reduce_sum(x * x, -1, keepdims=True)), ["RealDiv"]),
    "no_nan_quotient": (lambda x: tf.math.divide_no_nan(x, tf.reduce_sum(x * x, -1, keepdims=True)), ["DivNoNan"]),
    "tanh": (tf.tanh, ["TanhGrad"]),
    "sigmoid": (tf.sigmoid, ["SigmoidGrad"]),
    "softplus": (tf.nn.softplus, ["Mul"]),
    "softsign": (tf.nn.softsign, ["SoftsignGrad"]),
    "elu": (tf.nn.elu, ["EluGrad"]),
    "selu": (tf.nn.selu, ["SeluGrad"]),
    "relu": (tf.nn.relu, ["ReluGrad"]),
    "relu6": (tf.nn.relu6, ["Relu6Grad"]),
    "leaky_relu": (tf.nn.leaky_relu, ["LeakyReluGrad"]),
    "sqrt": (lambda x: tf.sqrt(x * x + 1.0), ["SqrtGrad"]),
    "rsqrt": (lambda x: tf.math.rsqrt(x * x + 1.0), ["RsqrtGrad"]),
    "reciprocal": (lambda x: tf.math.reciprocal(x * x + 1.0), ["ReciprocalGrad"]),
    "where": (lambda x: tf.where(x > 0.1, tf.sin(x), x * 0.5), ["SelectV2"]),
    "gelu": (tf.nn.gelu, ["Mul"]),
    "exact_gelu": (lambda x: tf.nn.gelu(x, approximate=False), ["Mul"]),
    "softmax": (lambda x: tf.nn.softmax(3.0 * x) * x, ["Mul"]),
    "log_softmax": (tf.nn.log_softmax, ["Mul"]),
    "power": (lambda x: tf.pow(x, 3.0), ["Mul"]),
    "maximum": (lambda x: tf.maximum(x, 0.3 * x * x), ["SelectV2"]),
    "largest": (lambda x: tf.reduce_max(x, 1), ["Mul"]),
    "absolute": (tf.abs, ["Mul"]),
    "logarithm": (lambda x: tf.math.log(x * x + 1.0), ["Mul"]),
    "layer_norm": (
        lambda x: x * tf.math.rsqrt(tf.math.reduce_variance(x, -1, keepdims=True) + 1e-3),
        ["Mul", "RsqrtGrad"],
    ),
}  # fmt: skip
IMAGES = {
    "convolution": (lambda x, k: tf.nn.conv2d(x, k, 1, "SAME"), [3, 3, 16, 4], ["Conv2DBackpropFilter"]),
    "transposed": (
        lambda x, k: tf.nn.conv2d_transpose(x, k, [8, 24, 24, 4], 2),
        [3, 3, 4, 16],
        ["Conv2DBackpropFilter"],
    ),
    "depthwise": (
        lambda x, k: tf.nn.depthwise_conv2d(x, k, [1, 1, 1, 1], "SAME"),
        [3, 3, 16, 1],
        ["DepthwiseConv2dNativeBackpropFilter"],
    ),
    "3d": (
        lambda x, k: tf.nn.conv3d(x[:, None], k, [1] * 5, "SAME"),
        [1, 3, 3, 16, 4],
        ["Conv3DBackpropFilterV2"],
    ),
    "max_pool": (lambda x, k: tf.nn.max_pool2d(tf.sin(x) * k, 2, 2, "SAME"), [1], ["MaxPoolGrad"]),
    "argmax": (
        lambda x, k: tf.nn.max_pool_with_argmax(tf.sin(x) * k, 2, 2, "SAME")[0],
        [1],
        ["MaxPoolGradWithArgmax"],
    ),
    "bilinear": (lambda x, k: tf.image.resize(tf.sin(x) * k, [24, 24]), [1], ["ResizeBilinearGrad"]),
    "bicubic": (lambda x, k: tf.image.resize(tf.sin(x) * k, [24, 24], "bicubic"), [1], ["ResizeBicubicGrad"]),
    "batch_norm": (
        lambda x, k: tf.compat.v1.nn.fused_batch_norm(tf.sin(x), k, k)[0],
        [16],
        ["FusedBatchNormGradV3"],
    ),
}


def check(function, x, weights, expected):
    found = compressed_gradients(function, x, weights, codec="zvc")
    types = {op.type for op in found.graph.get_operations()}
    replaced = {"ReluGrad", "Relu6Grad", "LeakyReluGrad"}  # by what reads one bit per element
    assert set(expected) <= types | replaced
    for ours, plain in zip(found.gradients, plain_gradients(function, x, weights)):
        np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-5 * np.abs(plain).max() + 1e-12)
    return found


def followed(h, scale):
    """A loss that makes more behind h than h is: what the backward pass does not begin with is held."""
    wide = tf.tile(tf.reshape(h, [8, -1]), [1, 8])
    return tf.reduce_sum(tf.tanh(wide * tf.reduce_mean(scale)))


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_elementwise_functions(name):
    function, expected = CASES[name]
    found = check(
        lambda x, w, scale: followed(function(tf.matmul(x, w)), scale),
        FLAT,
        Weights([16, 16], [16]),
        expected,
    )
    if name != "largest":  # so small that next to nothing is made after it
        assert any(row.storage != "keep" for row in found.crossings)


@pytest.mark.parametrize("name", IMAGES)
def test_gradients_of_layers_on_images(name):
    function, shape, expected = IMAGES[name]
    check(lambda x, w, k: followed(function(tf.matmul(x, w), k), w), X, Weights([16, 16], shape), expected)


def test_an_unknown_operation_keeps_its_input_and_is_named():
    found = check(
        lambda x, w, scale: followed(tf.math.lgamma(1.0 + tf.exp(tf.tanh(tf.matmul(x, w)))), scale),
        FLAT,
        Weights([16, 16], [16]),
        ["Digamma"],
    )
    kept = [row for row in found.crossings if "Digamma" in row.readers]
    assert kept and all(row.storage == "keep" and "Digamma" in row.note for row in kept)


@pytest.mark.parametrize("name", ["matmul", "tanh", "gelu", "softmax", "layer_norm", "product"])
def test_lossy_streams_stay_close(name):
    function, _ = CASES[name]

    def loss(x, w, scale):
        return followed(function(tf.matmul(x, w)), scale)

    found = compressed_gradients(loss, FLAT, Weights([16, 16], [16]))
    assert any(row.storage == "compress" for row in found.crossings)
    for ours, plain in zip(found.gradients, plain_gradients(loss, FLAT, Weights([16, 16], [16]))):
        assert np.linalg.norm(ours - plain) < 0.15 * np.linalg.norm(plain)


@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=needs_xla)])
@pytest.mark.parametrize("function", [tf.sin, tf.cos, tf.nn.elu, tf.nn.selu])
def test_gradients_of_functions_of_wide_arguments(function, jit_compile):
    """An error of a sine's argument is one of several turns; one of what an ELU makes hides all below zero."""

    def features(x, first, second):
        return tf.reduce_mean(tf.square(tf.matmul(function(tf.matmul(x, 60.0 * first)), second) - 1.0))

    shapes = [16, 64], [64, 16]
    found = compressed_gradients(features, FLAT, Weights(*shapes), {"jit_compile": jit_compile})
    for ours, plain in zip(found.gradients, plain_gradients(features, FLAT, Weights(*shapes), traced=True)):
        assert np.linalg.norm(ours - plain) <= 0.1 * np.linalg.norm(plain)


@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=needs_xla)])
@pytest.mark.parametrize("reduce", [tf.reduce_max, tf.reduce_min])
def test_which_value_was_the_largest_is_held_as_bits(reduce, jit_compile):
    def pooled(x, first, second):
        values = tf.matmul(tf.repeat(x, 8, axis=1), first)
        return tf.reduce_mean(tf.square(tf.matmul(reduce(values, 1), second)))

    shapes = [16, 64], [64, 16]
    found = compressed_gradients(pooled, FLAT, Weights(*shapes), {"jit_compile": jit_compile})
    plain = plain_gradients(pooled, FLAT, Weights(*shapes), traced=True)
    np.testing.assert_allclose(found.gradients[0], plain[0], rtol=1e-4, atol=1e-5 * np.abs(plain[0]).max())
    assert "Equal" in {row.op_type for row in found.crossings if row.storage == "bitmask"}


@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=needs_xla)])
def test_a_choice_among_activations_is_made_again(jit_compile):
    """Straight through: zeros and ones of a choice have no error, whatever the shares that it is made of have."""

    def chosen(x, first, second):
        shares = tf.nn.softmax(tf.matmul(x, first))
        one_hot = tf.one_hot(tf.argmax(shares, -1), 64)
        return tf.reduce_mean(tf.square(tf.matmul(shares + tf.stop_gradient(one_hot - shares), second) - 1.0))

    shapes = [16, 64], [64, 16]
    found = compressed_gradients(chosen, FLAT, Weights(*shapes), {"jit_compile": jit_compile})
    plain = plain_gradients(chosen, FLAT, Weights(*shapes), traced=True)
    np.testing.assert_allclose(found.gradients[1], plain[1], rtol=1e-4, atol=1e-5 * np.abs(plain[1]).max())
    assert {row.op_type: row.storage for row in found.crossings}["ArgMax"] == "keep"


@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=needs_xla)])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_normalizations_of_what_broadcasting_makes(offset, jit_compile):
    """Their means and variances have the error of what they are of: another one would not cancel."""

    def normalized(x, first, second):
        h = tf.matmul(x[:, :32], first) + offset
        wide = h[:, :16, None] + h[:, None, 16:]
        mean, variance = tf.nn.moments(wide, -1, keepdims=True)
        rows = (wide - mean) * tf.math.rsqrt(variance + 1e-3)
        return tf.reduce_mean(tf.square(tf.matmul(rows, second) - 1.0))

    shapes = [16, 64], [64, 16]
    found = compressed_gradients(normalized, FLAT, Weights(*shapes), {"jit_compile": jit_compile})
    for ours, plain in zip(found.gradients, plain_gradients(normalized, FLAT, Weights(*shapes), traced=True)):
        assert np.linalg.norm(ours - plain) <= 0.1 * np.linalg.norm(plain)


@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=needs_xla)])
def test_what_is_made_of_normalized_rows_with_means_of_their_own(jit_compile):
    """An error of such a row, relative to the rows' scale, would hide all that a normalization leaves of it."""

    def gradients_of(compressed):
        keras.utils.set_random_seed(0)
        inputs = keras.Input((144, 17))
        x = keras.layers.Dense(64, trainable=False)(inputs)
        x = keras.layers.LayerNormalization()(x + 100.0 * inputs[..., 16:])
        model = keras.Model(inputs, keras.layers.Dense(8)(x))
        if compressed:
            ct.compress_model(model)

        @tf.function(jit_compile=jit_compile)
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x, training=True) - x[..., :8]))
            return tape.gradient(loss, model.trainable_variables)

        return step(tf.concat([FLAT, MEANS], -1))

    kernel, true_kernel = gradients_of(True)[2], gradients_of(False)[2]
    assert np.linalg.norm(kernel - true_kernel) <= 0.1 * np.linalg.norm(true_kernel)


def test_a_shape_is_read_of_no_value():
    """The gradient of a convolution asks for the shape of its input, and reads the input besides."""
    found = check(
        lambda x, w, k: followed(tf.nn.conv2d(tf.tanh(tf.matmul(x, w)), k, 1, "SAME"), w),
        X,
        Weights([16, 16], [3, 3, 16, 16]),
        ["Conv2DBackpropFilter"],
    )
    read = [row for row in found.crossings if "Conv2DBackpropFilter" in row.readers]
    assert [row.storage for row in read] == ["compress"]
    assert not any("ShapeN" in row.readers for row in found.crossings)


@pytest.mark.parametrize("jit", [False, True], ids=["executor", "XLA"])
def test_a_gradient_that_assigns(jit):
    """As statistics of a normalization are in a forward pass that the backward pass runs again."""
    count = tf.Variable(tf.zeros([16]))

    @tf.custom_gradient
    def counted(x):
        def gradient(dy):
            count.assign_add(tf.reduce_sum(tf.abs(dy), [0, 1]))
            return dy

        return tf.identity(x), gradient

    def loss(x, kernel):
        return tf.reduce_mean(tf.sin(counted(tf.matmul(x, kernel))) * tf.range(16.0))

    model = Weights([16, 16])
    plain = plain_gradients(loss, FLAT, model)
    before = count.numpy()
    found = compressed_gradients(loss, FLAT, model, {"jit_compile": jit}, error_bound=1e-4, check=False)
    np.testing.assert_allclose(found.gradients[0], plain[0], rtol=0.05, atol=1e-3)
    np.testing.assert_allclose(count.numpy() - before, before, rtol=1e-3)
