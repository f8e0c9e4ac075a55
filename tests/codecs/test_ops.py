"""The ops themselves: arguments that each must refuse, whatever TensorFlow knows of their shapes beforehand."""

import numpy as np
import pytest
import tensorflow as tf

from tf_comptrain import native

STATE = np.zeros(10, np.float32)
POOL = {"ksize": [2, 2], "strides": [2, 2]}
SEED = {"key": np.zeros(1, np.uint64), "counter": np.zeros(2, np.uint64)}


def ones(*shape):
    return np.ones(shape, np.float32)


def stream(*shape):
    return np.zeros(shape, np.uint8)


def batch_norm(dy, vector, codes=stream(2, 4), state=STATE):  # noqa: B008
    return {"stream": codes, "dy": dy, "gamma": vector, "mean": vector, "inv_std": vector, "state": state}


# op, inputs, attributes, message
ON_BOTH = [
    ("compress", {"x": ones(4), "state": ones(8)}, {}, r"state must have shape \[10\]"),
    ("compress", {"x": ones(4), "state": ones(3, 3)}, {}, r"state must have shape \[10\].*got \[3,3\]"),
    (
        "compress",
        {"x": ones(4), "state": STATE},
        {"relative_bound": 0.0},
        "relative_bound must be a positive",
    ),
    ("compress", {"x": ones(4), "state": STATE}, {"decay": 1.0}, r"decay must be in \[0, 1\)"),
    ("batch_norm_grad", batch_norm(ones(), ones(1)), {}, "dy must have channels"),
    ("batch_norm_grad", batch_norm(ones(2, 0), ones(0)), {}, "dy must have channels"),
    ("batch_norm_grad", batch_norm(ones(2, 4), ones(3)), {}, r"gamma must have shape \[4\].*got \[3\]"),
    ("batch_norm_grad", batch_norm(ones(2, 4), ones(1, 4)), {}, r"gamma must have shape \[4\]"),
    ("max_pool", {"x": ones(4, 4, 1)}, POOL, "x must be .batch, 2 spatial dimensions"),
    ("max_pool", {"x": ones(1, 0, 4, 1)}, POOL, "larger than the input"),
    ("max_pool", {"x": ones(1, 4, 4, 1)}, {"ksize": [2, 2], "strides": [1]}, "one entry for each"),
    ("max_pool", {"x": ones(1, 4, 4, 1)}, {"ksize": [2, 2], "strides": [1, 0]}, "must be positive"),
    ("max_pool", {"x": ones(1, 4, 4, 1)}, {"ksize": [2**31 - 1] * 2, "strides": [1, 1]}, "65536 positions"),
    (
        "max_pool_grad",
        {"index": stream(1), "dy": ones(1, 2, 2), "input_shape": [1, 4, 4, 1]},
        POOL,
        r"dy must have shape \[1,2,2,1\].*got \[1,2,2\]",
    ),
    (
        "gradient_stats",
        {"dy": ones(3), "enabled": [True], "previous": ones(3)},
        {},
        "enabled must have shape",
    ),
    ("gradient_stats", {"dy": ones(3), "enabled": True, "previous": ones(4)}, {}, "previous must have shape"),
]
ON_THE_EXECUTOR = [
    ("decompress", {"stream": stream(100), "shape": [4], "gate": 0, "state": []}, {"T": tf.float32}, "magic"),
    ("decompress", {"stream": stream(9), "shape": [4], "gate": 0, "state": []}, {"T": tf.float32}, "64-byte"),
    ("decompress", {"stream": stream(100), "shape": [-4], "gate": 0, "state": []}, {"T": tf.float32}, ">= 0"),
    ("stream_mask_grad", {"stream": stream(0), "dy": [ones(0)]}, {}, "64-byte header"),
    (
        "stream_mask_grad",
        {"stream": stream(66), "dy": [ones(2), ones(2)]},
        {},
        "one gradient, except under XLA",
    ),
    ("bitmask_grad", {"bits": stream(1), "dy": ones(9)}, {}, "one bit for each of the 9"),
    (
        "max_pool_grad",
        {"index": stream(2), "dy": ones(1, 2, 2, 1), "input_shape": [1, 4, 4, 1]},
        POOL,
        "1 bytes",
    ),
    ("dropout", {"x": ones(4), **SEED, "key": SEED["counter"]}, {"rate": 0.5, "scale": 2.0}, "key must have"),
    (
        "dropout",
        {"x": ones(4), **SEED, "counter": SEED["key"]},
        {"rate": 0.5, "scale": 2.0},
        "counter must have",
    ),
    ("dropout", {"x": ones(4), **SEED}, {"rate": 1.1, "scale": 2.0}, "rate must be between 0 and 1"),
    (
        "gelu_grad",
        {"x": ones(2, 3), "dy": ones(3, 2)},
        {},
        r"dy must have shape \[2,3\], that of x, got \[3,2\]",
    ),
    (
        "layer_norm_affine",
        {"x_norm": ones(2, 3), "gamma": ones(2), "beta": ones(3), "inv_std": ones(2)},
        {},
        "gamma must have shape",
    ),
    (
        "layer_norm_affine",
        {"x_norm": ones(2, 3), "gamma": ones(3), "beta": ones(1, 3), "inv_std": ones(2)},
        {},
        "beta must have",
    ),
    (
        "layer_norm_grad",
        {"x_norm": ones(2, 3), "dy": ones(6), "gamma": ones(3), "inv_std": ones(2)},
        {},
        "dy must have shape",
    ),
    (
        "layer_norm_grad",
        {"x_norm": ones(2, 3), "dy": ones(2, 3), "gamma": ones(3), "inv_std": ones(3)},
        {},
        r"inv_std must have shape \[2\], all but the last dimension of x_norm",
    ),
    ("memory_limit", {"x": ones(4), "limit_bytes": np.zeros(2, np.int64)}, {}, "limit_bytes must have shape"),
    ("memory_limit", {"x": ones(4), "limit_bytes": np.zeros(0, np.int64)}, {}, "limit_bytes must have shape"),
]
UNDER_XLA = [
    ("compress", {"x": ones(4), "state": STATE}, {"bits": 9}, "bits must be from 2 to 8, got 9"),
    (
        "decompress",
        {"stream": stream(8), "shape": [2, 4], "gate": ones(), "state": STATE},
        {"T": tf.float32},
        r"stream must have shape \[66\], that of 8 bits a value for a tensor of shape \[2,4\]",
    ),
    (
        "decompress",
        {"stream": stream(66), "shape": [2, 4], "gate": ones(), "state": ones(5)},
        {"T": tf.float32},
        "state must have shape",
    ),
    (
        "stream_mask_grad",
        {"stream": stream(8), "dy": [ones(2, 4)]},
        {"bits": 4},
        r"stream must have shape \[34\]",
    ),
    (
        "stream_mask_grad",
        {"stream": stream(34), "dy": [ones(2, 4), ones(4, 2)]},
        {"bits": 4},
        r"dy must have shape \[2,4\]",
    ),
    ("bitmask_grad", {"bits": stream(9), "dy": ones(9)}, {}, r"bits must have shape \[2\]"),
    (
        "max_pool_grad",
        {"index": stream(1, 2, 2, 1), "dy": ones(1, 2, 2, 1), "input_shape": [1, 4, 4, 1]},
        POOL,
        r"index must have shape \[1\]",
    ),
    ("batch_norm_grad", batch_norm(ones(2, 4), ones(4), stream(8)), {}, r"stream must have shape \[66\]"),
    ("batch_norm_grad", batch_norm(ones(2, 4), ones(4), state=ones(8)), {}, "state must have shape"),
]


