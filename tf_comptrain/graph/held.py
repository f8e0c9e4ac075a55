"""The sites of a traced step: where its crossing tensors are held, with bounds and running statistics."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_comptrain import _keras, codecs, native
from tf_comptrain.codecs import SUPPORTED_DTYPES, Codec, ErrorBound, State
from tf_comptrain.graph.cut import is_small, plain_bytes
from tf_comptrain.graph.kernels import KernelGradient
from tf_comptrain.graph.rewire import SMALL, Crossing, Use, name_of, rewire
from tf_comptrain.graph.states import FULL, StateTable, TableInStep
from tf_comptrain.report import Row
from tf_comptrain.storage import BITMASK, COMPRESS, DEFAULT_BOUNDS, GradientStatistics, Held, LawSite, Site

_TRUTH = tf.float16  # the smallest type that the mask operations take
_LINEAR_BOUND = DEFAULT_BOUNDS["linear"].value


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
      collecting: As `collect` was given it; None before.
      statistics: Reductions of gradients for the error-bound law, a row for each `LawSite`; None until `collect`.
    """

    def __init__(self, codec: Codec, bound: ErrorBound | None, variables: Callable[[], list]):
        self.table = StateTable("comptrain_states", len(State._fields))
        self.sites: dict[str, Site] = {}
        self.crossings: tuple[Crossing, ...] = ()
        self.statistics: StateTable | None = None
        self.codec = codec
        self._bound = bound
        self._variables = variables
        self.collecting: tf.Variable | None = None
        self._laws: dict[str, list[LawSite]] = {}  # by site
        self._kept: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()

    def is_of(self, graph: tf.Graph) -> bool:
        """Whether a graph reads a variable of the model."""
        return not _keras.captured_from_outside(graph).isdisjoint(self.weights())

    def keep(self, graph: tf.Graph, operations: Sequence[tf.Operation]) -> None:
        """Says that what these operations make is held as it is."""
        self._kept.setdefault(graph, set()).update(op.name for op in operations)

    def rewire(self, backward: _keras.BackwardPass) -> dict[str, tf.Tensor]:
        """See `graph.rewire`."""
        step = _keras.kept_with(backward.graph, self, lambda: _Step(self, backward.graph))
        result = rewire(backward, step)
        step.collect(backward, result.uses)
        step.write()
        for crossing in result.crossings:  # of all gradients of a step
            step.crossings.setdefault(crossing.name, crossing)
        self.crossings = tuple(step.crossings.values())
        return result.replaced

    def collect(self, enabled: tf.Variable) -> None:
        """From the next trace on, steps collect what the error-bound law needs wherever `enabled` is True."""
        self.collecting = enabled
        self.statistics = StateTable("comptrain_gradient_statistics", GradientStatistics.WIDTH)

    def law_sites(self) -> list[LawSite]:
        """Tensors that gradients of weights are made of, in the steps that were traced since `collect`."""
        return [
            law if law.weight.trainable else law._replace(weight=None)
            for laws in self._laws.values()
            for law in laws
        ]

    def set_laws(self, site: str, laws: list[LawSite]) -> None:
        """Says which gradients of weights are made of the tensor of a site."""
        self._laws[site] = laws

    def weights(self) -> dict[int, Any]:
        """The model's variables by the ids of their handles."""
        return {id(part.handle): v for v in self._variables() for part in _keras.parts_of(v)}

    def kept_in(self, graph: Any) -> set[str]:
        """Names of the operations that `keep` was told of."""
        return self._kept.get(graph, set())

    def rows(self) -> list[Row]:
        """What crossed in the step that was traced last, without small tensors and what layers' rules hold."""
        return [
            self._row(crossing)
            for crossing in self.crossings
            if crossing.note != SMALL and not crossing.op_type.startswith("Comptrain>")
        ]

    def _row(self, crossing: Crossing) -> Row:
        shape = crossing.shape[1:]
        elements = math.prod(size if size is not None else 0 for size in shape) if shape else 0
        plain_bits = 8.0 * crossing.dtype.size
        site = self.sites.get(crossing.name) if crossing.storage == COMPRESS else None
        bits = {COMPRESS: self.bits(crossing.dtype), BITMASK: 1.0}.get(crossing.storage, plain_bits)
        return Row(
            crossing.name,
            crossing.op_type,
            f"read by {', '.join(crossing.readers)}",
            crossing.storage,
            shape,
            round(elements * plain_bits / 8) or None,
            round(elements * bits / 8) or None,
            "" if site is None else str(site.bound),
            crossing.note,
        )

    def bits(self, dtype: tf.DType) -> float:
        """What a value of that type takes in a stream, predicted."""
        bits = self._coder().predicted_bits["dense"]
        if self._bound is not None and self._bound.relative:
            bits += math.log2(_LINEAR_BOUND / self._bound.value)
        return min(max(bits, 1.0), 8.0 * dtype.size)

    def site(self, tensor: tf.Tensor, kind: str) -> Site:
        """The place of a tensor, the same from trace to trace and in every replica."""
        name = name_of(tensor)
        if name not in self.sites:
            self.sites[name] = Site(name, self._coder(), self._bound, kind, state=self.table.row(name))
        return self.sites[name]

    def _coder(self) -> Codec:
        dithered = f"{self.codec.format}+dither"
        return codecs.get(dithered) if dithered in codecs.CODECS and not _keras.under_xla() else self.codec


