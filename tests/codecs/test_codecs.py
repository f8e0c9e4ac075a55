"""Codecs behind the ops: the bound, masks, batch normalization and training with each of them."""

import numpy as np
import pytest
import tensorflow as tf
from models import compiled, gradients, images, small_cnn

import tf_comptrain as ct
from tf_comptrain import codecs
from tf_comptrain.storage import Site, hold

LOSSY = ["plane", "rans", "plane+dither", "rans+dither"]


def _activation(shape=(4, 12, 12, 64), relu=True, dtype=tf.float32):
    x = np.random.default_rng(0).normal(size=shape)
    for axis in range(x.ndim - 1):
        x = x + np.roll(x, 1, axis)
    return tf.cast(np.maximum(x, 0) if relu else x, dtype)


def _encode(codec, x, bound=0.1, mid_rise=False):
    state = tf.constant(codecs.State(bound_set=bound), tf.float32)
    _, stream, state = codec.compress(x, state, 0.1, mid_rise, relative_to="nothing")
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


@pytest.mark.parametrize("value", [1e30, np.inf, np.nan])
def test_an_outlier_widens_the_bound_for_some_steps_only(value):
    codec, state, x = (
        codecs.get("plane"),
        tf.zeros(len(codecs.State._fields)),
        np.array(_activation(relu=False)),
    )
    odd = np.copy(x)
    odd[0, 0, 0, 0] = value
    bounds = []
    for tensor in [x, odd] + 30 * [x]:
        *_, state = codec.compress(tf.constant(tensor), state, 0.1, False)
        bounds.append(codecs.State(*state.numpy().tolist()).bound_used)
    assert max(bounds) < 2 * bounds[0]
    assert bounds[-1] == pytest.approx(bounds[0], rel=0.05)
    for _ in range(20):  # a scale that stays is followed
        *_, state = codec.compress(tf.constant(1000 * x), state, 0.1, False)
    assert codecs.State(*state.numpy().tolist()).bound_used > 500 * bounds[0]


@pytest.mark.parametrize("name", LOSSY)
def test_mask_gradient(name):
    codec = codecs.get(name)
    x = _activation()
    stream, state = _encode(codec, x, mid_rise=True)
    dy = tf.random.normal(x.shape, seed=1)
    np.testing.assert_array_equal(codec.mask_gradient(stream, dy), np.where(x != 0, dy, 0))
    assert state.nonzero_ratio == pytest.approx(np.mean(x != 0))
    assert state.sigma == pytest.approx(np.sqrt(np.mean(np.var(x, axis=(0, 1, 2)))), rel=0.1)


def test_rans_is_smaller_than_plane():
    x = _activation((4, 32, 32, 64))
    sizes = {name: _encode(codecs.get(name), x)[1].stream_bytes for name in ("plane", "rans")}
    assert sizes["rans"] < sizes["plane"]


def test_a_damaged_stream_names_its_field():
    codec = codecs.get("rans")
    x = _activation()
    stream = _encode(codec, x)[0].numpy()
    stream[20] ^= 1
    with pytest.raises(tf.errors.OpError, match="header field log2_pixels"):
        codec.decompress(stream, tf.shape(x), x.dtype, gate=x)


@pytest.mark.parametrize("shape", [(8, 32, 32, 64), (8, 32, 32, 48), (9, 20, 25, 64)])
def test_auto_is_the_codec_that_suits(shape):
    noise = tf.random.normal(shape, seed=0)
    tensors = {
        "white noise": (tf.maximum(noise, 0), 1),
        "smooth": (tf.image.resize(noise[:, ::8, ::8], shape[1:3], "bicubic"), 2),
        "sparse, bound far below": (tf.where(noise > 1.5, noise, 0), 3),
        "small": (_activation((2, 8, 8, 64)), 1),
    }
    auto = codecs.get("auto")
    for name, (x, expected) in tensors.items():
        bound = 1e-6 if "bound" in name else 0.1 * float(np.std(x))
        stream, state = _encode(auto, x, bound)
        assert stream[5] == expected, name
        # No larger than what is as fast, but for what a sample misses.
        fast = [_encode(codecs.get(other), x, bound)[1].stream_bytes for other in ("plane", "zvc")]
        assert state.stream_bytes <= 1.03 * min(fast), name
        assert state.bound_used == np.float32(bound)
        x_hat = auto.decompress(stream, tf.shape(x), x.dtype, gate=x)
        assert np.max(np.abs(x - x_hat)) <= bound


