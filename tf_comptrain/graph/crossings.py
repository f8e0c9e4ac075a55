"""What crosses from the forward to the backward pass: how it is held, and the notes that a report is made of."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from tf_comptrain.graph.pooling import bits_of
from tf_comptrain.graph.tensors import sample_elements
from tf_comptrain.storage import BITMASK, COMPRESS

SMALL = "small"
NEEDED_AT_ONCE = "the backward pass begins with it"
BY_THE_LAYER = "by the layer itself"


class Stream(Protocol):
    """A tensor in its held form.

    Attributes:
      storage: "compress", "offload" or "bitmask".
    """

    @property
    def storage(self) -> str: ...

    def restore(self, gate: tf.Tensor) -> tf.Tensor:
        """The tensor, once the gate is there."""


class Crossing(NamedTuple):
    """A tensor that crosses from the forward to the backward pass.

    Attributes:
      name: Of the operation that makes it, and of which of its outputs where that is not the first.
      op_type: Of that operation.
      shape: None for a dimension that is known at run time; () also where not even the rank is known.
      dtype: Its type.
      storage: "compress", "offload", "bitmask", "tile" or "keep".
      readers: Types of the operations that read it or what is rebuilt from it.
      note: Why it is kept, or what holds it.
      bits: Of a value, where that is known.
      sample_bytes: What it takes for a sample as it is; None where that is not known.
    """

    name: str
    op_type: str
    shape: tuple[int | None, ...]
    dtype: tf.DType
    storage: str
    readers: tuple[str, ...]
    note: str = ""
    bits: float = 0.0
    sample_bytes: int | None = None


class Crossings:
    """Notes of one backward pass: a `Crossing` for each tensor that is held."""

    def __init__(self) -> None:
        self._rows: dict[Any, Crossing] = {}

    def __contains__(self, tensor: tf.Tensor) -> bool:
        return tensor.ref() in self._rows

    def note(
        self,
        tensor: tf.Tensor,
        storage: str,
        readers: tuple[str, ...],
        note: str,
        bits: float = 0.0,
        held_as: tf.Tensor | None = None,
        sample_bytes: int | None = None,
    ) -> None:
        """Notes a tensor.

        Args:
          tensor: What crosses.
          storage: See `Crossing`.
          readers: See `Crossing`.
          note: See `Crossing`.
          bits: See `Crossing`.
          held_as: The tensor of a layer's own that stands for it; None: itself.
          sample_bytes: See `Crossing`; None: that of the tensor.
        """
        if sample_bytes is None and (elements := sample_elements(tensor)) is not None:
            sample_bytes = elements * tensor.dtype.size
        shape = () if tensor.shape.rank is None else tuple(tensor.shape)
        held_as = tensor if held_as is None else held_as
        made_by = name_of(held_as), tensor.op.type, shape, tensor.dtype
        self._rows[held_as.ref()] = Crossing(*made_by, storage, readers, note, bits, sample_bytes)

    def in_order(self, place: Callable[[tf.Operation], int]) -> tuple[Crossing, ...]:
        """All of them, by the places of the operations that make what is held."""
        return tuple(row for _, row in sorted(self._rows.items(), key=lambda item: place(item[0].deref().op)))


def name_of(tensor: tf.Tensor) -> str:
    """The same in every replica and from trace to trace."""
    name = re.sub(r"(^|/)replica_\d+/", r"\1", tensor.op.name)
    return f"{name}:{tensor.value_index}" if tensor.value_index else name


def packed(tensor: tf.Tensor) -> tuple[tf.Tensor, str, float] | None:
    """What a stream or bits of a layer's own stand for, how that is held, bits of a value; None of other tensors."""
    op = tensor.op
    if not op.type.startswith("Comptrain>") or tensor.dtype != tf.uint8:
        return None
    if op.type == "Comptrain>Compress":
        return op.inputs[0], COMPRESS, 0.0
    if op.type == "Comptrain>MaxPool":
        return op.outputs[0], BITMASK, bits_of(op.get_attr("ksize"))
    return op.outputs[0] if op.type == "Comptrain>Dropout" else op.inputs[0], BITMASK, 1.0
