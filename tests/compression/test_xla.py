"""jit_compile=True: the fixed-rate codec in the place of the executor's streams."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from models import chain, compiled, images, layers, small_cnn
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain import native, storage
from tf_comptrain.codecs import LARGEST_BOUND, RATES, FixedRateCodec, State
from tf_comptrain.compression import wrapper
from tf_comptrain.compression.instrumentation import instrumentation
from tf_comptrain.memory.trace import trace_step

RNG = np.random.default_rng(0)
X, Y = images(32)


def xla(function):
    return tf.function(function, jit_compile=True)


def normal(*shape, dtype=tf.float32):
    return tf.cast(RNG.normal(size=shape), dtype)


def reach(bits, mid_rise):
    """The largest value that a group's bound holds for, in bounds, whatever its dither."""
    return 2 * (2**bits - 2) if mid_rise else 2**bits - 1


def round_trip(x, bits, bound, mid_rise, state=None):
    """x_hat, the gradient of ones through the mask, the new state, the codes."""
    codec = FixedRateCodec(bits)

    @xla
    def run(x, state):
        through, stream, new_state = codec.compress(x, state, 0.1, mid_rise)
        dy = tf.ones_like(x)
        x_hat = codec.decompress(stream, tf.shape(x), x.dtype, gate=dy)
        mask = codec.mask_gradient(stream, dy) if mid_rise else dy
        return through, x_hat, mask, new_state, stream.codes

    through, x_hat, mask, new_state, codes = run(x, tf.constant(state or State(bound_set=bound)))
    np.testing.assert_array_equal(through, x)
    return x_hat.numpy(), mask.numpy(), State(*new_state.numpy().tolist()), codes


SHAPES = [(8, 4, 4, 32), (5, 7, 3, 13), (17,)]


@pytest.mark.parametrize("mid_rise", [False, True])
@pytest.mark.parametrize("bits", RATES)
def test_the_bound_holds_where_values_fit(bits, mid_rise):
    for shape in SHAPES:
        x = normal(*shape)
        x = tf.nn.relu(x) if mid_rise else x
        bound = (
            float(tf.reduce_max(tf.abs(x))) * 2 / reach(bits, mid_rise)
        )  # twice: a centre may be that far away
        x_hat, mask, state, codes = round_trip(x, bits, bound, mid_rise)
        assert state.widened == 0
        assert state.bound_used == pytest.approx(bound)
        assert state.rms_bound <= state.bound_used
        assert np.abs(x_hat - x).max() <= state.bound_used
        assert state.stream_bytes == codes.numpy().size
        if mid_rise:
            assert np.array_equal(mask, (x.numpy() > 0).astype("float32"))
            assert np.array_equal(x_hat == 0, x.numpy() == 0)


@pytest.mark.parametrize("mid_rise", [False, True])
@pytest.mark.parametrize("bits", RATES)
def test_the_bound_of_a_group_follows_its_largest_value(bits, mid_rise):
    """Groups of 32 along the first dimension, each ten times the one before; scales are quarters of an octave."""
    x = normal(16, 9) * 10.0 ** np.arange(9)
    x = np.abs(x) if mid_rise else x.numpy()
    x = np.concatenate([x, x if mid_rise else -x])  # whose centre is 0
    largest = np.abs(x).max(axis=0)
    needed = largest / reach(bits, mid_rise)
    for first in (0, 2):  # with the bound of this group others are wider, and finer by up to 2^25
        bound = float(needed[first]) * 1.001
        x_hat, _, state, _ = round_trip(tf.constant(x, tf.float32), bits, bound, mid_rise)
        error = np.abs(x_hat - x).max(axis=0)
        assert np.all(error <= needed * 2**0.25 * 1.001)
        assert 8 - first - 1 <= 9 * state.widened <= 8 - first + 0.01
        whole = np.sqrt(np.mean(needed**2))
        assert whole * 0.999 <= state.rms_bound <= whole * 2**0.25 * 1.001


@pytest.mark.parametrize("mid_rise", [False, True])
def test_the_mean_square_of_the_error_is_that_of_the_groups_bounds(mid_rise):
    """As the law takes it: uniform within the bound, and none where a value is zero."""
    x = normal(256, 200)
    x = tf.nn.relu(x) if mid_rise else x
    for bits in (3, 4, 6):
        x_hat, _, state, _ = round_trip(x, bits, 0.0, mid_rise)
        expected = state.rms_bound**2 / 3 * state.nonzero_ratio
        assert np.mean(np.square(x_hat - x)) == pytest.approx(expected, rel=0.05)


def test_bits_of_a_value():
    for bits in RATES:
        for mid_rise in (False, True):
            *_, state, _ = round_trip(tf.abs(normal(8, 8, 8, 32)), bits, 1.0, mid_rise)
            centres = 0 if mid_rise else 2 * 32
            assert state.stream_bytes == 8 * 8 * 8 * 32 * (bits + 0.25) / 8 + centres


@pytest.mark.parametrize("shape", [(64, 40), (4, 5, 9, 7), (2, 40, 3, 8), (16, 7, 7, 33), (9, 6)])
def test_a_group_is_of_one_channel(shape):
    """Channels each ten times the one before, and far from 0, are off by a share of their own spread."""
    channels = np.arange(shape[-1])
    spread = 10.0 ** (channels % 7 - 3)
    x = np.array(normal(*shape)) * spread
    for offset in (0, 20):
        far = (x + offset * spread * np.where(channels % 2, 1, -1)).astype("float32")
        x_hat, *_ = round_trip(tf.constant(far), 4, 0.0, False)
        error = np.sqrt(np.mean(np.square(x_hat - far), axis=tuple(range(len(shape) - 1)))) / spread
        assert error.max() < 0.25


