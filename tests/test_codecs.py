"""Codecs behind the ops: the bound, masks, batch normalization and training with each of them."""

import numpy as np
import pytest
import tensorflow as tf
from models import compiled, gradients, images, small_cnn

import tf_comptrain as ct
from tf_comptrain import codecs

LOSSY = ["plane", "rans"]


def _activation(shape=(4, 12, 12, 64), relu=True, dtype=tf.float32):
    x = np.random.default_rng(0).normal(size=shape)
    for axis in range(x.ndim - 1):
        x = x + np.roll(x, 1, axis)
    return tf.cast(np.maximum(x, 0) if relu else x, dtype)


def _encode(codec, x, bound=0.1, mid_rise=False):
    state = tf.constant(codecs.State(bound_set=bound), tf.float32)
    _, stream, state = codec.compress(x, state, 0.1, mid_rise)
    return stream, codecs.State(*state.numpy().tolist())


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("dtype", codecs.SUPPORTED_DTYPES)
@pytest.mark.parametrize("shape", [(4, 12, 12, 64), (3, 7, 5, 20), (50, 32), (7,), (0, 4, 4, 32)])
def test_bound(name, dtype, shape):
    codec = codecs.get(name)
    x = _activation(shape, relu=False, dtype=dtype)
    stream, state = _encode(codec, x)
    x_hat = codec.decompress(stream, tf.shape(x), dtype, gate=x)
    error = np.abs(tf.cast(x, tf.float64) - tf.cast(x_hat, tf.float64))
    rounding = {tf.float32: 0, tf.bfloat16: 2**-7, tf.float16: 2**-9}[dtype]
    assert x_hat.dtype == dtype
    assert np.all(error <= 0.1 + rounding * np.abs(tf.cast(x, tf.float64)))
    assert state.bound_used == np.float32(0.1)
    assert state.stream_bytes == stream.shape[0]


@pytest.mark.parametrize("name", LOSSY)
def test_mask_gradient(name):
    codec = codecs.get(name)
    x = _activation()
    stream, state = _encode(codec, x, mid_rise=True)
    dy = tf.random.normal(x.shape, seed=1)
    np.testing.assert_array_equal(codec.mask_gradient(stream, dy), np.where(x != 0, dy, 0))
    assert state.nonzero_ratio == pytest.approx(np.mean(x != 0))
    assert state.sigma == pytest.approx(np.std(x), rel=1e-4)


@pytest.mark.parametrize("shape", [(4, 12, 12, 64), (6, 10, 32), (60, 32)])
def test_batch_norm_gradient_without_the_fused_op(shape):
    x, dy = _activation(shape, relu=False), _activation(shape, relu=False)[::-1]
    gamma, mean, inv_std = (tf.random.uniform([shape[-1]], 0.5, 1.5, seed=s) for s in (1, 2, 3))
    plane, rans = codecs.get("plane"), codecs.get("rans")
    assert plane.fused_batch_norm and not rans.fused_batch_norm
    results = [c.batch_norm_gradient(_encode(c, x)[0], dy, gamma, mean, inv_std) for c in (plane, rans)]
    for fused, plain in zip(*results):
        np.testing.assert_allclose(fused, plain, rtol=2e-4, atol=2e-4 * np.max(np.abs(fused)))


def test_rans_is_smaller_than_plane():
    x = _activation((4, 32, 32, 64))
    sizes = {name: _encode(codecs.get(name), x)[1].stream_bytes for name in LOSSY}
    assert sizes["rans"] < sizes["plane"]


def test_a_damaged_stream_names_its_field():
    codec = codecs.get("rans")
    x = _activation()
    stream = _encode(codec, x)[0].numpy()
    stream[20] ^= 1
    with pytest.raises(tf.errors.OpError, match="header field log2_pixels"):
        codec.decompress(stream, tf.shape(x), x.dtype, gate=x)


def test_unknown_codec():
    with pytest.raises(ValueError, match="`codec` must be one of 'plane', 'rans'"):
        codecs.get("zip")


@pytest.mark.parametrize("name", LOSSY)
def test_training(name):
    x, y = images(64)
    model = small_cnn()
    model.build(x.shape)
    _, plain = gradients(compiled(model), x, y)
    model = compiled(small_cnn())
    ct.compress_model(model, error_bound=1e-3, codec=name)
    _, held = gradients(model, x, y)
    for path, g in plain.items():
        np.testing.assert_allclose(held[path], g, atol=0.05 * np.max(np.abs(g)) + 1e-6, err_msg=path)
    model = compiled(small_cnn())
    ct.compress_model(model, codec=name)
    history = model.fit(x, y, epochs=8, batch_size=32, verbose=0).history["loss"]
    assert np.all(np.isfinite(history))
    assert history[-1] < history[0]