def call(op, inputs, attributes, jit_compile=False):
    """Runs an op; under XLA with inputs whose shapes are known to the compiler only."""
    run = getattr(native.ops(), "comptrain_" + op)
    if not jit_compile:
        return run(**inputs, **attributes)
    tensors = {
        name: tf.nest.map_structure(tf.constant, value)
        for name, value in inputs.items()
        if "shape" not in name
    }
    fixed = {name: value for name, value in inputs.items() if "shape" in name}
    specs = tf.nest.map_structure(lambda t: tf.TensorSpec(None, t.dtype), list(tensors.values()))

    @tf.function(jit_compile=True, input_signature=specs)
    def compiled(*given):
        return run(**dict(zip(tensors, given, strict=True)), **fixed, **attributes)

    return compiled(*tensors.values())


@pytest.mark.parametrize("op, inputs, attributes, message", ON_BOTH + ON_THE_EXECUTOR)
def test_refused_by_the_executor(op, inputs, attributes, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        call(op, inputs, attributes)


@pytest.mark.parametrize("op, inputs, attributes, message", ON_BOTH + UNDER_XLA)
def test_refused_under_xla(op, inputs, attributes, message):
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=message):
        call(op, inputs, attributes, jit_compile=True)


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize(
    "shape, padding", [((1, 0, 4, 3), "SAME"), ((0, 4, 4, 3), "VALID"), ((1, 1, 4, 3), "VALID")]
)
def test_pooling_to_nothing(shape, padding, jit_compile):
    attributes = {"ksize": [2, 2], "strides": [3, 3], "padding": padding}
    y, index = call("max_pool", {"x": ones(*shape)}, attributes, jit_compile)
    assert tf.size(y) == tf.size(index) == 0
    inputs = {"index": index, "dy": y, "input_shape": shape}
    dx = call("max_pool_grad", inputs, attributes, jit_compile)
    np.testing.assert_array_equal(dx, np.zeros(shape))


def test_many_dimensions_under_xla():
    x = np.random.default_rng(0).normal(size=(2, 1, 3, 1, 2, 1, 2, 5)).astype(np.float32)
    state = np.eye(10, dtype=np.float32)[0] * 0.1
    _, codes, state = call("compress", {"x": x, "state": state}, {}, jit_compile=True)
    inputs = {"stream": codes, "shape": x.shape, "gate": ones(), "state": state}
    x_hat = call("decompress", inputs, {"T": tf.float32}, jit_compile=True)
    assert np.abs(x_hat - x).max() <= state[1]