def test_far_values_leave_a_channel_without_a_centre():
    x = np.array(normal(256, 64))
    x[5] = 1e9
    x_hat, *_ = round_trip(tf.constant(x), 4, 0.0, False)
    assert np.median(np.abs(x_hat - x)) < 0.2


@pytest.mark.parametrize("bits, mid_rise", [(3, False), (3, True), (4, False)])
def test_errors_of_different_steps_are_independent(bits, mid_rise):
    x = tf.nn.relu(normal(256, 64)) if mid_rise else normal(256, 64)
    codec = FixedRateCodec(bits)

    @xla
    def run(x, state):
        _, stream, state = codec.compress(x, state, 0.1, mid_rise)
        return codec.decompress(stream, tf.shape(x), x.dtype, gate=x), state

    state, errors = tf.constant(State(bound_set=0.1)), []
    for _ in range(64):
        x_hat, state = run(x, state)
        errors.append(x_hat.numpy() - x)
    assert State(*state.numpy().tolist()).steps == 64
    single, mean = np.sqrt(np.mean(np.square(errors))), np.sqrt(np.mean(np.square(np.mean(errors, axis=0))))
    assert mean / single == pytest.approx(0.125, abs=0.005)
    again, _ = run(x, tf.constant(State(bound_set=0.1)))
    np.testing.assert_array_equal(again - x, errors[0])


def test_steps_are_counted_around():
    *_, state, _ = round_trip(normal(64, 32), 4, 0.1, False, State(bound_set=0.1, steps=2.0**24 - 1))
    assert state.steps == 0


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
@pytest.mark.parametrize("mid_rise", [False, True])
def test_the_half_types(dtype, mid_rise):
    x = normal(64, 48, dtype=dtype) + (0 if mid_rise else 4)
    x = tf.nn.relu(x) if mid_rise else x
    x_hat, mask, state, _ = round_trip(x, 6, 0.0, mid_rise)
    off = np.abs(x_hat.astype("float32") - tf.cast(x, tf.float32))
    assert off.max() < 0.1 and np.isfinite(off).all()
    if mid_rise:
        assert np.array_equal(np.asarray(mask, "float32") != 0, tf.cast(x, tf.float32) != 0)


@pytest.mark.parametrize("shape", [(0, 8), (3, 0), ()])
def test_tensors_of_no_value_or_one(shape):
    x_hat, *_, codes = round_trip(normal(*shape), 4, 0.5, False)
    assert x_hat.shape == shape and (codes.numpy().size > 0) == (shape == ())
    assert shape or abs(x_hat) < 10


def test_what_is_constant_comes_back():
    x = np.zeros((64, 8), "float32")
    x[:, 3] = 4.0
    x_hat, *_ = round_trip(tf.constant(x), 3, 0.1, False)
    np.testing.assert_array_equal(x_hat, x)


def test_groups_are_counted_where_that_is_asked_for():
    x = normal(64, 100)

    @xla
    def run(x, state):
        return [FixedRateCodec(3, asked).compress(x, state, 0.1, False)[2] for asked in (True, False)]

    before = tf.constant(State(bound_set=0.1, widened=0.5, rms_bound=7.0))
    counted, kept = (State(*state.numpy().tolist()) for state in run(x, before))
    assert counted.widened > 0.9 and 0.1 < counted.rms_bound < 1
    assert kept == counted._replace(widened=0.5, rms_bound=7.0)


def perceptron():
    """One tensor that is held, and little to compile."""
    return keras.Sequential([keras.Input((64,)), layers.Dense(64, activation="tanh"), layers.Dense(10)])


ROWS = np.random.default_rng(0).normal(size=(256, 64)).astype("float32"), np.zeros(256)


def test_groups_are_counted_in_steps_that_ask_the_law():
    model = compiled(perceptron(), jit_compile=True)
    ct.compress_model(model)
    handle = instrumentation(model)

    def counted():
        model.train_on_batch(*ROWS)
        return {site.read_state().rms_bound > 0 for site in handle.sites().values()}

    assert counted() == {False}
    handle.collect_statistics(model)
    assert counted() == {True}


def test_values_that_are_not_finite():
    x = np.zeros((4, 1000), "float32")
    x[0, :3] = np.inf, -np.inf, np.nan
    x[1:, 0] = 5.0
    x[0, 930:933] = 3.0  # of the groups of the first three
    x_hat, _, state, _ = round_trip(tf.constant(x), 4, 0.1, False)
    assert np.isfinite(x_hat).all()
    assert x_hat[0, 0] > 2 and x_hat[0, 1] < -2  # the outermost codes
    assert abs(x_hat[0, 2]) <= 3.0 / 15 * 2**0.25 * 2  # a middle one
    assert np.abs(x_hat[1:, 0] - 5.0).max() <= 5.0 / 15 * 2**0.25
    x_hat, mask, *_ = round_trip(tf.constant(x), 4, 0.1, True)
    assert np.isfinite(x_hat).all()
    assert np.array_equal(mask != 0, x != 0)


@pytest.mark.parametrize("bound", [1e-30, 1e-12, 1.0, 1e30])
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_bounds_and_values_of_any_size(bound, size):
    x = normal(64, 100) * size
    x_hat, _, state, _ = round_trip(x, 8, bound, False)
    assert np.abs(x_hat - x).max() <= max(state.bound_used, np.abs(x).max() / 255 * 2**0.25 * 1.001)
    assert state.bound_used <= max(bound * 1.001, 1e-9 * size)


