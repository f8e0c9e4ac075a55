"""What a training step takes under XLA, from the plan that its compiler makes before anything runs."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras, native
from tf_comptrain.memory.batches import batch_of
from tf_comptrain.render.units import format_bytes

# As XLA writes them, and TensorFlow.
_DTYPES = {
    "pred": "bool", "s8": "int8", "u8": "uint8", "s16": "int16", "u16": "uint16", "s32": "int32", "u32": "uint32",
    "s64": "int64", "u64": "uint64", "f16": "half", "bf16": "bfloat16", "f32": "float", "f64": "double",
}  # fmt: skip


class PlannedBuffer(NamedTuple):
    """One temporary buffer alive at the peak of a compiled step.

    Attributes:
      op: The operation behind it; "%name" of an instruction of XLA's own.
      shape: As text, "[8,32]".
      dtype: As TensorFlow names it.
      bytes: Its size.
    """

    op: str
    shape: str
    dtype: str
    bytes: int


class MemoryAnalysis(NamedTuple):
    """What XLA's compiler plans for a training step, as JAX's `memory_analysis` of a function.

    Attributes:
      temporary_bytes: Temporary memory: the step's peak over weights, optimizer slots and batch.
      argument_bytes: Weights, slots, states and the batch.
      output_bytes: Results that are not written over arguments.
      buffers: The temporary ones alive at the peak, largest first. Gaps between them are not in their sum.
    """

    temporary_bytes: int
    argument_bytes: int
    output_bytes: int
    buffers: tuple[PlannedBuffer, ...]

    @property
    def total_bytes(self) -> int:
        """All that the step needs of the device."""
        return self.temporary_bytes + self.argument_bytes + self.output_bytes

    def described(self, largest: int = 5) -> str:
        """The plan in words, with so many of the largest buffers of the peak."""
        parts = (
            f"{format_bytes(self.temporary_bytes)} of temporary memory, {format_bytes(self.argument_bytes)} of "
            f"arguments (weights, optimizer slots and the batch) and {format_bytes(self.output_bytes)} of results"
        )
        named = "; ".join(
            f"{buffer.op} {buffer.dtype}{buffer.shape} {format_bytes(buffer.bytes)}"
            for buffer in self.buffers[:largest]
        )
        return f"XLA plans {parts}." + (f" Largest at the peak: {named}." if named else "")


def memory_analysis(model: keras.Model, x: Any, y: Any = None) -> MemoryAnalysis:
    """Compiles the model's training step with XLA and reads the compiler's memory plan; no step runs.

    The plan is exact: the compiled step asks the device allocator for these bytes at once. (That allocator
    may round them up, to a power of two on a CPU.) The step is traced and compiled anew, which takes as long
    as the first step of `fit`.

    Args:
      model: A Keras model compiled with jit_compile=True, or where Keras resolves "auto" to it.
      x: One batch of inputs; or a batch size, for random inputs of the model's input shapes.
      y: The batch's targets; None with a batch size, and for a model with a `train_step` of its own that
        takes none.

    Returns:
      A `MemoryAnalysis`.

    Raises:
      ValueError: The model is not compiled, XLA does not compile its step, or it has no input shapes to
        make a random batch from.
      RuntimeError: This TensorFlow build has no XLA headers, so that the op library was built without this.

    Examples:
      >>> model.compile("adam", "mse", jit_compile=True)
      >>> ct.memory.memory_analysis(model, 32).temporary_bytes
    """
    x, y = batch_of(model, x, y)
    return analysis_of_step(model, x, y)


def analysis_of_step(model: keras.Model, x: Any, y: Any, batch_size: int | None = None) -> MemoryAnalysis:
    """As `memory_analysis`, of tensors; as if the batch had so many samples."""
    if not _keras.jit_compile(model):
        raise ValueError(
            f"`model` must be compiled by XLA. Received: {model.name!r}, which runs on TensorFlow's executor; "
            "compile it with jit_compile=True, or see memory.measure_step."
        )
    _keras.build_for_step(model, x, y)
    if batch_size is not None:
        resized = functools.partial(_resized, batch_size)
        x, y = tf.nest.map_structure(resized, x), None if y is None else tf.nest.map_structure(resized, y)
    return analysis_of(_keras.lowered_train_step(model, x, y))


def _resized(batch_size: int, tensor: tf.Tensor) -> tf.TensorSpec:
    return tf.TensorSpec([batch_size, *tensor.shape[1:]], tensor.dtype)


def analysis_of(program: bytes) -> MemoryAnalysis:
    """As `memory_analysis`, of an HloModuleProto: a tf.function's compiler IR "hlo_serialized"."""
    try:
        totals, sizes, names, shapes = (part.numpy() for part in native.ops().comptrain_memory_plan(program))
    except tf.errors.NotFoundError:
        raise RuntimeError(
            f"TensorFlow {tf.__version__} has no XLA headers, so that the op library cannot ask XLA for its plan."
        ) from None
    described = zip(names, map(_shape_and_dtype, shapes), map(int, sizes))
    buffers = [PlannedBuffer(op.decode(), *shape, size) for op, shape, size in described]
    buffers.sort(key=lambda buffer: -buffer.bytes)
    temporary, arguments, outputs = map(int, totals)
    return MemoryAnalysis(temporary, arguments, outputs, tuple(buffers))


def _shape_and_dtype(text: bytes) -> tuple[str, str]:
    """("[8,32]", "float") of "f32[8,32]"."""
    dtype, _, sizes = text.decode().partition("[")
    return f"[{sizes}", _DTYPES.get(dtype, dtype)
