"""The baseline of a fixed number of bits in groups."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_comptrain.codecs import State
from tf_comptrain.study.group_quantization import GROUP, GroupQuantization


@pytest.mark.long(but=["shape0-4", "shape2-2"])
@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("shape", [(3, 16, 16, 5), (2, 4, 4, 7), (4, 100)])
def test_group_quantization(bits, shape):
    codec = GroupQuantization(bits)
    x = tf.random.stateless_normal(shape, seed=(0, bits))
    restored = []
    for _ in range(100):
        through, stream, state = codec.compress(x, tf.zeros(7), 0.1, False)
        restored.append(codec.decompress(stream, tf.shape(x), x.dtype, gate=x).numpy())
    np.testing.assert_array_equal(through, x)
    groups = shape[0] * -(-np.prod(shape[1:]) // GROUP)
    assert int(tf.size(stream)) == groups * (GROUP * bits // 8 + 4)
    assert float(state[5]) == int(tf.size(stream))
    step = (np.ptp(x.numpy())) / (2**bits - 1)
    error = np.array(restored) - x.numpy()
    assert np.abs(error).max() <= 1.02 * step + 0.02  # ends in bfloat16
    assert np.abs(error.mean(0)).max() < 0.2 * step + 0.02  # rounding up or down at random: no bias


@pytest.mark.parametrize("shape", [(4, 6, 6, 5), (32, 7)])
def test_group_quantization_behind_batch_normalization(shape):
    """The gradient is that of plain batch normalization, at the values that come back."""
    codec = GroupQuantization(4)
    keras.utils.set_random_seed(1)
    x, dy = tf.random.normal(shape, 1.0, 2.0), tf.random.normal(shape)
    gamma = tf.random.normal(shape[-1:])
    over = list(range(len(shape) - 1))
    stream = codec.compress(x, tf.zeros([len(State._fields)]), 0.1, False)[1]
    x_hat = codec.decompress(stream, tf.shape(x), x.dtype, dy)
    with tf.GradientTape() as tape:
        tape.watch([x_hat, gamma])
        mean, variance = tf.nn.moments(x_hat, over)
        y = gamma * (x_hat - mean) * tf.math.rsqrt(variance + 1e-3)
    wanted = tape.gradient(y, [x_hat, gamma], dy)
    dx, dgamma, dbeta = codec.batch_norm_gradient(stream, dy, gamma, mean, tf.math.rsqrt(variance + 1e-3))
    for ours, plain in zip((dx, dgamma, dbeta), (*wanted, tf.reduce_sum(dy, over))):
        np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-5)