def test_relative_bounds_follow_the_running_sigma():
    first, second = normal(64, 64), 3 * normal(64, 64)
    *_, state, _ = round_trip(first, 6, 0.0, False)
    sigma = np.std(first)
    assert state.running_sigma == pytest.approx(sigma, rel=1e-4)
    assert state.bound_used == pytest.approx(0.1 * sigma, rel=1e-4)
    *_, state, _ = round_trip(second, 6, 0.0, False, state)
    assert state.bound_used == pytest.approx(0.1 * sigma, rel=1e-4)
    assert state.running_sigma == pytest.approx(0.9 * sigma + 0.1 * np.std(second), rel=1e-3)


def test_an_outlier_widens_the_bound_for_some_steps_only():
    codec = FixedRateCodec(6)

    @xla
    def run(x, state):
        _, stream, new_state = codec.compress(x, state, 0.1, False)
        return new_state, codec.decompress(stream, tf.shape(x), x.dtype, gate=x)

    x = np.array(normal(64, 64))
    for value in (1e30, np.inf, np.nan):
        odd = np.copy(x)
        odd[0, 0] = value
        state, bounds = tf.zeros(len(State._fields)), []
        for tensor in [x, x, odd] + 30 * [x]:
            state, x_hat = run(tf.constant(tensor), state)
            assert np.isfinite(x_hat).all()
            bounds.append(State(*state.numpy().tolist()).bound_used)
        assert max(bounds) < 2 * bounds[1]
        assert bounds[-1] == pytest.approx(bounds[1], rel=0.05)
        state, _ = run(tf.constant(odd), tf.zeros(len(State._fields)))  # in the first step
        _, x_hat = run(tf.constant(x), state)
        assert np.isfinite(x_hat).all()


@pytest.mark.parametrize("low, high", [(95.0, 103.0), (-103.0, -95.0), (-3.0, 5.0)])
def test_the_range_is_that_of_the_values(low, high):
    x = tf.random.stateless_uniform((37, 5), (1, 2), low, high)

    @xla
    def run(x):
        return FixedRateCodec(6).compress(x, tf.constant(State()), 0.01, False, "range")[2]

    state = State(*run(x).numpy().tolist())
    assert state.range == pytest.approx(np.ptp(x.numpy()), rel=1e-5)
    assert state.bound_used == pytest.approx(0.01 * state.range)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float16])
def test_masks_and_pooling_are_those_of_the_executor(dtype):
    ops = native.ops()

    def masks(x, dy):
        _, bits = ops.comptrain_bitmask(x, lower=0.0, upper=1.0)
        return ops.comptrain_bitmask_grad(bits, dy, on=1.0, off=0.5)

    x, dy = normal(3, 5, 7, 4, dtype=dtype), normal(3, 5, 7, 4, dtype=dtype)
    np.testing.assert_array_equal(masks(x, dy), xla(masks)(x, dy))
    for size, stride, padding in [(3, 2, "SAME"), (2, 2, "VALID"), (3, 1, "SAME"), (5, 3, "SAME")]:
        attributes = {"ksize": (size, size), "strides": (stride, stride), "padding": padding}

        def pool(x, attributes=attributes):
            y, index = ops.comptrain_max_pool(x, **attributes)
            return y, ops.comptrain_max_pool_grad(index, y * y, tf.shape(x), **attributes)

        x = tf.round(normal(2, 11, 9, 5, dtype=dtype) * 2)  # with ties
        for ours, executor in zip(xla(pool)(x), pool(x)):
            np.testing.assert_array_equal(ours, executor)


def test_gradient_statistics_are_those_of_the_executor():
    dy = np.array(normal(9, 4))
    dy[3, 2] = np.inf
    stats = native.ops().comptrain_gradient_stats
    for enabled in (True, False):
        args = (tf.constant(dy), tf.constant(enabled), tf.constant([1.0, 2.0, 3.0]))
        np.testing.assert_allclose(xla(stats)(*args), stats(*args), rtol=1e-6)


def tiny_cnn():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((16, 16, 3))
    x = layers.Conv2D(32, 3, activation="relu")(inputs)
    x = layers.BatchNormalization()(x)
    x = layers.MaxPooling2D(3, 2)(x)
    return keras.Model(inputs, layers.Dense(10)(layers.Flatten()(layers.Conv2D(32, 3)(x))))


def losses(jit, policy):
    keras.config.set_dtype_policy(policy)
    try:
        model = compiled(tiny_cnn(), keras.optimizers.SGD(0.01), jit_compile=jit)
    finally:
        keras.config.set_dtype_policy("float32")
    assert ct.compress_model(model).obstacle is None
    history = model.fit(X, Y, batch_size=8, epochs=5, shuffle=False, verbose=0)
    sites = instrumentation(model).sites().values()
    assert sites and all(site.read_state().stream_bytes > 0 for site in sites)
    assert all((site.bits is not None) == jit for site in sites)
    return np.array(history.history["loss"])


@pytest.mark.long("mixed_bfloat16")
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_trains_as_the_executor_does(policy):
    executor, ours = losses(False, policy), losses(True, policy)
    assert ours[-1] < 0.9 * ours[0]
    assert np.abs(ours - executor).max() <= 0.03 * executor[0]