class _Bits:
    """A tensor of truth values held as bits."""

    def __init__(self, tensor: tf.Tensor):
        self._shape = tf.shape(tensor)
        self._static_shape = tensor.shape
        _, self._bits = native.ops().comptrain_bitmask(tf.cast(tensor, _TRUTH))

    def restore(self, gate: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([gate.op]):
            ones = tf.ones(self._shape, _TRUTH)
        restored = tf.cast(native.ops().comptrain_bitmask_grad(self._bits, ones), tf.bool)
        restored.set_shape(self._static_shape)
        return restored


class _Step:
    """The held tensors of one traced graph: `rewire.Streams`."""

    def __init__(self, held: HeldTensors, graph: tf.Graph):
        self._held = held
        self._graph = weakref.ref(graph)
        self.crossings: dict[str, Crossing] = {}
        self._streams: dict = {}
        self._plain: set = set()
        self._states = TableInStep(held.table)
        self._statistics = None if held.statistics is None else TableInStep(held.statistics)
        self._laws: dict[str, list[LawSite]] = {}  # by site
        self._alone: dict[str, bool] = {}  # by site: whether nothing else reads it

    def find(self, tensor: tf.Tensor) -> Held | _Bits | None:
        return self._streams.get(tensor.ref())

    def keep(self, tensor: tf.Tensor) -> None:
        self._plain.add(tensor.ref())

    def held_bytes(self, tensor: tf.Tensor) -> int:
        if self.find(tensor) is not None or tensor.ref() in self._plain or self._is_chosen(tensor):
            return 0  # it is there already, or in any case
        size = plain_bytes(tensor)
        if is_small(tensor) or self.why_plain(tensor):
            return size
        if tensor.dtype == tf.bool:
            return size // 8
        return round(size * self._held.bits(tensor.dtype) / (8 * tensor.dtype.size))

    def why_plain(self, tensor: tf.Tensor) -> str:
        if tensor.dtype not in (*SUPPORTED_DTYPES, tf.bool):
            return f"{tensor.dtype.name} has no codec"
        if tensor.ref() in self._plain:
            return "an earlier gradient of the step keeps it"
        if tensor.dtype != tf.bool and self._held.table.is_full_for(name_of(tensor)):
            return FULL
        return "storage='keep'" if self._is_chosen(tensor) else ""

    def _is_chosen(self, tensor: tf.Tensor) -> bool:
        """Whether the user wants it kept."""
        return tensor.op.name in self._held.kept_in(self._graph())

    def hold(self, tensor: tf.Tensor, kind: str, mask: bool) -> tuple[tf.Tensor, Held | _Bits]:
        through, stream = (
            (tensor, _Bits(tensor)) if tensor.dtype == tf.bool else self._compress(tensor, kind, mask)
        )
        self._streams[tensor.ref()] = stream
        return through, stream

    def _compress(self, tensor: tf.Tensor, kind: str, mask: bool) -> tuple[tf.Tensor, Held]:
        site = self._held.site(tensor, kind)
        mask = mask and site.codec.carries_mask
        coder = site.coder(mask)
        row = site.state.index
        through, stream, state = coder.compress(
            tensor, self._states.read(row), site.relative_bound, mask, site.bound.scale
        )
        self._states.set(row, state)
        return through, Held(site, coder, stream, tensor, mask)

    def collect(self, backward: _keras.BackwardPass, uses: Sequence[Use]) -> None:
        """Adds the statistics of the gradients of weights that are made of held tensors."""
        if self._statistics is None:
            return
        weights = self._held.weights()
        for stream, kernels, alone in uses:
            if not isinstance(stream, Held):
                continue
            name = stream.site.name
            laws = [
                law
                for kernel in kernels
                if (weight := weights.get(_handle(backward.sources[kernel.source]))) is not None
                and (law := self._law(stream.site, weight, kernel, self._statistics)) is not None
            ]
            self._alone[name] = self._alone.get(name, True) and alone and len(laws) == len(kernels)
            of_all = {law.name: law for law in (*self._laws.get(name, ()), *laws)}
            self._laws[name] = [law._replace(alone=self._alone[name]) for law in of_all.values()]
            self._held.set_laws(name, self._laws[name])

    def _law(
        self, site: Site, weight: Any, kernel: KernelGradient, statistics: TableInStep
    ) -> LawSite | None:
        """The law's place of a gradient, of which the step collects the statistics; None where it cannot."""
        dy, dw = kernel.op.inputs[kernel.incoming], kernel.gradient
        name = f"{site.name} -> {getattr(weight, 'path', weight.name)}"
        if {dy.dtype, dw.dtype} - set(SUPPORTED_DTYPES) or statistics.table.is_full_for(name):
            return None
        row, stats = statistics.table.row(name), native.ops().comptrain_gradient_stats
        with tf.device(kernel.op.device):
            before = statistics.read(row.index)
            # As one channel, for `share` says how much of the sum over all an element of dw meets.
            of_dy = stats(tf.reshape(dy, (-1, 1)), self._held.collecting, before[:3])
            of_dw = stats(dw, self._held.collecting, before[3:])
            statistics.set(row.index, tf.concat([of_dy, of_dw], 0))
        if not _keras.under_xla():  # else dy would stay until somebody has time to look at it
            _keras.wait_for(kernel.op, [of_dy.op])
        return LawSite(name, site, kernel.share, weight, row)

    def write(self) -> None:
        """Assigns what is new of all tensors that were held so far."""
        self._states.write()
        if self._statistics is not None:
            self._statistics.write()


def _handle(source: Any) -> int:
    return id(getattr(source, "handle", None))
