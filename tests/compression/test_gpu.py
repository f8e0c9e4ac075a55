"""What needs a GPU: skipped, and said so, where there is none."""

import functools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from models import compiled, images, small_cnn
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain import _keras, codecs, native
from tf_comptrain.compression.instrumentation import instrumentation
from tf_comptrain.storage import gpu_check

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not tf.config.list_physical_devices("GPU"), reason="there is no GPU here")
X, Y = images(32)


def needs_kernels():
    native.ops()
    if "GPU" not in _keras.kernel_devices("Comptrain>Compress"):
        pytest.skip("the library was built without CUDA")


def losses(model):
    return model.fit(X, Y, batch_size=8, epochs=4, shuffle=False, verbose=0).history["loss"]


def all_compressed(model):
    sites = instrumentation(model).sites().values()
    return len(sites) >= 3 and all(site.read_state().stream_bytes for site in sites)


def test_keras_default_compresses():
    model = compiled(small_cnn())
    report = ct.compress_model(model)
    assert model.jit_compile and report.obstacle is None
    history = losses(model)
    assert np.isfinite(history).all() and history[-1] < history[0]
    assert all_compressed(model)


@pytest.mark.parametrize("xla", [False, True])
def test_the_kernels_answer_as_the_cpu(xla):
    needs_kernels()
    assert gpu_check.problem(xla) is None


@pytest.mark.parametrize("codec", ["plane", "plane+dither", "rans", "rans+dither", "zvc", "auto"])
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_the_executor_compresses(codec, policy):
    needs_kernels()
    keras.config.set_dtype_policy(policy)
    try:
        plain = compiled(small_cnn(), jit_compile=False)
        model = compiled(small_cnn(), jit_compile=False)
    finally:
        keras.config.set_dtype_policy("float32")
    assert ct.compress_model(model, codec=codec).obstacle is None
    ours, theirs = np.array(losses(model)), np.array(losses(plain))
    assert np.isfinite(ours).all() and np.abs(ours - theirs).max() < 0.1 * theirs[0]
    assert all_compressed(model)


def test_peak_of_the_executor_falls():
    needs_kernels()
    x, y = images(64, size=64)
    peaks = []
    for compress in (False, True):
        model = compiled(small_cnn(size=64), jit_compile=False)
        if compress:
            ct.compress_model(model)
        peaks.append(ct.memory.measure_step(model, tf.constant(x), tf.constant(y), steps=2).peak_bytes)
    assert peaks[1] < 0.7 * peaks[0]


@pytest.mark.parametrize("bits, mid_rise", [(3, True), (5, False), (8, False)])
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_compiled_steps_write_the_cpus_streams(bits, mid_rise, dtype):
    needs_kernels()
    ops = native.ops()

    @functools.partial(tf.function, jit_compile=True)
    def run(x, dy, vector):
        options = {"bits": bits, "mid_rise": mid_rise}
        _, stream, state = ops.comptrain_compress(
            x, tf.constant(codecs.State(bound_set=0.25, steps=5)), **options
        )
        x_hat = ops.comptrain_decompress(stream, tf.shape(x), dy, state, T=x.dtype, **options)
        if mid_rise:
            gradients = [ops.comptrain_stream_mask_grad(stream, [dy], bits=bits)]
        else:
            gradients = ops.comptrain_batch_norm_grad(
                stream, dy, vector, 1 - vector, vector, state, **options
            )
        return stream, x_hat, state, *gradients

    rng = np.random.default_rng(0)
    for shape in [(8, 4, 4, 32), (5, 7, 3, 13), (4, 300, 96), (64, 3, 5, 24), (17,)]:
        x, dy = (tf.cast(rng.normal(size=shape), dtype) * 3 for _ in range(2))
        inputs = tf.nn.relu(x) if mid_rise else x, dy, tf.linspace(0.5, 1.0, shape[-1])
        found = []
        for device in ("CPU:0", "GPU:0"):
            with tf.device(device):
                found.append(run(*map(tf.identity, inputs)))
        (stream, x_hat, state, *gradients), (ours, our_x_hat, our_state, *our_gradients) = found
        np.testing.assert_array_equal(stream, ours)
        np.testing.assert_array_equal(x_hat, our_x_hat)
        np.testing.assert_allclose(state, our_state, rtol=1e-5)
        for one, other in zip(gradients, our_gradients):
            one, other = (np.asarray(tf.cast(part, tf.float32)) for part in (one, other))
            np.testing.assert_allclose(other, one, atol=1e-2 * np.abs(one).max())


def test_a_damaged_stream_is_an_error():
    needs_kernels()
    ops = native.ops()
    state = tf.constant(codecs.State(bound_set=0.1), tf.float32)
    with tf.device("GPU:0"):
        x = tf.random.stateless_normal((64, 64), seed=(1, 2))
        _, stream, _ = ops.comptrain_compress(x, state)
        broken = tf.concat([stream[:64], stream[64:] ^ 255], axis=0)
        with pytest.raises(tf.errors.InvalidArgumentError, match="damaged"):
            for _ in range(2):  # noted by the first, reported by the next
                ops.comptrain_decompress(broken, x.shape, x, (), T=x.dtype).numpy()
        np.testing.assert_allclose(ops.comptrain_decompress(stream, x.shape, x, (), T=x.dtype), x, atol=0.1)


def test_codecs_write_the_cpu_bytes():
    command = [sys.executable, str(ROOT / "tools/build_native.py"), "gpu", "100", "0"]
    run = subprocess.run(command, capture_output=True, text=True)
    if "there is no nvcc" in run.stdout:
        pytest.skip("there is no nvcc")
    assert run.returncode == 0, run.stdout
    assert "passed, 0 failed" in run.stdout  # the program found the GPU