def test_gradients_are_those_of_plain_keras_within_the_rates():
    def step(model):
        @xla
        def gradients(x, y):
            with tf.GradientTape() as tape:
                loss = model.compute_loss(x=x, y=y, y_pred=model(x, training=True))
            return tape.gradient(loss, [v.value for v in model.trainable_variables])

        return [g.numpy().ravel() for g in gradients(tf.constant(X), tf.constant(Y))]

    plain = step(compiled(small_cnn()))
    model = compiled(small_cnn())  # whose seeds are those of the first again
    ct.compress_model(model)
    for ours, theirs, variable in zip(step(model), plain, model.trainable_variables):
        error = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
        assert error < 0.15 or np.linalg.norm(theirs) < 1e-5, (variable.path, error)


@pytest.mark.long
def test_the_library_may_load_late():
    code = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from models import compiled, images, keras, layers\n"
        "parts = [keras.Input((16, 16, 3)), layers.Conv2D(8, 3), layers.Flatten(), layers.Dense(10)]\n"
        "model = compiled(keras.Sequential(parts), jit_compile=True)\n"
        "x, y = images(8)\n"
        "model.train_on_batch(x, y)\n"  # XLA and its kernels are set up
        "import tf_comptrain as ct\n"
        "from tf_comptrain import native\n"
        "from tf_comptrain.compression.instrumentation import instrumentation\n"
        "assert not native.is_loaded()\n"
        "assert ct.compress_model(model).obstacle is None\n"
        "model.train_on_batch(x, y)\n"
        "assert all(s.read_state().stream_bytes for s in instrumentation(model).sites().values())\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.long
