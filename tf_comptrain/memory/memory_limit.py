"""A memory limit that raises instead of crashing."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras, arguments, native
from tf_comptrain.compression.instrumentation import is_compressed
from tf_comptrain.memory import counters, remedies
from tf_comptrain.memory.analysis import MemoryAnalysis, analysis_of
from tf_comptrain.memory.counters import device
from tf_comptrain.render.units import format_bytes

_UNDER_XLA = (
    "`memory.limit` reads XLA's plan of a step in `fit` and `train_on_batch`, and this step is compiled by a "
    "tf.function of its own: train with `fit` or `train_on_batch`, or leave jit_compile=True out. "
    "memory.memory_analysis(model, x, y) says what the step needs."
)

_limit_bytes: tf.Variable | None = None


class StepRefusedError(tf.errors.ResourceExhaustedError):
    """A step that was not begun, since its plan passes a limit: nothing has changed."""


@contextlib.contextmanager
def limit(limit_bytes: float | str) -> Iterator[None]:
    """Inside, a training step whose allocator peak passes `limit_bytes` raises ResourceExhaustedError.

    Holds for plain and compressed models alike. Checked where tensors pass from layer to layer,
    forward and backward, against the allocator's peak since the last check; training can go on
    afterwards with a smaller batch, but the failed step may have updated some of the variables.
    (The allocator's own cap makes oneDNN convolutions crash instead of raising.)

    A step of `fit` or `train_on_batch` that XLA compiles is refused before it begins, by the plan of XLA's compiler,
    see `memory_analysis`: what is in use, and what the step takes besides. Each shape of batch is compiled once more
    for that. Evaluation and prediction under XLA are not checked.

    The limit is the process's, as its allocator is: what other models and threads hold counts, and any
    model's step in any thread may be the one that raises. There is one limit at a time.

    The error of a step of `fit` or `train_on_batch` names the layers that hold most, and a remedy. For that the step is
    traced once more.

    Args:
      limit_bytes: Bytes of the device allocator in all, weights and batch included; or as text, "2GB".

    Raises:
      ValueError: Not bytes, not above what is in use already, or a limit is set already.
      tf.errors.ResourceExhaustedError: From the training step. Under XLA with the planned bytes and their largest
        buffers.
      RuntimeError: From the trace of a step that a tf.function of the caller's has XLA compile. Or this TensorFlow
        build has no XLA headers.

    Examples:
      >>> with ct.memory.limit("2GB"):
      ...     model.fit(images, labels, batch_size=256)
    """
    global _limit_bytes
    limit_bytes = arguments.size_in_bytes("limit_bytes", limit_bytes)
    in_use = counters.bytes_in_use()
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
    counters.reset_peak()
    _limit_bytes.assign(limit_bytes)
    try:
        with _keras.layer_output_hook(_checked), _keras.step_hook(_LimitedSteps(limit_bytes)):
            yield
    finally:
        _limit_bytes.assign(0)


def _checked(layer: keras.layers.Layer, output: Any) -> Any:
    if _keras.under_xla():
        if _keras.recording() and not _keras.in_own_trace():
            raise RuntimeError(_UNDER_XLA)
        return output

    def check(tensor: tf.Tensor) -> Any:
        if not tf.is_tensor(tensor) or not tensor.dtype.is_floating:
            return tensor
        passed = native.ops().comptrain_memory_limit(tensor, _limit_bytes, where=layer.name)
        _keras.set_mask(passed, _keras.mask_of(tensor))
        return passed

    return tf.nest.map_structure(check, output)


class _LimitedSteps:
    """Runs training steps; under XLA those whose plan is within a limit.

    Plans are kept by train function and shapes of the batch.
    """

    def __init__(self, limit_bytes: int):
        self._limit_bytes = limit_bytes
        self._plans: weakref.WeakKeyDictionary[Callable, dict] = weakref.WeakKeyDictionary()

    def __call__(self, model: keras.Model, train_function: Callable, batch: Any) -> Any:
        if not _keras.jit_compile(model):
            x, y, _ = keras.utils.unpack_x_y_sample_weight(batch)
            with remedies.explained(model, x, y):
                return train_function([batch])
        with _keras.own_trace():
            planned = self._plan(model, train_function, batch)
            refuse_above(self._limit_bytes, planned, model, batch)
            return train_function([batch])

    def _plan(self, model: keras.Model, train_function: Callable, batch: Any) -> MemoryAnalysis:
        plans = self._plans.setdefault(train_function, {})
        shapes = tuple((tuple(t.shape), t.dtype) for t in _tensors(batch))
        if shapes not in plans:
            plans[shapes] = analysis_of(_keras.lowered_step(model, train_function, batch))
        return plans[shapes]


def refuse_above(limit_bytes: int, planned: MemoryAnalysis, model: keras.Model, batch: Any) -> int:
    """The bytes of the allocator that a planned step comes to; raises where these are above a limit.

    What is in use now has the step's arguments among it, but for a batch that is still to be copied to the device.
    """
    total = _total_bytes(planned, batch)
    if total > limit_bytes:
        gc.collect()
        total = _total_bytes(planned, batch)
    if total <= limit_bytes:
        return total
    shapes = ", ".join(str(list(tensor.shape)) for tensor in _tensors(batch))
    besides = total - planned.total_bytes
    remedy = "" if is_compressed(model) else "compress the model (tf_comptrain.compress_model), "
    raise StepRefusedError(
        None,
        None,
        f"memory limit: a step of {model.name!r} on a batch of {shapes} needs {format_bytes(total)}, above the limit "
        f"of {format_bytes(limit_bytes)}; it was not begun.\n{planned.described()}\n"
        + (f"{format_bytes(besides)} are in use besides. " if besides else "")
        + f"Lower the batch size, {remedy}or raise `limit_bytes`.",
    )


def _total_bytes(planned: MemoryAnalysis, batch: Any) -> int:
    kind = device().partition(":")[0]
    elsewhere = sum(
        tensor.dtype.size * tensor.shape.num_elements()
        for tensor in _tensors(batch)
        if f"device:{kind}" not in tensor.device
    )
    resting = max(counters.bytes_in_use() + elsewhere, planned.argument_bytes)
    return resting + planned.temporary_bytes + planned.output_bytes


def _tensors(batch: Any) -> list[tf.Tensor]:
    return [tensor for tensor in tf.nest.flatten(batch) if tf.is_tensor(tensor)]
