"""The tensors of a rewired step that a plan decides about: who encodes them, and who reads what, by its graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import tensorflow as tf

from tf_comptrain.graph.held_or_rebuilt import NORMALIZATION, operands
from tf_comptrain.graph.ingredients import is_free
from tf_comptrain.graph.operations import ADDITION, about
from tf_comptrain.graph.tensors import base_of, is_small
from tf_comptrain.storage import KEEP, OFFLOAD, REBUILD, Offload, name_of

BITS = "bits"

_COMPRESS, _BITMASK = "Comptrain>Compress", "Comptrain>Bitmask"
_MASK_GRADIENTS = ("Comptrain>StreamMaskGrad", "Comptrain>BitmaskGrad")
_NORM_GRADIENT = "Comptrain>BatchNormGrad"
_RESTORE = "Comptrain>Decompress"
_FARTHEST = 8  # operations between a tensor and what it is rebuilt from


class Reading(NamedTuple):
    """An operation of the backward pass that reads a stream or bits.

    Attributes:
      op: Its name.
      restores: It makes the tensor anew, for others.
      is_mask: It reads which elements are not zero.
    """

    op: str
    restores: bool
    is_mask: bool


class Rebuilding(NamedTuple):
    """How a tensor may be computed again.

    Attributes:
      sources: Names of the held tensors that it is made of.
      normalizations: Names of the batch normalizations in between.
    """

    sources: tuple[str, ...]
    normalizations: tuple[str, ...]


class CrossingTensor(NamedTuple):
    """A tensor that crosses into the backward pass as a stream or as bits.

    Attributes:
      name: As the report has it.
      op: Of the operation that makes it: what `storage=` names.
      makers: Names of operations whose memory it may have been written into, nearest first.
      bytes: Of its plain values.
      elements: How many these are.
      codec: Name of the stream's format; "bits".
      encoder: Name of the operation that encodes it.
      readings: In no order.
      normalizations: Names of the batch normalizations that read it.
      rebuilding: None where it is not offered.
    """

    name: str
    op: str
    makers: tuple[str, ...]
    bytes: int
    elements: int
    codec: str
    encoder: str
    readings: tuple[Reading, ...]
    normalizations: tuple[str, ...] = ()
    rebuilding: Rebuilding | None = None


def held_tensors(graph: tf.Graph) -> tuple[CrossingTensor, ...]:
    """Those of a step that was traced with static shapes, in the order in which they are made.

    Left out is what an operation of several held outputs makes, for `storage=` names operations, and what is
    in no scope, which it takes for a layer: the batch that an iterator gives to the step of Keras 2.
    """
    found: dict[str, tuple[tf.Tensor, CrossingTensor]] = {}
    shared: set[str] = set()
    for op in graph.get_operations():
        if op.type not in (_COMPRESS, _BITMASK):
            continue
        tensor = base_of(op.inputs[0])
        readings = tuple(_readings(op.outputs[1]))
        size = tensor.shape.num_elements() if tensor.shape.rank is not None else None
        is_key = "/" in tensor.op.name
        if not (readings and is_key) or size is None or tensor.dtype == tf.bool or _is_truth(tensor):
            continue
        if tensor.op.name in shared or tensor.op.name in {held.op for _, held in found.values()}:
            shared.add(tensor.op.name)
            continue
        codec = BITS if op.type == _BITMASK else op.get_attr("codec").decode()
        found[name_of(tensor)] = (
            tensor,
            CrossingTensor(
                name_of(tensor),
                tensor.op.name,
                _makers(tensor),
                size * tensor.dtype.size,
                size,
                codec,
                op.name,
                readings,
                tuple(reader.name for reader in op.outputs[0].consumers() if reader.type == NORMALIZATION),
            ),
        )
    found = {name: item for name, item in found.items() if item[1].op not in shared}
    sources = {name: tensor for name, (tensor, held) in found.items() if held.codec != BITS}
    return tuple(
        held._replace(rebuilding=_rebuilding(tensor, held, sources)) for tensor, held in found.values()
    )


def _is_truth(tensor: tf.Tensor) -> bool:
    """Whether it stands for a tensor of truth values."""
    return tensor.op.type == "Cast" and tensor.op.inputs[0].dtype == tf.bool


def _readings(stream: tf.Tensor) -> list[Reading]:
    return [
        Reading(op.name, op.type == _RESTORE, op.type in _MASK_GRADIENTS)
        for op in stream.consumers()
        if op.type in (_RESTORE, _NORM_GRADIENT, *_MASK_GRADIENTS)
    ]


def _makers(tensor: tf.Tensor) -> tuple[str, ...]:
    """The operation that makes a tensor, and those before it whose result it may have overwritten."""
    names: list[str] = []
    size = tensor.shape.num_elements()
    while tensor.op.inputs and len(names) < _FARTHEST:
        names.append(tensor.op.name)
        before = [t for t in tensor.op.inputs if t.shape.rank is not None and t.shape.num_elements() == size]
        if not before:
            break
        tensor = before[0]
    return tuple(names)


def _rebuilding(
    tensor: tf.Tensor, held: CrossingTensor, sources: Mapping[str, tf.Tensor]
) -> Rebuilding | None:
    """By cheap operations and at least one batch normalization: without one the graph pass rebuilds it unasked."""
    if held.codec == BITS or any(not r.restores and not r.is_mask for r in held.readings):
        return None
    found: dict[str, None] = {}
    normalizations: dict[str, None] = {}
    waiting, seen = [tensor], {tensor.ref()}
    while waiting:
        current = waiting.pop()
        if current is not tensor and name_of(current) in sources:
            found[name_of(current)] = None
            continue
        if is_free(current) or is_small(current):
            continue
        op, row = current.op, about(current.op.type)
        if op.type == NORMALIZATION and current.value_index == 0:
            normalizations[op.name] = None
        elif row.kind == ADDITION or not (row.again and op.inputs):
            return None  # sums of residual blocks are not rebuilt from normalizations: see graph/held_or_rebuilt.py
        if len(seen) > 2 * _FARTHEST:
            return None
        for operand in (base_of(operand) for operand in operands(current)):
            if operand.ref() not in seen:
                seen.add(operand.ref())
                waiting.append(operand)
    return Rebuilding(tuple(found), tuple(normalizations)) if normalizations and found else None


def storage_of(tensors: Iterable[CrossingTensor], choices: Mapping[str, str]) -> dict[str, str]:
    """By name of an operation the storage that carries a plan's choices out, as `storage=` takes it."""
    storage: dict[str, str] = {}
    for held in tensors:
        choice = choices.get(held.name, "stream")
        if choice == "keep":
            storage[held.op] = KEEP
        elif choice == OFFLOAD:
            storage[held.op] = OFFLOAD
        elif choice.startswith("rebuild") and held.rebuilding is not None:
            storage.update(dict.fromkeys((held.op, *held.rebuilding.normalizations), REBUILD))
    return storage


def carried_out(storage: Mapping[str, str], offload: Offload | None) -> dict[str, str | Offload]:
    """The storage that carries a plan out, with where and how what it offloads waits."""
    return {op: offload if how == OFFLOAD and offload is not None else how for op, how in storage.items()}