@pytest.mark.parametrize("how", ["flags", "set_jit"])
def test_auto_clustering_leaves_the_ops_out(how):
    """Of other layout under XLA: a cluster with the reader and not the writer of a mask would be wrong."""
    code = (
        "import sys; sys.path[:0] = ['tests', 'tests/compression']\n"
        "import numpy as np\n"
        "import tensorflow as tf\n"
        "from test_xla import compiled, ct, keras, tiny_cnn, X, Y\n"
        "if sys.argv[1] == 'set_jit':\n"
        "    tf.config.optimizer.set_jit('autoclustering')\n"
        "def losses(compress, **options):\n"
        "    model = compiled(tiny_cnn(), keras.optimizers.SGD(0.001), **options)\n"
        "    if compress:\n"
        "        assert ct.compress_model(model, error_bound=1e-5).obstacle is None\n"
        "    return model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0).history['loss']\n"
        "plain = losses(False, jit_compile=False)\n"
        "for options in ({}, {'steps_per_execution': 2}):\n"
        "    ours = losses(True, jit_compile=False, **options)\n"
        "    np.testing.assert_allclose(ours, plain, rtol=1e-3)\n"
        "assert np.isfinite(losses(True, jit_compile=True)).all()\n"  # compiled as a whole they still are
    )
    flags = "--tf_xla_cpu_global_jit" + (" --tf_xla_auto_jit=2" if how == "flags" else "")
    environment = dict(os.environ, TF_XLA_FLAGS=flags)
    done = subprocess.run([sys.executable, "-c", code, how], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_relative_bound_that_overflows_is_limited():
    x = np.array(normal(64, 64))
    x[0, :2] = 3e38, -3e38
    for bits in (4, 8):
        codec = FixedRateCodec(bits)

        @xla
        def run(x, state, codec=codec):
            _, stream, new_state = codec.compress(x, state, 0.5, False, "range")
            return new_state, codec.decompress(stream, tf.shape(x), x.dtype, gate=x)

        state, _ = run(tf.constant(x), tf.zeros(len(State._fields)))
        state, x_hat = run(tf.constant(x), state)
        assert State(*state.numpy().tolist()).bound_used == LARGEST_BOUND
        assert np.isfinite(x_hat).all()


def one_held_tensor():
    """A copy of the batch is held, since what made it trains, and the batch itself is not."""
    copied = layers.DepthwiseConv2D(1, depthwise_initializer="ones")
    return keras.Sequential([keras.Input((8, 8, 32)), copied, layers.Conv2D(10, 8), layers.Flatten()])


def test_the_rate_follows_the_bound():
    def rate(bound, mid_rise=False, **fields):
        site = storage.Site("a/input", ct.codecs.get("plane"), bound, "linear")
        site.state.assign(State(**fields))
        return site.rate(mid_rise)

    assert rate(None) == 4 and rate(None, mid_rise=True) == 3
    assert rate(ct.ErrorBound(0.25)) == 3
    assert rate(ct.ErrorBound(0.02)) == 6
    assert rate(None, bound_set=1.0, running_sigma=1.0) == 2
    assert rate(None, bound_set=1.0) == 8  # of values whose size is not known yet
    assert rate(ct.ErrorBound(0.01, relative_to="range")) == 6
    site = storage.Site("a/input", ct.codecs.get("plane"), None, "linear")
    assert site.coder(mid_rise=False, xla=False) is site.codec  # the executor's


def depthwise_chain(depth):
    x = inputs = keras.Input((32, 32, 32))
    for k in range(depth):
        x = layers.DepthwiseConv2D(3, padding="same", activation="gelu" if k % 2 else "silu")(x)
    return keras.Model(inputs, layers.GlobalMaxPooling2D()(x))


def requested_peak(trace):
    """What a step asks for: the allocator may give it a chunk of twice that, as earlier tests left it."""
    live, highest = {}, 0
    for event in trace.events:
        live.pop(event.address, None)
        if event.bytes > 0:
            live[event.address] = event.requested_bytes
            highest = max(highest, sum(live.values()))
    return highest


@pytest.mark.long("depthwise_chain-*")
@pytest.mark.parametrize("build, depth", [(chain, 12), (depthwise_chain, 4)])
def test_memory_of_the_compiled_step_falls(build, depth):
    if tf.config.list_logical_devices("GPU"):
        pytest.skip("on a GPU XLA plans the convolutions' workspaces in, as large as the tensors here")
    x, y = normal(16, 32, 32, 32), tf.zeros((16, 32))
    peaks = []
    for compress in (False, True):
        model = build(depth)
        model.compile(keras.optimizers.SGD(1e-3), "mse", jit_compile=True)
        if compress:
            ct.compress_model(model)
        for _ in range(2):
            model.train_on_batch(x, y)
        peaks.append(requested_peak(trace_step(lambda: model.train_on_batch(x, y))))  # noqa: B023
    assert peaks[1] < 0.5 * peaks[0]


@pytest.mark.long("head_kept")
@pytest.mark.parametrize("storage", [None, {"head": "keep"}], ids=["by_tiles", "head_kept"])
def test_a_gradient_that_others_wait_for_is_not_copied(storage):
    """The gradient of the logits is a hundred times larger than what is restored when it is there."""
    if tf.config.list_logical_devices("GPU"):
        pytest.skip("on a GPU XLA plans the convolutions' workspaces in, as large as the tensors here")
    rows, words, width = 512, 8192, 32
    tokens = tf.zeros((8, rows // 8), tf.int32)
    peaks = []
    for compress in (False, True):
        keras.utils.set_random_seed(0)
        x = inputs = keras.Input((rows // 8,), dtype="int32")
        x = layers.Embedding(words, width)(x)
        for _ in range(2):
            x = x + layers.Dense(width)(
                layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
            )
        model = keras.Model(inputs, layers.Dense(words, name="head")(layers.LayerNormalization()(x)))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(1e-3), loss, jit_compile=True)
        if compress:
            ct.compress_model(model, storage=storage)
        for _ in range(2):
            model.train_on_batch(tokens, tokens)
        peaks.append(requested_peak(trace_step(lambda: model.train_on_batch(tokens, tokens))))  # noqa: B023
    logits = 4 * rows * words
    # Of a head that is kept XLA may find the loss, of a tensor of that size, while the gradient is alive.
    most = peaks[0] + 1.25 * logits if storage else peaks[0] - 0.25 * logits
    assert peaks[0] > 2 * logits and peaks[1] < most, (peaks, logits)


def program_of_step(model, *shapes):
    """What XLA is given, for an x and a y of those shapes."""
    model.optimizer.build(model.trainable_variables)
    step = xla(lambda x, y: model.train_step((x, y)))
    return step.experimental_get_compiler_ir(*map(tf.TensorSpec, shapes))(stage="hlo")


@pytest.mark.parametrize("fence", ["custom-call", "opt-barrier"])
def test_input_gradients_wait_for_weight_gradients(fence, monkeypatch):
    """In the program that XLA is given; a control dependency would not be in it."""
    if fence == "opt-barrier":
        monkeypatch.setenv("TF_COMPTRAIN_XLA_TARGET", "GPU")
    elif tf.config.list_logical_devices("GPU"):
        pytest.skip("the custom call is for the CPU's compiler")
    model = chain(3)
    model.compile(keras.optimizers.SGD(1e-3), "mse", jit_compile=True)
    ct.compress_model(model)
    program = program_of_step(model, (16, 32, 32, 32), (16, 32))
    made = {}
    for name, operation, operands in re.findall(r"%(\S+) = .*? ([\w-]+)\((.*?)\)(?:,|\n)", program):
        made[name] = operation, re.findall(r"%([\w.-]+)", operands)
    fences = {name for name in made if re.match(r"Comptrain_Fence[_.\d]*$", name)}

    def operands_of(name):
        return made[name][1] if fence == "custom-call" else made[made[name][1][0]][1]  # of a tuple

    fences = {
        name
        for name in fences
        if made[name][0] == fence and any("BackpropFilter" in operand for operand in operands_of(name))
    }
    assert len(fences) == 2  # the first convolution reads the batch, and needs no gradient for it
    gradients = {name for name in made if re.match(r"Conv2DBackpropInput(_1)?[.\d]*$", name)}
    read = [made[name][1][0] for name in gradients if made[name][0] == "convolution"]
    behind = "add-dependency" if fence == "custom-call" else "get-tuple-element"
    waiting = [dy for dy in read if made[dy][0] == behind and made[dy][1][-1] in fences]
    assert len(waiting) == 2


def test_products_of_a_reshaped_gradient_wait_under_xla():
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((16, 64))
    for _ in range(3):
        x = layers.Dense(64, activation="tanh")(x)
    model = keras.Model(inputs, x)
    model.compile(keras.optimizers.SGD(1e-3), "mse", jit_compile=True)
    ct.compress_model(model)
    program = program_of_step(model, (8, 16, 64), (8, 16, 64))
    read = re.findall(r"= \S+ reshape\((?:\S+ )?%(\S+)\).*late/Reshape", program)
    fences = [re.search(rf"%{re.escape(name)} = .*add-dependency.*Fence", program) for name in read]
    assert len(read) == 2 and all(fences)


def test_what_waits_is_the_sum_of_the_samples_products():
    """Else XLA keeps the products of all samples until the update adds them up."""
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((16, 64))
    for _ in range(3):
        x = layers.EinsumDense("btd,df->btf", (None, 64), activation="tanh")(x)
    model = keras.Model(inputs, x)
    model.compile(keras.optimizers.SGD(1e-3), "mse", jit_compile=True)
    ct.compress_model(model)
    program = program_of_step(model, (8, 16, 64), (8, 16, 64))
    shape_of = dict(re.findall(r"%(\S+) = (\w+\[[\d,]*\])", program))
    calls = re.findall(r"custom-call\((.*?)\), custom_call_target=\"comptrain_fence\"", program)
    calls += re.findall(r"opt-barrier\((.*?)\)", program)
    waiting = [shape_of.get(name, "") for call in calls for name in re.findall(r"%([\w.-]+)", call)]
    assert waiting.count("f32[64,64]") == 2  # the first layer needs no gradient for the batch
    assert "f32[8,64,64]" not in waiting


def test_depthwise_gelu_silu_and_global_max_train_as_plain():
    def net():
        keras.utils.set_random_seed(0)
        x = inputs = keras.Input((12, 12, 16))
        x = layers.DepthwiseConv2D(3, padding="same", activation="gelu")(x)
        x = layers.Conv2D(16, 3, padding="same", groups=16, kernel_initializer="he_normal")(x)
        x = layers.Activation("silu")(x)
        return keras.Model(inputs, layers.Dense(10)(layers.GlobalMaxPooling2D()(x)))

    x, y = images(8, size=12, channels=16)
    losses = []
    for compress in (False, True):
        model = compiled(net(), jit_compile=compress, run_eagerly=not compress)
        if compress:
            report = ct.compress_model(model)
            assert report.obstacle is None
        losses.append(np.array([model.train_on_batch(x, y) for _ in range(8)]))
    plain, ours = losses
    assert plain[-1] < 0.9 * plain[0]
    assert np.abs(ours - plain).max() <= 0.01 * plain[0]


def test_slices_have_the_gradients_of_the_whole_batch():
    keras.utils.set_random_seed(0)
    block = keras.Sequential([layers.Conv2D(32, 3, padding="same", activation="gelu"), layers.Conv2D(8, 3)])
    wrapped = ct.Recompute(block, slices=4)
    x, dy = normal(8, 10, 10, 4), normal(8, 8, 8, 8)
    wrapped.build(x.shape)

    def gradients(layer):
        @xla
        def step(x, dy):
            with ct.training_scope(), tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x, training=True)
            return tape.gradient(y, [x, *(v.value for v in block.trainable_variables)], dy)

        return step(x, dy)

    for ours, theirs in zip(gradients(wrapped), gradients(block)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.long("False")
@pytest.mark.parametrize("is_compiled_first", [True, False])
def test_a_lossless_codec_holds_masks_and_says_what_stays(is_compiled_first, caplog):
    losses = []
    for codec in (None, "zvc"):
        keras.utils.set_random_seed(1)
        model = small_cnn()
        if is_compiled_first:
            compiled(model, jit_compile=True)
        if codec is not None:
            report = ct.compress_model(model, codec=codec)
        compiled(model, jit_compile=True)
        losses.append([model.train_on_batch(X[:8], Y[:8]) for _ in range(3)])
    np.testing.assert_allclose(*losses, rtol=1e-5)
    said = [record.message for record in caplog.records if "stay as they are" in record.message]
    assert len(said) == 1 and "'zvc'" in said[0] and model.name in said[0]
    assert report.obstacle is None and report.engine == "XLA"
    assert {row.storage for row in report.rows} == {"keep", "bitmask"}
    assert any("'zvc'" in row.note for row in report.rows if row.storage == "keep")


def test_a_lossless_codec_leaves_attention_to_tiles():
    def model():
        keras.utils.set_random_seed(1)
        x = inputs = keras.Input((256, 64))
        x = layers.Add()([x, layers.MultiHeadAttention(4, 16)(x, x)])
        outputs = layers.Dense(1)(layers.GlobalAveragePooling1D()(x))
        made = keras.Model(inputs, outputs)
        made.compile("sgd", "mse", jit_compile=True)
        return made

    batch = np.random.default_rng(0).standard_normal((8, 256, 64)).astype("float32"), np.ones((8, 1))
    plain, exact = model(), model()
    ct.compress_model(exact, codec="zvc")
    for ours, theirs in zip(*([m.train_on_batch(*batch) for _ in range(3)] for m in (exact, plain))):
        assert ours == pytest.approx(theirs, rel=1e-5)
    planned = [ct.memory.memory_analysis(m, *batch).temporary_bytes for m in (plain, exact)]
    assert planned[1] < planned[0] / 1.5


@pytest.mark.long(but=["rans-True"])
@pytest.mark.parametrize("is_compiled_first", [True, False])
@pytest.mark.parametrize("codec", ["rans", "auto", "plane", "plane+dither"])
def test_a_fixed_rate_in_place_of_entropy_coding_is_said_once(codec, is_compiled_first, caplog):
    model = small_cnn()
    if is_compiled_first:
        compiled(model, jit_compile=True)
    report = ct.compress_model(model, codec=codec)
    compiled(model, jit_compile=True)
    for _ in range(2):
        model.train_on_batch(X[:8], Y[:8])
    said = [record.message for record in caplog.records if "fixed number of bits" in record.message]
    assert len(said) == (codec in ("rans", "auto")) and all(repr(codec) in sentence for sentence in said)
    assert report.engine == "XLA" and "runs on XLA" in str(report)
    assert {row.bits for row in report.rows if row.storage == "compress"} <= {2.25, 3.25, 4.25}


@pytest.mark.long(but=["rans-*-True", "zvc-*-False"])
@pytest.mark.parametrize("is_compiled_first", [True, False])
@pytest.mark.parametrize("codec, said", [("zvc", "stay as they are"), ("rans", "fixed number of bits")])
def test_codecs_of_a_policy_are_said_once(codec, said, is_compiled_first, caplog):
    model = keras.Sequential([keras.Input((64,)), layers.Dense(64), layers.Dense(10)])
    if is_compiled_first:
        compiled(model, jit_compile=True)
    report = ct.compress_model(model, policy=ct.Policy({"linear": ct.Setting(codec)}))
    compiled(model, jit_compile=True)
    for count in (256, 128):  # two traces
        model.train_on_batch(tf.ones((count, 64)), tf.zeros(count))
    sentences = [record.message for record in caplog.records if said in record.message]
    assert len(sentences) == 1 and repr(codec) in sentences[0]
    assert report.engine == "XLA" and report.obstacle is None
    assert any(row.storage == "compress" for row in report.rows) == (codec == "rans")


@pytest.mark.long(but=["rans-*"])
@pytest.mark.parametrize(
    "codec, said", [("zvc", "stays as it is"), ("rans", "fixed number of bits"), ("plane", None)]
)
def test_wrappers_say_once_what_xla_makes_of_their_codec(codec, said, caplog, monkeypatch):
    monkeypatch.setattr(wrapper, "_said", set())
    hidden = [ct.Compress(layers.Dense(64, activation="tanh"), codec=codec) for _ in range(2)]
    model = keras.Sequential([keras.Input((64,)), layers.Dense(64), *hidden, layers.Dense(10)])
    compiled(model, jit_compile=False).train_on_batch(tf.ones((256, 64)), tf.zeros(256))
    assert not [record for record in caplog.records if record.name == "absl"]
    compiled(model, jit_compile=True)
    for count in (256, 128):
        model.train_on_batch(tf.ones((count, 64)), tf.zeros(count))
    records = [record for record in caplog.records if record.name == "absl"]  # TensorFlow says that it traces
    assert len(records) == (said is not None)
    assert all(said in record.message and repr(codec) in record.message for record in records)


def test_the_report_follows_the_engine():
    model = compiled(perceptron(), jit_compile=True)
    report = ct.compress_model(model, codec="zvc")
    model.train_on_batch(*ROWS)
    assert not any(row.storage == "compress" for row in report.rows) and report.engine == "XLA"
    compiled(model, jit_compile=False)
    model.train_on_batch(*ROWS)
    assert report.engine == "TensorFlow's executor"
    assert [row.bits for row in report.rows if row.storage == "compress"]


def test_the_report_predicts_the_rates_and_names_layers_without_xla():
    parts = [keras.Input((8, 8, 32)), layers.Conv2D(32, 3), layers.Flatten(), layers.Dense(10)]
    report = ct.compress_model(compiled(keras.Sequential(parts), jit_compile=True))
    assert report.rows[0].predicted_bytes == 6 * 6 * 32 * 4.25 / 8
    model = compiled(keras.Sequential([keras.Input((8,)), layers.Dense(10, name="odd")]))
    model.get_layer("odd").supports_jit = False
    report = ct.compress_model(model)
    assert report.without_xla == ("odd",) and "because of odd" in str(report)


class Seen(keras.layers.Layer):
    """Samples, or tokens, above a mean."""

    def __init__(self, tokens):
        super().__init__()
        self._tokens = tokens

    def call(self, x):
        means = tf.reduce_mean(x, -1 if self._tokens else (1, 2))
        return tf.boolean_mask(x, means > tf.reduce_mean(x))

    def compute_output_spec(self, x):
        return keras.KerasTensor((None, *x.shape[2 if self._tokens else 1 :]), x.dtype)


@pytest.mark.parametrize("tokens", [False, True], ids=["samples", "tokens"])
def test_sizes_that_depend_on_values_train_as_plain_keras_and_say_so(tokens, caplog):
    x = np.random.default_rng(0).normal(size=(32, 16, 64)).astype("float32")

    def losses(compressed):
        keras.utils.set_random_seed(0)
        inputs = keras.Input((16, 64))
        seen = Seen(tokens)(keras.layers.Dense(64, "gelu")(inputs))
        model = keras.Model(inputs, keras.layers.Dense(64)(keras.layers.LayerNormalization()(seen)))
        if compressed:
            ct.compress_model(model)
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)

        @tf.function(jit_compile=True)
        def step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x, training=True) ** 2)
            optimizer.apply_gradients(
                zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            )
            return loss

        return [float(step()) for _ in range(3)]

    assert losses(compressed=True) == pytest.approx(losses(compressed=False), rel=1e-6)
    assert sum("depend on values" in record.message for record in caplog.records) == 1


class Switched(keras.layers.Layer):
    def call(self, x):
        return tf.cond(tf.reduce_mean(x) > 0, lambda: tf.tanh(x), lambda: x)


@pytest.mark.parametrize("samples, is_plain", [(None, True), (32, False)])
def test_a_branch_of_so_many_samples_trains_as_plain_keras(samples, is_plain):
    x = np.random.default_rng(0).normal(size=(32, 16, 32)).astype("float32")

    def gradients(compressed):
        keras.utils.set_random_seed(0)
        inputs = keras.Input((16, 32))
        switched = Switched()(keras.layers.Dense(32, "relu")(inputs))
        model = keras.Model(inputs, keras.layers.Dense(8)(switched))
        report = ct.compress_model(model, check=False) if compressed else None

        @tf.function(jit_compile=True, input_signature=[tf.TensorSpec([samples, 16, 32])])
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x, training=True) ** 2)
            return tape.gradient(loss, model.trainable_variables)

        return step(x), report

    plain, (found, report) = gradients(False)[0], gradients(True)
    assert ("depend on values" in (report.obstacle or "")) == is_plain
    for ours, its in zip(found, plain):
        assert np.linalg.norm(ours - its) <= (1e-6 if is_plain else 0.2) * np.linalg.norm(its)


