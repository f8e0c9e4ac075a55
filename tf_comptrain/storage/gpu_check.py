"""Whether the GPU kernels can be trusted on this machine: tried once, before their first use.

A small tensor goes through every op on the GPU and on the CPU. Streams, masks and pooling must be the same
byte for byte; sums and the gradient of batch normalization within rounding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from absl import logging

from tf_comptrain import native

_STATE = (0.1,) + (0.0,) * 9  # an absolute bound
_CODECS = ("plane", "rans", "zvc", "auto")


def on_gpu() -> bool:
    """Whether TensorFlow places operations on a GPU."""
    return bool(tf.config.list_logical_devices("GPU"))


@functools.cache
def problem(xla: bool = False) -> str | None:
    """Why the GPU kernels are not used; None when they work. Runs once a process and engine, and warns.

    Models train as plain Keras on the GPU where there is a problem.

    Args:
      xla: Of steps that XLA compiles. Else of the executor's.
    """
    with tf.init_scope():  # out of the graph that may be under construction
        if not tf.executing_eagerly():
            return "they can be tried in eager mode only"
        found = _first_difference("GPU:0", xla)
    if found is not None:
        logging.warning(
            "tf_comptrain: the GPU kernels failed their check on this machine, so models train as plain Keras: %s",
            found,
        )
    return found


def _first_difference(device: str, xla: bool) -> str | None:
    """What a device answers unlike the CPU; None where nothing."""
    rng = np.random.default_rng(0)
    # An image, large enough for rans to count frequencies.
    values = rng.normal(size=(4, 16, 17, 64)).astype("float32")
    for dtype in (tf.float32, tf.bfloat16, tf.float16):
        x = tf.nn.relu(tf.cast(tf.constant(values), dtype))
        for name, run, tolerance in _compiled_checks() if xla else _checks():
            try:
                with tf.device("CPU:0"):
                    expected = run(x)
                with tf.device(device):
                    found = run(tf.identity(x))
                problem = _compare(expected, found, tolerance)
            except tf.errors.OpError as error:
                problem = error.message
            if problem is not None:
                return f"{name}, {dtype.name}: {problem}"
    return None


def _compare(expected: list, found: list, tolerance: float) -> str | None:
    for ours, theirs in zip(found, expected):
        ours, theirs = (np.asarray(tf.cast(t, tf.float64)) for t in (ours, theirs))
        if ours.shape != theirs.shape:
            return f"{ours.size} elements where the CPU has {theirs.size}"
        error = np.abs(ours - theirs).max(initial=0.0)
        if not error <= tolerance * max(1.0, np.abs(theirs).max(initial=0.0)):
            return f"values differ from the CPU's by up to {error:.3g}"
    return None


def _checks() -> list[tuple[str, Callable[[tf.Tensor], list], float]]:
    """(name, what to run, tolerance relative to the largest value)."""
    ops = native.ops()

    def codec(name: str, relative_to: str, x: tf.Tensor) -> list:
        state = tf.constant(_STATE if relative_to == "sigma" else (0.0,) * 10)
        _, stream, new_state = ops.comptrain_compress(
            x, state, codec=name, mid_rise=True, relative_to=relative_to
        )
        x_hat = ops.comptrain_decompress(stream, tf.shape(x), x, (), T=x.dtype, codec=name)
        mask = ops.comptrain_stream_mask_grad(stream, [x], codec=name)
        return [stream, x_hat, mask, new_state[5:7]]  # bytes and range

    def batch_norm(name: str, x: tf.Tensor) -> list:
        _, stream, _ = ops.comptrain_compress(x, tf.constant(_STATE), codec=name)
        vector = tf.linspace(0.5, 1.0, x.shape[-1])
        return list(ops.comptrain_batch_norm_grad(stream, x, vector, 1 - vector, vector, (), codec=name))

    def masks(x: tf.Tensor) -> list:
        _, bits = ops.comptrain_bitmask(x, lower=0.0, upper=1.0)
        return [bits, ops.comptrain_bitmask_grad(bits, x, on=2.0, off=0.5)]

    def pool(x: tf.Tensor) -> list:
        window = {"ksize": (3, 3), "strides": (2, 2), "padding": "SAME"}
        y, index = ops.comptrain_max_pool(x, **window)
        return [y, index, ops.comptrain_max_pool_grad(index, y, tf.shape(x), **window)]

    def statistics(x: tf.Tensor) -> list:
        return [ops.comptrain_gradient_stats(x, tf.constant(True), tf.zeros(3))]

    rounding = 1e-2  # of bfloat16
    return [
        *((f"codec {name}", functools.partial(codec, name, "sigma"), 0.0) for name in _CODECS),
        ("codec plane by range", functools.partial(codec, "plane", "range"), 0.0),
        *(
            (f"batch normalization, {name}", functools.partial(batch_norm, name), rounding)
            for name in _CODECS
        ),
        ("masks", masks, 0.0),
        ("max pooling", pool, 0.0),
        ("gradient statistics", statistics, rounding),
    ]


def _compiled_checks() -> list[tuple[str, Callable[[tf.Tensor], list], float]]:
    """As `_checks`, of what XLA compiles."""
    ops = native.ops()

    @functools.partial(tf.function, jit_compile=True)
    def compiled(x: tf.Tensor) -> list:
        results = []
        for mid_rise in (True, False):
            _, stream, new_state = ops.comptrain_compress(x, tf.constant(_STATE), bits=4, mid_rise=mid_rise)
            x_hat = ops.comptrain_decompress(
                stream, tf.shape(x), x, new_state, T=x.dtype, bits=4, mid_rise=mid_rise
            )
            results += [stream, x_hat]
        return results

    @functools.partial(tf.function, jit_compile=True)
    def rows(x: tf.Tensor) -> list:
        is_long = tf.reshape(tf.range(tf.size(x[..., 0])) == 99, tf.shape(x[..., :1]))
        longer = tf.where(is_long, tf.cast(5120, x.dtype), 1)  # 2^12, and not at the edge of a power of two
        _, stream, new_state = ops.comptrain_compress(
            longer * x, tf.constant(_STATE), bits=4, row_scales=True
        )
        x_hat = ops.comptrain_decompress(
            stream, tf.shape(x), x, new_state, T=x.dtype, bits=4, row_scales=True
        )
        return [x_hat / longer]

    return [("a compiled step", compiled, 0.0), ("scales of rows", rows, 1e-3)]
