"""codec="zvc": what is stored comes back bit for bit, so training is plain training."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain import codecs

ZVC = codecs.get("zvc")
STATE = codecs.State()


def encoded(x):
    through, stream, state = ZVC.compress(x, tf.constant(STATE, tf.float32), 0.1, mid_rise=True)
    assert through is x or np.array_equal(through.numpy(), x.numpy(), equal_nan=True)
    return stream, codecs.State(*state.numpy().tolist())


@pytest.mark.parametrize("dtype", codecs.SUPPORTED_DTYPES)
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (3, 5, 7), (2, 1024), (4, 33, 9, 20)])
def test_every_bit_comes_back(dtype, shape):
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    values[np.abs(values) < 0.7] = 0
    values.flat[: min(5, values.size)] = [-0.0, np.nan, np.inf, -np.inf, 1e-40][: min(5, values.size)]
    x = tf.cast(values, dtype)
    stream, state = encoded(x)
    x_hat = ZVC.decompress(stream, tf.shape(x), dtype, gate=x)
    raw = tf.uint32 if dtype == tf.float32 else tf.uint16
    np.testing.assert_array_equal(tf.bitcast(x_hat, raw), tf.bitcast(x, raw))
    assert state.bound_used == 0 and state.stream_bytes == int(tf.size(stream))


def test_ratio_follows_density():
    random = np.random.default_rng(1)
    for density in (0.02, 0.1, 0.5, 1.0):
        x = np.where(random.random((64, 4096)) < density, random.normal(size=(64, 4096)), 0).astype(
            np.float32
        )
        stream, state = encoded(tf.constant(x))
        found = np.count_nonzero(x) / x.size
        assert state.nonzero_ratio == pytest.approx(found)
        ratio = x.nbytes / int(tf.size(stream))
        assert ratio >= (0.99 * 32 / (1 + 32 * found) if density < 1 else 0.998)


def test_mask_gradient():
    x = tf.nn.relu(tf.random.stateless_normal((8, 9, 10, 11), seed=(1, 2)))
    dy = tf.random.stateless_normal(x.shape, seed=(3, 4))
    stream, _ = encoded(x)
    np.testing.assert_array_equal(ZVC.mask_gradient(stream, dy), tf.where(x > 0, dy, 0.0))


def test_batch_norm_gradient_is_that_of_plane():
    x = tf.random.stateless_normal((6, 5, 5, 32), seed=(1, 2))
    dy = tf.random.stateless_normal(x.shape, seed=(3, 4))
    mean, variance = tf.nn.moments(x, [0, 1, 2])
    rest = (dy, tf.range(1.0, 33.0), mean, tf.math.rsqrt(variance + 1e-3))
    plane = codecs.get("plane")
    _, fine, _ = plane.compress(x, tf.constant(STATE._replace(bound_set=1e-6), tf.float32), 0.1, False)
    for a, b in zip(ZVC.batch_norm_gradient(encoded(x)[0], *rest), plane.batch_norm_gradient(fine, *rest)):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_damage_is_an_error():
    stream, _ = encoded(tf.nn.relu(tf.random.stateless_normal((4, 100), seed=(1, 2))))
    damaged = tf.tensor_scatter_nd_update(stream, [[16]], [7])
    with pytest.raises(tf.errors.InvalidArgumentError, match="zvc stream: header field channels"):
        ZVC.decompress(damaged, [4, 100], tf.float32, gate=0.0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="header field n must be"):
        ZVC.decompress(stream, [4, 101], tf.float32, gate=0.0)


def network():
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            keras.layers.Conv2D(16, 3, padding="same", use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )


def test_training_is_plain_training():
    random = np.random.default_rng(0)
    x = random.normal(size=(128, 16, 16, 3)).astype(np.float32)
    y = random.integers(10, size=128)
    losses = {}
    for variant in ("plain", "zvc"):
        model = network()
        if variant == "zvc":
            ct.compress_model(model, codec="zvc")
        model.compile(
            optimizer=keras.optimizers.SGD(0.05, momentum=0.9),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        losses[variant] = model.fit(x, y, batch_size=32, epochs=3, shuffle=False, verbose=0).history["loss"]
    np.testing.assert_allclose(losses["zvc"], losses["plain"], rtol=2e-3)