def test_a_branch_may_have_a_max_pooling():
    x = tf.constant(np.random.default_rng(0).normal(size=(32, 16, 16, 3)), tf.float32)

    def gradients(compressed):
        keras.utils.set_random_seed(0)
        parts = [layers.Conv2D(16, 3, padding="same", activation="relu"), layers.MaxPooling2D()]
        inside = keras.Sequential([keras.Input(x.shape[1:]), *parts, layers.GlobalAveragePooling2D()])
        if compressed:
            ct.compress_model(inside)

        @tf.function(jit_compile=True)
        def step(x):
            with tf.GradientTape() as tape:
                y = tf.cond(tf.reduce_sum(x) > -1e9, lambda: inside(x, training=True), lambda: inside(0 * x))
                loss = tf.reduce_mean(y**2)
            return tape.gradient(loss, inside.trainable_variables)

        return step(x)

    for ours, its in zip(gradients(True), gradients(False)):
        np.testing.assert_allclose(ours, its, rtol=1e-5, atol=1e-7)


def test_a_loss_of_some_tokens_is_compressed():
    inputs = keras.Input((16, 64))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(64, "gelu")(inputs)))
    report = ct.compress_model(model, check=False)
    x = np.random.default_rng(0).normal(size=(32, 16, 64)).astype("float32")

    @tf.function(jit_compile=True)
    def step(x):
        with tf.GradientTape() as tape:
            y = tf.square(model(x, training=True)[..., 0])
            loss = tf.reduce_mean(tf.boolean_mask(y, x[..., 0] > 0))
        return tape.gradient(loss, model.trainable_variables)

    assert np.all(np.isfinite(step(tf.constant(x))[0]))
    assert report.obstacle is None and "compress" in [row.storage for row in report.rows]


