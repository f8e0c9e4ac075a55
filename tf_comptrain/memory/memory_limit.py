"""A memory limit that raises instead of crashing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras, arguments, native
from tf_comptrain.memory.measure import device

_UNDER_XLA = (
    "`memory.limit` checks steps on TensorFlow's executor, and XLA compiles this one: it plans all memory of a step "
    "before that runs; memory.memory_analysis(model, x, y) says how much. Or compile the model with "
    "jit_compile=False."
)

_limit_bytes: tf.Variable | None = None


@contextlib.contextmanager
def limit(limit_bytes: float | str) -> Iterator[None]:
    """Inside, a training step whose allocator peak passes `limit_bytes` raises ResourceExhaustedError.

    Holds for plain and compressed models alike. Checked where tensors pass from layer to layer,
    forward and backward, against the allocator's peak since the last check; training can go on
    afterwards with a smaller batch, but the failed step may have updated some of the variables.
    (The allocator's own cap makes oneDNN convolutions crash instead of raising.)

    The limit is the process's, as its allocator is: what other models and threads hold counts, and any
    model's step in any thread may be the one that raises. There is one limit at a time.

    Args:
      limit_bytes: Bytes of the device allocator in all, weights and batch included; or as text, "2GB".

    Raises:
      ValueError: Not bytes, not above what is in use already, or a limit is set already.
      tf.errors.ResourceExhaustedError: From the training step.
      RuntimeError: From a step that XLA compiles, before it runs.

    Example:
      >>> with ct.memory.limit("2GB"):
      ...     model.fit(images, labels, batch_size=256)
    """
    global _limit_bytes
    limit_bytes = arguments.size_in_bytes("limit_bytes", limit_bytes)
    in_use = tf.config.experimental.get_memory_info(device())["current"]
    if not limit_bytes > in_use:
        raise ValueError(
            f"`limit_bytes` must be above the {in_use} bytes that are in use already. "
            f"Received: {limit_bytes}."
        )
    if _limit_bytes is None:
        with tf.init_scope(), tf.device("CPU:0"):
            _limit_bytes = tf.Variable(0, dtype=tf.int64, trainable=False, name="comptrain_memory_limit")
    if int(_limit_bytes) != 0:
        raise ValueError(f"A limit of {int(_limit_bytes)} bytes is set already; limits do not nest.")
    native.ops()
    tf.config.experimental.reset_memory_stats(device())
    _limit_bytes.assign(limit_bytes)
    try:
        with _keras.layer_output_hook(_checked):
            yield
    finally:
        _limit_bytes.assign(0)


def _checked(layer: keras.layers.Layer, output: Any) -> Any:
    if _keras.under_xla():
        raise RuntimeError(_UNDER_XLA)

    def check(tensor: tf.Tensor) -> Any:
        if not tf.is_tensor(tensor) or not tensor.dtype.is_floating:
            return tensor
        passed = native.ops().comptrain_memory_limit(tensor, _limit_bytes, where=layer.name)
        _keras.set_mask(passed, _keras.mask_of(tensor))
        return passed

    return tf.nest.map_structure(check, output)
