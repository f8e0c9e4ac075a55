"""Bounds of channels: each at its own scale, in streams and in the gradients that are made of them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_comptrain as ct
from tf_comptrain import codecs

layers = keras.layers
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
LOSSY = ["plane", "rans", "plane+dither", "rans+dither"]


def scaled(channels=48, rows=600, seed=0):
    """Normal values, of scales from 1 / 64 to 64, a third of the channels far from zero."""
    random = np.random.default_rng(seed)
    scale = 2.0 ** random.uniform(-6, 6, channels)
    mean = np.where(np.arange(channels) % 3 == 0, 50 * scale, 0)
    x = (random.normal(size=(4, rows // 4, channels)) * scale + mean).astype("float32")
    return tf.constant(x), scale


def encoded(name, x, state=None, relative_to="sigma", mid_rise=False):
    state = codecs.State() if state is None else state
    _, stream, after = codecs.get(name).compress(
        x, tf.constant(state, tf.float32), 0.1, mid_rise, relative_to
    )
    restored = codecs.get(name).decompress(stream, tf.shape(x), x.dtype, gate=x)
    return stream.numpy(), codecs.State(*after.numpy().tolist()), restored.numpy()


@pytest.mark.parametrize("name", LOSSY)
def test_each_channel_holds_the_bound_of_its_scale(name):
    x, scale = scaled()
    stream, state, restored = encoded(name, x)
    bounds = codecs.channel_bounds(stream, state.bound_used)
    error = np.abs(restored.astype(np.float64) - x.numpy()).reshape(-1, len(scale)).max(axis=0)
    assert (error <= bounds).all() and (error > 0.5 * bounds).all()
    assert bounds.max() <= state.bound_used
    assert state.sigma == pytest.approx(np.sqrt(np.mean(scale**2)), rel=0.2)
    typical = np.sqrt(np.mean(scale**2)) > scale  # the others have the bound of the tensor
    assert np.all(((bounds / scale)[typical] > 0.05) & ((bounds / scale)[typical] < 0.2))
    assert state.rms_bound == pytest.approx(np.sqrt(np.mean(bounds**2)), rel=1e-3)


@pytest.mark.parametrize("name", LOSSY)
def test_a_bound_that_is_absolute_or_of_the_range_is_that_of_all_channels(name):
    x, _ = scaled()
    for relative_to, state in (("nothing", codecs.State(bound_set=0.25)), ("range", codecs.State())):
        stream, after, restored = encoded(name, x, state, relative_to)
        assert np.all(codecs.channel_bounds(stream, after.bound_used) == after.bound_used)
        assert np.abs(restored - x.numpy()).max() <= after.bound_used


def test_a_bound_that_is_set_keeps_the_proportions():
    x, _ = scaled()
    own_stream, own, _ = encoded("plane+dither", x)
    stream, state, _ = encoded("plane+dither", x, codecs.State(bound_set=2 * own.bound_used))
    ratios = codecs.channel_bounds(stream, state.bound_used) / codecs.channel_bounds(
        own_stream, own.bound_used
    )
    np.testing.assert_allclose(ratios, 2, rtol=1e-6)


def test_centres_take_no_more_bits_than_the_values_about_them():
    x, scale = scaled()
    offset = x - 50 * tf.constant(np.where(np.arange(len(scale)) % 3 == 0, scale, 0), x.dtype)
    far, near = (encoded("plane+dither", each)[1].stream_bytes for each in (x, offset))
    assert far <= 1.05 * near


@pytest.mark.parametrize("name", ["plane+dither", "rans+dither"])
def test_errors_of_steps_are_independent(name):
    x = tf.random.stateless_normal((8, 64, 32), (1, 2))
    state, errors = codecs.State(bound_set=0.5), []
    for _ in range(64):
        _, state, restored = encoded(name, x, state)
        errors.append(restored - x.numpy())
    assert state.steps == 64
    single = np.sqrt(np.mean(np.square(errors)))
    mean = np.sqrt(np.mean(np.square(np.mean(errors, axis=0))))
    assert mean / single == pytest.approx(1 / 8, abs=0.005)


def gradients(model, x, y, jit_compile=None):
    """Of the trainable weights, in one training step, eagerly without `jit_compile`; statistics are put back."""
    weights = [v.value for v in model.trainable_variables]
    states = [(v, np.array(v)) for v in model.non_trainable_variables]

    def step(x, y):
        with ct.training_scope(), tf.GradientTape() as tape:
            loss = LOSS(y, model(x, training=True))
        return [tf.convert_to_tensor(g) for g in tape.gradient(loss, weights)]

    if jit_compile is not None:
        step = tf.function(step, autograph=False, jit_compile=jit_compile)
    found = [np.asarray(g, "float64") for g in step(tf.constant(x), tf.constant(y))]
    for variable, value in states:
        variable.assign(value)
    return found


@pytest.mark.long("*-30-True", "*-30-False")
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("offset", [0, 30])
@pytest.mark.parametrize("kind", ["dense", "conv"])
def test_constants_before_a_normalization_change_no_gradient(kind, offset, jit_compile):
    keras.utils.set_random_seed(0)
    random = np.random.default_rng(1)
    if kind == "conv":
        x, first = random.normal(size=(16, 16, 16, 3)), layers.Conv2D(32, 3, padding="same")
    else:
        x, first = random.normal(size=(64, 32)), layers.Dense(64)
    inputs = keras.Input(x.shape[1:])
    h = layers.ReLU()(layers.BatchNormalization()(first(inputs)))
    h = layers.GlobalAveragePooling2D()(h) if kind == "conv" else h
    model = keras.Model(inputs, layers.Dense(5)(h))
    first.bias.assign(offset * random.normal(size=first.bias.shape))
    x, y = x.astype("float32"), random.integers(0, 5, len(x))
    plain = gradients(model, x, y)[0]
    ct.compress_model(model)
    ours = gradients(model, x, y, jit_compile)[0]
    assert 1e-3 < np.linalg.norm(ours - plain) / np.linalg.norm(plain) <= 0.1


@pytest.mark.parametrize("jit_compile", [False, True])
def test_an_outlier_channel_leaves_the_others_their_gradients(jit_compile):
    def rows(outlier):
        keras.utils.set_random_seed(0)
        random = np.random.default_rng(1)
        inputs = keras.Input((64, 96))
        h = layers.Dense(96, name="before")(inputs)
        h = h * tf.constant([outlier] + [1.0] * 95)
        h = layers.Dense(96, activation="gelu", name="after")(h)
        model = keras.Model(inputs, layers.Dense(5)(layers.GlobalAveragePooling1D()(h)))
        x, y = random.normal(size=(16, 64, 96)).astype("float32"), random.integers(0, 5, 16)
        at = [v.path for v in model.trainable_variables].index("after/kernel")
        plain = gradients(model, x, y)[at]
        ct.compress_model(model)
        ours = gradients(model, x, y, jit_compile)[at]
        return np.median(np.linalg.norm(ours - plain, axis=1) / np.linalg.norm(plain, axis=1))

    alike = rows(1.0)
    assert alike > 0 and max(rows(10.0), rows(100.0)) <= 2 * alike