@pytest.mark.parametrize("policy", [False, True])
@pytest.mark.parametrize("bound, count", [(1e-3, 1), (0.1, 0)])
def test_a_bound_that_no_code_is_fine_enough_for_is_said_once(bound, count, policy, caplog):
    how = {"error_bound": ct.ErrorBound(bound)}
    if policy:
        fine = ct.Setting("plane", bound=bound)
        how = {"policy": ct.Policy({"linear": fine, "nonlinear": fine})}
    model = perceptron()
    ct.compress_model(model, **how)
    compiled(model, jit_compile=True)
    for rows in (256, 128):  # two traces
        model.train_on_batch(tf.ones((rows, 64)), tf.zeros(rows))
    said = [record.message for record in caplog.records if "8 bits a value" in record.message]
    assert len(said) == count and all(f"{bound:g} sigma" in sentence for sentence in said)


def test_a_normalized_and_another_product_of_one_tensor():
    """The one waits for what the gradient of the other makes of its own; both read the tensor again."""

    samples = normal(32, 32, 24)

    def gradients(model):
        return tf.function(lambda x: gradients_of(model, x), jit_compile=True)(samples)

    def gradients_of(model, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True)))
        return tape.gradient(loss, model.trainable_variables)

    inputs = x = keras.Input((32, 24))
    for _ in range(2):
        x = layers.Add()([layers.LayerNormalization()(layers.Dense(16)(x)), layers.Dense(16)(x)])
    model = keras.Model(inputs, layers.Dense(8)(x))
    plain = gradients(model)
    ct.compress_model(model)
    difference = [ours - theirs for ours, theirs in zip(gradients(model), plain)]
    assert 0 < tf.linalg.global_norm(difference) < 0.05 * tf.linalg.global_norm(plain)


