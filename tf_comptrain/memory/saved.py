"""What crosses from the forward to the backward pass, by a walk of the traced training step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.storage import BITMASK, COMPRESS, KEEP

# Ops whose first output is their first input's buffer.
_ALIASES = frozenset(
    ("Identity", "IdentityN", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient",
     "Snapshot", "Comptrain>Compress", "Comptrain>Bitmask", "Comptrain>MemoryLimit")
)  # fmt: skip
_SHAPE_ONLY = frozenset(("Shape", "ShapeN", "Size", "Rank"))
# Not activations: weights, constants, and the batch, which the caller holds.
_NOT_SAVED = frozenset(("ReadVariableOp", "Const", "Placeholder", "VarHandleOp"))
_STREAM_OP = "Comptrain>Compress"
_OWN_OPS = "Comptrain>"


class SavedTensor(NamedTuple):
    """One tensor held between the forward and the backward pass.

    Attributes:
      layer: Name of the layer inside whose call it was made; "" outside of any.
      op: The operation that made it.
      storage: "compress", "bitmask" or "keep".
      shape: Of the tensor that is held, before compression; None for a dimension known at run time.
      dtype: Of that tensor.
      bytes: Held.
      plain_bytes: Of that tensor as plain values.
    """

    layer: str
    op: str
    storage: str
    shape: tuple[int | None, ...]
    dtype: str
    bytes: int
    plain_bytes: int


def saved_bytes(model: keras.Model, x, y) -> int:
    """Bytes that cross from the forward to the backward pass, by a walk of the traced step.

    Runs one forward pass, since the size of a stream is known only then. A tensor and its aliases
    count once; weights, constants, the batch itself and consumers of a shape only do not count.

    Args:
      model: A compiled model.
      x: One batch of inputs, tensors.
      y: Its targets.
    """
    return sum(saved.bytes for saved in saved_tensors(model, x, y))


def saved_tensors(model: keras.Model, x, y) -> list[SavedTensor]:
    """Each tensor that `saved_bytes` counts, in the order in which the forward pass makes them."""
    crossing: list[tf.Tensor] = []
    owners: dict[str, str] = {}

    @tf.function(autograph=False)
    def count(x, y):
        crossing.clear()
        with _owners_noted(owners), tf.GradientTape() as tape:
            loss = _keras.compute_loss(model, x, y)
        forward = {op.name: number for number, op in enumerate(_operations())}
        gradients = tape.gradient(loss, _keras.trainable_variables(model))
        found = _crossing(forward, [g for g in gradients if g is not None])
        crossing.extend(sorted(found, key=lambda tensor: forward[tensor.op.name]))
        return [_bytes(t) for t in crossing], [_bytes(_stands_for(t)) for t in crossing]

    held, plain = count.get_concrete_function(x, y)(x, y)  # a call of `count` warns when it is the fifth
    return [
        SavedTensor(
            owners.get(tensor.op.name, ""),
            tensor.op.name,
            _storage(tensor),
            _static_shape(_stands_for(tensor)),
            _stands_for(tensor).dtype.name,
            int(held_bytes),
            int(plain_bytes),
        )
        for tensor, held_bytes, plain_bytes in zip(crossing, held, plain)
    ]


@contextlib.contextmanager
def _owners_noted(owners: dict[str, str]) -> Iterator[None]:
    """Inside, operations made in a layer's call are noted as that layer's; the innermost layer's wins."""
    seen = 0

    def note(layer, output):
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


def _bytes(tensor: tf.Tensor) -> tf.Tensor:
    return tf.size(tensor, out_type=tf.int64) * tensor.dtype.size


def _is_packed(tensor: tf.Tensor) -> bool:
    return tensor.op.type.startswith(_OWN_OPS) and tensor.dtype == tf.uint8


def _static_shape(tensor: tf.Tensor) -> tuple[int | None, ...]:
    """() where not even the rank is known, as for the scratch output of a fused kernel."""
    return () if tensor.shape.rank is None else tuple(tensor.shape)


def _stands_for(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor that a stream or mask was made of; any other tensor itself."""
    return tensor.op.inputs[0] if _is_packed(tensor) else tensor


def _storage(tensor: tf.Tensor) -> str:
    if not _is_packed(tensor):
        return KEEP
    return COMPRESS if tensor.op.type == _STREAM_OP else BITMASK


def _crossing(forward: dict[str, int], results: list) -> list[tf.Tensor]:
    """Outputs of forward ops that the backward ops leading to `results` read."""
    found: dict = {}
    seen: set[str] = set()
    waiting = [(t.values if isinstance(t, tf.IndexedSlices) else t).op for t in results]
    while waiting:
        op = waiting.pop()
        if op.name in seen or op.name in forward:
            continue
        seen.add(op.name)
        waiting.extend(t.op for t in op.inputs)
        waiting.extend(op.control_inputs)
        if op.type in _SHAPE_ONLY:
            continue
        for tensor in op.inputs:
            if tensor.op.name in forward:
                base = _base(tensor)
                if base.op.type not in _NOT_SAVED and base.dtype not in (tf.resource, tf.variant):
                    found[base.ref()] = base
    return list(found.values())


def _base(tensor: tf.Tensor) -> tf.Tensor:
    while tensor.op.type in _ALIASES and not (tensor.op.type != "IdentityN" and tensor.value_index > 0):
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor
