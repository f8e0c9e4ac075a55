"""What crosses from the forward to the backward pass, by a walk of the traced training step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.compression.restored_state import state_restored
from tf_comptrain.graph.operations import BLANK, SHAPE, SOURCE, about
from tf_comptrain.graph.order import ancestors, operations_before
from tf_comptrain.graph.tensors import behind_views, values_of
from tf_comptrain.storage import BITMASK, COMPRESS, KEEP, OFFLOAD

_STREAM_OP = "Comptrain>Compress"
_SPILL_OP = "Comptrain>Spill"
_OWN_OPS = "Comptrain>"


class SavedTensor(NamedTuple):
    """One tensor held between the forward and the backward pass.

    Attributes:
      layer: Name of the layer inside whose call it was made, or what it stands for; "" outside of any.
      op: The operation that made it.
      storage: "compress", "offload", "bitmask" or "keep".
      shape: Of the tensor that is held, before compression; None for a dimension known at run time.
      dtype: Of that tensor.
      bytes: Held in memory.
      value_bytes: Of that tensor's values, as they are.
    """

    layer: str
    op: str
    storage: str
    shape: tuple[int | None, ...]
    dtype: str
    bytes: int
    value_bytes: int


def saved_bytes(model: keras.Model, x: tf.Tensor, y: Any = None) -> int:
    """Saved bytes: all that crosses from the forward to the backward pass, by a walk of the traced train step.

    Where sizes are known only at run time, as those of streams are, one step runs; the model is left as it
    was. A tensor and its aliases count once, also where several gradients read it; weights, constants, the
    batch itself and consumers of a shape only do not count. *Plain bytes* are these of the step in plain Keras.

    Args:
      model: A compiled model.
      x: One batch of inputs, tensors.
      y: Its targets; None for a train step that takes none.
    """
    return sum(saved.bytes for saved in saved_tensors(model, x, y))


def saved_tensors(model: keras.Model, x: tf.Tensor, y: Any = None) -> list[SavedTensor]:
    """Each tensor that `saved_bytes` counts, in the order in which the train step makes them."""
    passes: list[_keras.BackwardPass] = []
    crossing: list[tf.Tensor] = []
    owners: dict[str, str] = {}

    def sizes() -> Any:
        crossing[:] = crossing_of(passes)  # where the step makes variables, it is traced twice
        return [_elements(t) for t in crossing], [_elements(stands_for(t)) for t in crossing]

    with _owners_noted(owners), _keras.on_gradients(passes.append):
        step = _keras.trace_train_step(model, x, y, sizes)
    held: list[Any]
    plain: list[Any]
    held, plain = [[_static_elements(t) for t in ts] for ts in (crossing, map(stands_for, crossing))]
    if None in held + plain:
        with state_restored(model):
            held, plain = step()
    return [
        SavedTensor(
            owners.get(tensor.op.name) or owners.get(behind_views(stands_for(tensor)).op.name, ""),
            tensor.op.name,
            _storage(tensor),
            _static_shape(stands_for(tensor)),
            stands_for(tensor).dtype.name,
            0 if _is_spilled(tensor) else int(held_elements) * tensor.dtype.size,
            int(plain_elements) * stands_for(tensor).dtype.size,
        )
        for tensor, held_elements, plain_elements in zip(crossing, held, plain)
    ]


@contextlib.contextmanager
def _owners_noted(owners: dict[str, str]) -> Iterator[None]:
    """Inside, operations made in a layer's call are noted as that layer's; the innermost layer's wins."""
    seen = 0

    def note(layer: keras.layers.Layer, output: Any) -> Any:
        nonlocal seen
        operations = _operations()
        for op in operations[seen:]:
            if any(part.startswith(layer.name) for part in op.name.split("/")[:-1]):
                owners[op.name] = layer.name
        seen = len(operations)
        return output

    with _keras.layer_output_hook(note):
        yield


def _operations() -> list:
    return tf.compat.v1.get_default_graph().get_operations()


def _elements(tensor: tf.Tensor) -> tf.Tensor:
    return tf.size(tensor, out_type=tf.int64)


def _static_elements(tensor: tf.Tensor) -> int | None:
    return None if tensor.shape.rank is None else tensor.shape.num_elements()


def _is_packed(tensor: tf.Tensor) -> bool:
    return tensor.op.type.startswith(_OWN_OPS) and tensor.dtype == tf.uint8


def _is_spilled(tensor: tf.Tensor) -> bool:
    return tensor.op.type == _SPILL_OP


def _static_shape(tensor: tf.Tensor) -> tuple[int | None, ...]:
    """() where not even the rank is known, as for the scratch output of a fused kernel."""
    return () if tensor.shape.rank is None else tuple(tensor.shape)


def stands_for(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor that a stream or mask was made of; any other tensor itself."""
    if _is_spilled(tensor):
        tensor = tensor.op.inputs[0]
    return tensor.op.inputs[0] if _is_packed(tensor) else tensor


def _storage(tensor: tf.Tensor) -> str:
    if _is_spilled(tensor):
        return OFFLOAD
    if not _is_packed(tensor):
        return KEEP
    return COMPRESS if tensor.op.type == _STREAM_OP else BITMASK


def crossing_of(passes: Sequence[_keras.BackwardPass]) -> list[tf.Tensor]:
    """What the backward passes in the graph being traced read of what was made before them, in its order.

    To be called at the end of the trace. What nothing updates is of no use by then, as the operations
    that a loop over tiles stands for.
    """
    _keras.end_trace(tf.compat.v1.get_default_graph())
    numbers = {op.name: number for number, op in enumerate(_operations())}
    useful = ancestors(op for op in _operations() if op.op_def.is_stateful)
    found: dict = {}
    for backward in passes:
        if backward.graph is tf.compat.v1.get_default_graph():
            found.update(_read_before(backward, useful))
    return sorted(found.values(), key=lambda tensor: (numbers[tensor.op.name], tensor.value_index))


def _read_before(backward: _keras.BackwardPass, useful: set[str]) -> dict:
    """By reference: outputs of earlier operations that those leading to the gradients read.

    Args:
      backward: The pass.
      useful: Names of the operations that something comes of which is updated.
    """
    found: dict = {}
    forward = _forward(backward)
    gradients = (values_of(gradient).op for gradient in backward.gradients if gradient is not None)
    leading = ancestors(gradients, useful, forward)
    readers = (op for op in _operations() if op.name in leading and about(op.type).kind != SHAPE)
    for tensor in (tensor for op in readers for tensor in op.inputs if tensor.op.name in forward):
        base = behind_views(tensor)
        is_handle = base.dtype in (tf.resource, tf.variant) and not _is_spilled(base)
        # No activations: weights, constants, what is made of a shape, and the batch, which the caller holds.
        if about(base.op.type).kind not in (BLANK, SOURCE) and not is_handle:
            found[base.ref()] = base
    return found


def _forward(backward: _keras.BackwardPass) -> set[str]:
    """Names of the operations of the forward pass, with what holds its tensors, which is made after the gradient."""
    operations = backward.graph.get_operations()
    late = {seed.op.name for seed in backward.seeds}
    reached = 0
    while len(late) > reached:  # a rewired operation may read what was made after it
        reached = len(late)
        for op in operations[backward.start :]:
            if any(other.name in late for other in operations_before(op)):
                late.add(op.name)
    forward = {op.name for op in operations[: backward.start]}
    forward.update(op.name for op in operations[backward.stop :] if op.name not in late)
    return forward