class Prototypes(keras.layers.Layer):
    """Distances to 64 of them, of 128 values: sums of 128 times as much as they are."""

    def build(self, shape):
        self.at = self.add_weight(shape=(64, shape[-1]), name="at")

    def call(self, x):
        return -tf.reduce_sum(tf.square(x[:, None] - self.at), -1)


@pytest.mark.parametrize(
    "function", [tf.abs, tf.nn.relu, tf.nn.leaky_relu, lambda x: tf.clip_by_value(x, -1.0, 1.0)]
)
def test_no_bits_of_what_is_broadcast(function):
    """XLA makes it, and what a gradient asks of it, as it is read: bits, and what they select, would be in memory."""

    class Pairs(keras.layers.Layer):
        def build(self, shape):
            self.at = self.add_weight(shape=(64, shape[-1]), name="at")

        def call(self, x):
            return tf.reduce_mean(function(x[:, None] + self.at), -1)

    model = keras.Sequential([keras.Input((32,)), layers.Dense(128), Pairs()])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=True)
    x, y = np.zeros((256, 32), "float32"), np.zeros(256, "int32")
    plain = ct.memory.memory_analysis(model, x, y).temporary_bytes
    ct.compress_model(model)
    assert ct.memory.memory_analysis(model, x, y).temporary_bytes < 1.05 * plain


def test_sums_of_much_are_not_made_again():
    """A loss reads them as well: the differences would be there twice."""
    model = keras.Sequential([keras.Input((32,)), layers.Dense(128), layers.Dense(128), Prototypes()])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=True)
    x, y = np.zeros((256, 32), "float32"), np.zeros(256, "int32")
    plain = ct.memory.memory_analysis(model, x, y).temporary_bytes
    ct.compress_model(model)
    assert ct.memory.memory_analysis(model, x, y).temporary_bytes < 1.05 * plain
