"""What crosses from the forward to the backward pass: how it is held, and the notes that a report is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from tf_comptrain.graph.pooling import bits_of
from tf_comptrain.graph.tensors import sample_elements
from tf_comptrain.storage import BITMASK, COMPRESS, name_of

SMALL = "small"
NEEDED_AT_ONCE = "the backward pass begins with it"
BY_THE_LAYER = "by the layer itself"


class Stream(Protocol):
    """A tensor in its held form.

    Attributes:
      storage: "compress", "offload" or "bitmask".
      is_exact: Every bit comes back.
    """

    @property
    def storage(self) -> str: ...

    @property
    def is_exact(self) -> bool: ...

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
      batch: Samples of the step; None where that is not known.
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
    batch: int | None = None

    @property
    def sample_shape(self) -> tuple[int | None, ...]:
        """Of one sample: a first dimension that counts more than samples keeps the rest of it."""
        first, *others = self.shape or (None,)
        more = first // self.batch if first and self.batch and not first % self.batch else 1
        return (more, *others) if more > 1 else tuple(others)


class Crossings:
    """Notes of one backward pass: a `Crossing` for each tensor that is held.

    Args:
      batch: Samples of the step; None where its graph does not say it.
    """

    def __init__(self, batch: int | None = None) -> None:
        self._rows: dict[Any, Crossing] = {}
        self._batch = batch

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
        if sample_bytes is None:
            sample_bytes = self._bytes_of_sample(tensor)
        shape = () if tensor.shape.rank is None else tuple(tensor.shape)
        held_as = tensor if held_as is None else held_as
        made_by = name_of(held_as), tensor.op.type, shape, tensor.dtype
        found = Crossing(*made_by, storage, readers, note, bits, sample_bytes, self._batch)
        self._rows[held_as.ref()] = found

    def _bytes_of_sample(self, tensor: tf.Tensor) -> int | None:
        size = tensor.dtype.size
        if self._batch and tensor.shape.is_fully_defined():  # whatever its first dimension is
            return tensor.shape.num_elements() * size // self._batch
        elements = sample_elements(tensor)
        return None if elements is None else elements * size

    def in_order(self, place: Callable[[tf.Operation], int]) -> tuple[Crossing, ...]:
        """All of them, by the places of the operations that make what is held."""
        return tuple(row for _, row in sorted(self._rows.items(), key=lambda item: place(item[0].deref().op)))


def batch_of_graph(graph: Any) -> int | None:
    """Samples that a function is traced for: the first dimension of most of its arguments; None where it takes any."""
    captured = {tensor.ref() for tensor in getattr(graph, "internal_captures", ())}
    arguments = (tensor for tensor in getattr(graph, "inputs", ()) if tensor.ref() not in captured)
    found = Counter(tensor.shape[0] for tensor in arguments if tensor.shape.rank)
    return found.most_common(1)[0][0] if found else None


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
