"""The sites of a traced step: where its crossing tensors are held, with bounds and running statistics."""

from __future__ import annotations

import math
import re
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_comptrain import _keras, codecs
from tf_comptrain.codecs import SUPPORTED_DTYPES, Codec, ErrorBound, State
from tf_comptrain.graph.cut import is_small, plain_bytes
from tf_comptrain.graph.rewire import Crossing, rewire
from tf_comptrain.storage import DEFAULT_BOUNDS, KEEP, Held, Site, variable

_CAPACITY = 2048  # sites of a model
_LINEAR_BOUND = DEFAULT_BOUNDS["linear"].value
_TOO_MANY = f"the model holds {_CAPACITY} tensors already"


class StateTable:
    """The codec states of all sites of a model, in one variable: a step reads and writes it once.

    Attributes:
      variable: float32 [sites, len(State)]; a row of zeros begins anew.
    """

    def __init__(self) -> None:
        self.variable = variable(np.zeros((_CAPACITY, len(State._fields)), np.float32), "comptrain_states")
        self.used = 0

    def row(self) -> StateRow:
        """The next row that is not taken."""
        self.used += 1
        return StateRow(self, self.used - 1)


class StateRow:
    """A site's row: what a `Site` reads and writes between steps."""

    def __init__(self, table: StateTable, index: int):
        self.table = table
        self.index = index

    def numpy(self) -> np.ndarray:
        return self.table.variable.numpy()[self.index].copy()

    def assign(self, values: Sequence[float]) -> None:
        states = self.table.variable.numpy()
        states[self.index] = values
        self.table.variable.assign(states)


class HeldTensors:
    """What is held of a model's traced steps, and how.

    Args:
      codec: How tensors are encoded. On the executor always with dither: what a step computes with them has
        an error without bias then, which averages out.
      bound: Error bound; None for the default of what reads a tensor.
      variables: Returns the model's variables as they are now: a step that reads one of them is the model's.

    Attributes:
      codec: As given.
      table: Its `StateTable`.
      sites: By name.
      crossings: What crossed in the step that was traced last, in order.
    """

    def __init__(self, codec: Codec, bound: ErrorBound | None, variables: Callable[[], list]):
        self.table = StateTable()
        self.sites: dict[str, Site] = {}
        self.crossings: tuple[Crossing, ...] = ()
        self.codec = codec
        self._bound = bound
        self._variables = variables
        self._kept: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()

    def is_of(self, graph: tf.Graph) -> bool:
        """Whether a graph reads a variable of the model."""
        outside = _keras.captured_from_outside(graph)
        return any(id(part.handle) in outside for v in self._variables() for part in _keras.parts_of(v))

    def keep(self, graph: tf.Graph, operations: Sequence[tf.Operation]) -> None:
        """Says that what these operations make is held as it is."""
        self._kept.setdefault(graph, set()).update(op.name for op in operations)

    def rewire(self, backward: _keras.BackwardPass) -> dict[str, tf.Tensor]:
        """See `graph.rewire`."""
        steps = _keras.notes_of(backward.graph).setdefault("steps", {})
        step = steps.setdefault(self, _Step(self, backward.graph))
        result = rewire(backward, step)
        step.write_states()
        self.crossings = step.crossed(result.crossings)
        return result.replaced

    def site(self, tensor: tf.Tensor, kind: str) -> Site:
        """The place of a tensor, the same from trace to trace and in every replica."""
        name = re.sub(r"(^|/)replica_\d+/", r"\1", tensor.op.name)
        name = f"{name}:{tensor.value_index}" if tensor.value_index else name
        if name not in self.sites:
            self.sites[name] = Site(name, self._coder(), self._bound, kind, state=self.table.row())
        return self.sites[name]

    def _coder(self) -> Codec:
        dithered = f"{self.codec.format}+dither"
        return codecs.get(dithered) if dithered in codecs.CODECS and not _keras.under_xla() else self.codec


class _Step:
    """The held tensors of a graph, which may have several backward passes: `rewire.Streams`.

    States are read once for all of them. A pass that read what an earlier one has written would wait for
    all that the earlier one holds, and what it holds itself may stand before that.
    """

    def __init__(self, held: HeldTensors, graph: tf.Graph):
        self._held = held
        self._graph = graph
        self._states: tf.Tensor | None = None
        self._new: dict[int, tf.Tensor] = {}
        self._crossings: dict[str, Crossing] = {}

    def held_bytes(self, tensor: tf.Tensor) -> int:
        size = plain_bytes(tensor)
        if is_small(tensor) or self.why_plain(tensor):
            return size
        bits = self._held._coder().predicted_bits["dense"]
        bound = self._held._bound
        if bound is not None and bound.relative:
            bits += math.log2(_LINEAR_BOUND / bound.value)
        return round(size * min(max(bits, 1) / (8 * tensor.dtype.size), 1))

    def why_plain(self, tensor: tf.Tensor) -> str:
        if tensor.dtype not in SUPPORTED_DTYPES:
            return f"{tensor.dtype.name} has no codec"
        if tensor.op.name in self._held._kept.get(self._graph, ()):
            return "storage='keep'"
        return ""

    def hold(self, tensor: tf.Tensor, kind: str, mask: bool) -> tuple[tf.Tensor, Held]:
        site = self._held.site(tensor, kind)
        if self._states is None:
            self._states = tf.convert_to_tensor(self._held.table.variable)
        mask = mask and site.codec.carries_mask
        coder = site.coder(mask)
        row = site.state.index
        through, stream, state = coder.compress(
            tensor, self._states[row], site.relative_bound, mask, site.bound.scale
        )
        self._new[row] = state
        return through, Held(site, coder, stream, tensor, mask)

    def crossed(self, crossings: Sequence[Crossing]) -> tuple[Crossing, ...]:
        """These, and those of the backward passes before. What one of them keeps is kept."""
        for row in crossings:
            before = self._crossings.get(row.tensor.name)
            if before is None or before.storage != KEEP:
                self._crossings[row.tensor.name] = row
        return tuple(self._crossings.values())

    def write_states(self) -> None:
        """Assigns the new states, once for all tensors that were held."""
        if self._states is None:
            return
        rows = sorted(self._new)
        new = tf.stack([self._new[row] for row in rows])
        if rows == list(range(rows[0], rows[-1] + 1)):  # a copy where a scatter would be slower
            states = tf.concat([self._states[: rows[0]], new, self._states[rows[-1] + 1 :]], 0)
        else:
            states = tf.tensor_scatter_nd_update(self._states, [[row] for row in rows], new)
        states.set_shape(self._held.table.variable.shape)
        self._held.table.variable.assign(states)