@pytest.mark.parametrize("name", [*LOSSY, "auto"])
def test_bound_relative_to_the_range(name):
    x = _activation((2, 9, 9, 33), relu=False).numpy()
    x[0, 0, 0, :3] = [np.nan, np.inf, -np.inf]
    finite = x[np.isfinite(x)]
    _, _, state = codecs.get(name).compress(x, codecs.State(), 0.01, False, relative_to="range")
    state = codecs.State(*state.numpy().tolist())
    assert state.range == finite.max() - finite.min()
    assert state.bound_used == np.float32(np.float32(0.01) * np.float64(state.range))
    site = Site("x", codecs.get(name), ct.ErrorBound(0.01, relative_to="range"), "linear")
    hold(tf.constant(x), site, xla=False)
    assert site.own_bound() == pytest.approx(state.bound_used)


def test_range_of_nothing():
    x = np.full((4, 64), np.nan, np.float32)
    _, stream, state = codecs.get("plane").compress(x, codecs.State(), 0.01, False, relative_to="range")
    assert state[6] == 0
    assert np.isnan(codecs.get("plane").decompress(stream, x.shape, tf.float32, gate=x)).all()


def test_bad_scale():
    with pytest.raises(ValueError, match="`ErrorBound.relative_to` must be 'sigma' or 'range'.*'mean'"):
        codecs.ErrorBound.parse(ct.ErrorBound(0.1, relative_to="mean"), "error_bound")


@pytest.mark.parametrize("codec", ["zip", ["plane"], None, 3])
def test_unknown_codec(codec):
    with pytest.raises(ValueError, match="`codec` must be one of 'plane', 'rans'"):
        codecs.get(codec)


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("relative_to", ["sigma", "range"])
def test_relative_bounds_are_limited(name, relative_to):
    codec = codecs.get(name)
    constant, huge = np.ones((64, 64), np.float32), np.zeros((64, 64), np.float32)
    huge[::2], huge[1::2] = 3e38, -3e38
    for x, limit in ((constant, codecs.SMALLEST_BOUND), (huge, codecs.LARGEST_BOUND)):
        _, stream, state = codec.compress(x, codecs.State(), 0.5, False, relative_to)
        assert codecs.State(*state.numpy()).bound_used == np.float32(limit)
        x_hat = codec.decompress(stream, x.shape, tf.float32, gate=tf.constant(x))
        assert np.max(np.abs(x_hat - x.astype(np.float64))) <= limit


@pytest.mark.parametrize("name", ["plane+dither", "rans+dither"])
def test_the_smallest_bound_holds_with_dither(name):
    """TensorFlow flushes subnormal numbers, which a dithered value may be next to zero."""
    x = np.random.default_rng(0).uniform(0.9, 1.1, (6250, 32))
    for bound in (1e-33, codecs.SMALLEST_BOUND):
        scaled = (x * bound).astype(np.float32)
        stream, _ = _encode(codecs.get(name), scaled, bound)
        x_hat = codecs.get(name).decompress(stream, scaled.shape, tf.float32, gate=tf.constant(scaled))
        assert np.max(np.abs(x_hat.numpy().astype(np.float64) - scaled)) <= np.float32(bound)
    with pytest.raises(tf.errors.InvalidArgumentError, match="7.7e-34 .with dither.* got 1e-36"):
        _encode(codecs.get(name), scaled, 1e-36)
    with pytest.raises(ValueError, match="between 1e-30 and 1.33e.36. Received: 1e-36"):
        ct.ErrorBound.parse(1e-36)


def test_wrappers_keep_codec_and_bound():
    bound = ct.ErrorBound(0.01, relative_to="range")
    for wrapper in (ct.Compress, ct.Recompute):
        layer = wrapper(tf.keras.layers.Dense(4), codec="rans+dither", error_bound=bound)
        config = wrapper.from_config(layer.get_config()).get_config()
        assert (config["codec"], config["error_bound"]) == ("rans+dither", [0.01, True, "range"])


@pytest.mark.parametrize("format", ["plane", "rans"])
def test_dither_is_unbiased_where_rounding_is_not(format):
    x = np.abs(np.random.default_rng(0).normal(size=(64, 32, 64))).astype(np.float32)
    bias = {}
    for codec in (codecs.get(format), codecs.get(f"{format}+dither")):
        stream, _ = _encode(codec, x, bound=1.0)
        error = codec.decompress(stream, x.shape, tf.float32, gate=tf.constant(x)) - x
        bias[codec.dither] = abs(np.mean(error)), abs(np.corrcoef(np.ravel(error), np.ravel(x))[0, 1])
    assert max(bias[True]) < 5 / np.sqrt(x.size) < min(bias[False]) / 5


@pytest.mark.long(but=["rans+dither"])
@pytest.mark.parametrize("name", [*LOSSY, "auto"])
def test_training(name):
    x, y = images(64)
    model = small_cnn()
    model.build(x.shape)
    _, plain = gradients(compiled(model), x, y, graph=False)
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
