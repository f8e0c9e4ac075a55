"""The gradient of batch normalization from a stream, against plain Keras and TensorFlow."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain import codecs, native

PLANE = codecs.get("plane")
SHAPES = [(8, 9, 9, 64), (4, 7, 7, 24), (40, 1000), (6, 50, 32), (2, 3, 4, 5, 7), (1, 1, 1, 40)]
TOLERANCES = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 2e-3}


def arguments(shape, dtype, bound, codec=PLANE):
    """The stream of a random x and what else the op reads; and x itself."""
    random = np.random.default_rng(sum(shape))
    channels = shape[-1]
    spread = random.uniform(0.5, 3, channels)
    x = tf.cast(random.normal(size=shape) * spread + random.normal(size=channels), dtype)
    dy = tf.cast(random.normal(size=shape) + 0.2, dtype)
    state = tf.constant(codecs.State(bound_set=bound))
    _, stream, _ = codec.compress(x, state, relative_bound=0.1, mid_rise=False)
    axes = list(range(len(shape) - 1))
    mean, variance = tf.nn.moments(tf.cast(x, tf.float32), axes)
    gamma = tf.cast(random.uniform(0.5, 2, channels), tf.float32)
    return x, (stream, dy, gamma, mean, tf.math.rsqrt(variance + 1e-3))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("name", ["plane", "rans"])
def test_matches_keras(shape, dtype, name):
    codec = codecs.get(name)
    x, (stream, dy, gamma, mean, inv_std) = arguments(shape, dtype, 1e-6, codec)
    layer = keras.layers.BatchNormalization(dtype="float32")
    layer.build(shape)
    layer.gamma.assign(gamma)
    x32 = tf.cast(x, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(x32)
        y = layer(x32, training=True)
    variables = [x32, layer.gamma, layer.beta]
    expected = tape.gradient(y, variables, output_gradients=tf.cast(dy, tf.float32))
    for got, want in zip(codec.batch_norm_gradient(stream, dy, gamma, mean, inv_std), expected, strict=True):
        scale = max(1e-3, float(tf.reduce_max(tf.abs(want))))
        np.testing.assert_allclose(tf.cast(got, tf.float32), want, atol=TOLERANCES[dtype] * scale)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["plane", "rans", "zvc", "auto"])
def test_matches_decoding_first(shape, name):
    codec = codecs.get(name)
    _, (stream, dy, gamma, mean, inv_std) = arguments(shape, "float32", 0.2, codec)
    x_hat = codec.decompress(stream, tf.shape(dy), dy.dtype, gate=dy)
    axes = list(range(len(shape) - 1))
    x_norm = (x_hat - tf.reduce_mean(x_hat, axes)) * inv_std  # without what errors add to the mean
    dbeta, dgamma = tf.reduce_sum(dy, axes), tf.reduce_sum(dy * x_norm, axes)
    pixels = np.prod(shape[:-1])
    dx = gamma * inv_std * (dy - dbeta / pixels - x_norm * dgamma / pixels)
    results = codec.batch_norm_gradient(stream, dy, gamma, mean, inv_std)
    for got, want in zip(results, (dx, dgamma, dbeta), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["plane", "rans"])
def test_the_gradient_of_the_input_sums_to_zero(name):
    """As plain Keras' does: a mean of what made the input is multiplied with it."""
    codec = codecs.get(name)
    _, (stream, *rest) = arguments((6, 50, 32), "float32", 0.5, codec)
    dx, _, _ = codec.batch_norm_gradient(stream, *rest)
    assert np.abs(np.sum(dx, (0, 1))).max() < 1e-5 * np.abs(dx).sum((0, 1)).min()


@pytest.mark.parametrize("jit", [False, True], ids=["executor", "XLA"])
@pytest.mark.parametrize("samples", [8, 64])
def test_inputs_with_a_mean_far_above_their_deviation(samples, jit):
    """As pixels and other features that nobody has scaled."""
    inputs = keras.Input((256,))
    keras.utils.set_random_seed(0)
    x = keras.layers.BatchNormalization()(keras.layers.Dense(64, use_bias=False)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(4)(keras.layers.ReLU()(x)))
    rng = np.random.default_rng(0)
    x = tf.constant(1 + rng.random(256) + 0.05 * rng.normal(size=(samples, 256)), tf.float32)

    @tf.function(jit_compile=jit)
    def gradients():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.sin(model(x, training=True)))
        return tape.gradient(loss, model.trainable_variables)

    plain = gradients()
    ct.compress_model(model, check=False)
    gradients = tf.function(gradients.python_function, jit_compile=jit)
    for ours, its in zip(gradients()[:2], plain):  # of the first kernel, and gamma
        assert np.linalg.norm(ours - its) < 0.2 * np.linalg.norm(its)


def test_in_a_graph_where_dx_may_take_the_memory_of_dy():
    _, (stream, dy, *rest) = arguments((8, 9, 9, 64), "float32", bound=0.2)
    want = PLANE.batch_norm_gradient(stream, dy * 2.0, *rest)

    @tf.function
    def step():
        return PLANE.batch_norm_gradient(stream, dy * 2.0, *rest)

    for got, expected in zip(step(), want, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_wrong_arguments():
    _, (stream, dy, gamma, mean, inv_std) = arguments((8, 9, 9, 64), "float32", bound=0.2)

    def op(*inputs):
        return native.ops().comptrain_batch_norm_grad(*inputs, state=[])

    error = tf.errors.InvalidArgumentError
    with pytest.raises(error, match=r"mean must have shape \[64\].*got \[63\]"):
        op(stream, dy, gamma, mean[:-1], inv_std)
    with pytest.raises(error, match="header field n"):
        op(stream, dy[1:], gamma, mean, inv_std)
    with pytest.raises(error, match="channels must be the number of channels"):
        op(stream, tf.reshape(dy, [-1, 32]), gamma[:32], mean[:32], inv_std[:32])
    with pytest.raises(error, match="encode it again|pass the whole stream|total_bytes"):
        op(stream[:-16], dy, gamma, mean, inv_std)


def test_no_second_gradient():
    _, (stream, dy, *rest) = arguments((8, 9, 9, 64), "float32", bound=0.2)
    with tf.GradientTape() as tape:
        tape.watch(dy)
        dx, _, _ = PLANE.batch_norm_gradient(stream, dy, *rest)
    with pytest.raises(LookupError, match="first-order gradients only"):
        tape.gradient(dx, dy)


@pytest.mark.parametrize("policy", ["bfloat16", "float16"])
def test_trains_where_all_is_16_bit(policy):
    keras.utils.set_random_seed(0)
    norm = keras.layers.BatchNormalization(dtype=policy)
    model = keras.Sequential([keras.Input((8, 8, 16), dtype=policy), norm])
    x = tf.cast(tf.random.stateless_normal((8, 8, 8, 16), (1, 2)), policy)
    weights = model.get_weights()

    @tf.function
    def compute(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.cast(model(x, training=True), tf.float32) ** 3)
        return tape.gradient(loss, [x, *(v.value for v in norm.trainable_variables)])

    def run():
        model.set_weights(weights)
        return [tf.cast(t, tf.float32) for t in (*compute(x), *(v.value for v in norm.variables))]

    plain = run()
    ct.compress_model(model, codec="zvc")
    for found, expected in zip(run(), plain):
        assert tf.norm(found - expected) <= 1e-2 * tf.norm(expected) + 1e-2
