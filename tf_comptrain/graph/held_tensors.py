"""The sites of a traced step: where its crossing tensors are held, with bounds and running statistics."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tf_comptrain import _keras, codecs, native
from tf_comptrain.codecs import SIGMA, SUPPORTED_DTYPES, Codec, ErrorBound, State
from tf_comptrain.graph.broadcasts import narrow_broadcasts
from tf_comptrain.graph.crossings import NEEDED_AT_ONCE, Crossing, name_of
from tf_comptrain.graph.devices import keep_on_stages
from tf_comptrain.graph.gradient_operations import is_product
from tf_comptrain.graph.kernels import KernelGradient
from tf_comptrain.graph.law_error import LawError, law_error
from tf_comptrain.graph.offloading import order_copies
from tf_comptrain.graph.operations import about
from tf_comptrain.graph.rewire import Use, rewire
from tf_comptrain.graph.states import FULL, StateTable, TableInStep
from tf_comptrain.graph.tensors import base_of, is_small, plain_bytes
from tf_comptrain.storage import (
    BITMASK,
    COMPRESS,
    DEFAULT_BOUNDS,
    KEEP,
    LEAST_PLAIN_BYTES,
    REBUILD,
    STATISTICS,
    Engine,
    Held,
    LawSite,
    Offload,
    Offloaded,
    Policy,
    Raw,
    Site,
    engine_of_step,
    keep_layouts,
    obstacle,
)

_TRUTH = tf.float16  # the smallest type that the mask operations take
# Between the bounds of what matrix products and what convolutions read.
_USUAL_BOUND = math.sqrt(DEFAULT_BOUNDS["linear"].value * DEFAULT_BOUNDS["convolution"].value)

# Of a constant before a nonlinear function: six bits a value. XLA's codec has two more than the default bound takes.
_LARGEST_GAIN, _LARGEST_GAIN_XLA = 64.0, 4.0


class HeldTensors:
    """What is held of a model's traced steps, and how.

    Args:
      codec: How tensors are encoded. On the executor always with dither: what a step computes with them has
        an error without bias then, which averages out.
      bound: Error bound; None for the default of what reads a tensor.
      variables: Returns the model's variables as they are now: a step that reads one of them is the model's.
      named: Storages by the name of an operation, or of a scope of operations.
      offload: How whatever has no storage of its own is offloaded; None where it is not.
      policy: Codec and bound of each tensor, in place of `codec` and `bound`; None: those.

    Attributes:
      codec: As given.
      bound: As given.
      variables: As given.
      named: As given.
      offload: As given.
      policy: As given.
      table: Its `StateTable`.
      sites: By name.
      crossings: What crossed in the step that was traced last, in order.
      collecting: As `collect` was given it; None before.
      statistics: Reductions of gradients for the error-bound law, a row for each `LawSite`; None until `collect`.
      errors: See `checked`; None outside of it.
    """

    def __init__(
        self,
        codec: Codec,
        bound: ErrorBound | None,
        variables: Callable[[], list],
        named: Mapping[str, str | Offload] | None = None,
        offload: Offload | None = None,
        policy: Policy | None = None,
    ):
        self.table = StateTable("comptrain_states", len(State._fields))
        self.sites: dict[str, Site] = {}
        self.crossings: tuple[Crossing, ...] = ()
        self.statistics: StateTable | None = None
        self.codec = codec
        self.bound = bound
        self.variables = variables
        self.collecting: tf.Variable | None = None
        self.errors: list[LawError] | None = None
        self._laws: dict[str, list[LawSite]] = {}  # by site
        self._bounds: tuple[float, Mapping[str, float] | None] = (1.0, {})
        self.named = dict(named or {})
        self.offload = offload
        self.policy = policy
        self._says_where: set[str] = set()
        self._chosen: weakref.WeakKeyDictionary[Any, dict[str, str | Offload]] = weakref.WeakKeyDictionary()

    def beside(self) -> HeldTensors:
        """Another with the same choices, and states of its own: for a step that is traced to be looked at."""
        other = HeldTensors(self.codec, self.bound, self.variables, self.named, self.offload, self.policy)
        other._chosen = self._chosen
        return other

    def is_of(self, graph: tf.Graph) -> bool:
        """Whether a graph reads a variable of the model."""
        return not _keras.captured_from_outside(graph).isdisjoint(self.weights())

    def choose(self, graph: tf.Graph, operations: Iterable[tf.Operation], storage: str | Offload) -> None:
        """Says how what these operations make is held; what an inner layer has said of one of them stays."""
        chosen = self._chosen.setdefault(graph, {})
        for op in operations:
            chosen.setdefault(op.name, storage)

    def rewire(self, backward: _keras.BackwardPass) -> dict[str, tf.Tensor]:
        """See `graph.rewire`."""
        engine = engine_of_step(backward)
        keep_layouts(engine)
        step = _keras.kept_with(backward.graph, self, lambda: _HeldStep(self, engine))
        step.engine = engine
        step.recorded = backward.recorded
        result = rewire(backward, step)
        if not (backward.xla or backward.recorded):
            narrow_broadcasts(backward)
        staying = {name_of(each.x): each for each in order_copies(backward, step.offloaded)}
        step.collect(backward, result.uses)
        step.write()
        keep_on_stages(backward, result.replaced)
        for crossing in result.crossings:  # of all gradients of a step
            if (stays := staying.get(crossing.name)) is not None:
                storage = KEEP if stays.value is stays.x else COMPRESS
                crossing = crossing._replace(storage=storage, note=NEEDED_AT_ONCE)
            step.crossings.setdefault(crossing.name, crossing)
        self.crossings = tuple(step.crossings.values())
        return result.replaced

    def collect(self, enabled: tf.Variable) -> None:
        """From the next trace on, steps collect what the error-bound law needs wherever `enabled` is True."""
        self.collecting = enabled
        self.statistics = StateTable("comptrain_gradient_statistics", STATISTICS)

    @contextlib.contextmanager
    def checked(self) -> Iterator[list[LawError]]:
        """Inside, steps that are traced also compute what the error-bound law is held against, for the list."""
        self.errors = []
        try:
            yield self.errors
        finally:
            self.errors = None

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
        return {id(part.handle): v for v in self.variables() for part in _keras.parts_of(v)}

    def chosen(self, op: tf.Operation) -> str | Offload | None:
        """The storage that the user has chosen for what an operation makes; None where there is no choice."""
        found = self._chosen.get(op.graph, {}).get(op.name, self.offload)
        scopes = (name for name in self.named if op.name == name or op.name.startswith(f"{name}/"))
        longest = max(scopes, key=len, default=None)
        return found if longest is None else self.named[longest]

    def is_lossless(self) -> bool:
        """Whether whatever is held comes back as it was."""
        moved = (
            self.offload,
            *self.named.values(),
            *(s for of in self._chosen.values() for s in of.values()),
        )
        lossless = (each.is_lossless for each in moved if isinstance(each, Offload))
        return all(codec.is_lossless for codec in self.codecs()) and all(lossless)

    def codecs(self) -> list[Codec]:
        """All that tensors may be encoded with."""
        return [self.codec, *(self.policy.codecs() if self.policy is not None else ())]

    def setting(self, name: str, kind: str, codec: Codec) -> tuple[Codec, ErrorBound | None]:
        """Codec and bound of a tensor that would have that codec without a policy."""
        if self.policy is None:
            return codec, self.bound
        setting = self.policy.setting(name, kind)
        return codecs.get(setting.codec), setting.error_bound()

    def bits(self, dtype: tf.DType, codec: Codec) -> float:
        """What a value of that type takes in a stream, predicted before it is known what reads the tensor."""
        bound = self.bound
        of_sigma = bound is not None and bound.relative and bound.relative_to == SIGMA
        bits = codec.predicted_bits(bound.value if of_sigma else _USUAL_BOUND)  # type: ignore[union-attr]
        return min(bits, 8.0 * dtype.size)

    def say(self, problem: str) -> None:
        """Says once why nothing is offloaded."""
        if problem not in self._says_where:
            self._says_where.add(problem)
            logging.warning("Tensors with storage='offload' stay in memory: the step is %s.", problem)

    def site(self, tensor: tf.Tensor, kind: str, codec: Codec, bound: ErrorBound | None) -> Site:
        """The place of a tensor, the same from trace to trace and in every replica."""
        name = name_of(tensor)
        if name not in self.sites:
            state = self.table.row(name)
            site = self.sites[name] = Site(name, codec, bound, kind, state=state)
            site.adopt_bound(*self._bounds)
        return self.sites[name]

    def adopt_bounds(self, scale: float, bases: Mapping[str, float] | None) -> None:
        """See `Site.adopt_bound`: of all sites, those included that are still to be made."""
        self._bounds = scale, bases
        for site in self.sites.values():
            site.adopt_bound(scale, bases)

    def scale_bounds(self, scale: float) -> None:
        """See `Site.scale_bound`: of all sites, those included that are still to be made."""
        self._bounds = scale, {}
        for site in self.sites.values():
            site.scale_bound(scale)


def dithered(codec: Codec, mask: bool, xla: bool) -> Codec:
    """The codec with dither; without where a mask is read off restored values."""
    if mask and codec.mask_of_restored:
        return codec
    dithered = f"{codec.format}+dither"
    return codecs.get(dithered) if dithered in codecs.CODECS and not xla else codec


def made_by(tensor: tf.Tensor, storage: str | Offload) -> Iterator[tf.Operation]:
    """The operation that makes a tensor a layer reads; to have it rebuilt also those up to a batch normalization."""
    op = base_of(tensor).op
    yield op
    while storage == REBUILD and (row := about(op.type)).is_elementwise and row.again:
        op = base_of(op.inputs[0]).op
        yield op


class _Bits:
    """A tensor of truth values held as bits."""

    storage = BITMASK

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


class _HeldStep:
    """The held tensors of one traced graph: `rewire.Streams`.

    Attributes:
      engine: Of the pass that is rewired.
      recorded: A gradient is taken of its gradients.
      crossings: By name.
      offloaded: What was offloaded so far.
    """

    def __init__(self, held: HeldTensors, engine: Engine):
        self._held = held
        self._xla = engine.xla
        self.engine = engine
        self.recorded = False
        self.crossings: dict[str, Crossing] = {}
        self.offloaded: list[Offloaded] = []
        self._streams: dict = {}
        self._plain: set = set()
        # The kernels of a GPU know bounds before they are launched.
        self._states = TableInStep(held.table, on_host=not engine.xla and engine.device == "GPU")
        self._statistics = None if held.statistics is None else TableInStep(held.statistics)
        self._laws: dict[str, list[LawSite]] = {}  # by site
        self._alone: dict[str, bool] = {}  # by site: whether nothing else reads it

    @property
    def _asks_the_law(self) -> bool:
        """Whether the step collects or checks what the error-bound law reads."""
        return self._statistics is not None or self._held.errors is not None

    @property
    def is_lossless(self) -> bool:
        return self._held.is_lossless()

    def find(self, tensor: tf.Tensor) -> Held | _Bits | Raw | None:
        return self._streams.get(tensor.ref())

    def keep(self, tensor: tf.Tensor) -> None:
        self._plain.add(tensor.ref())

    def held_bytes(self, tensor: tf.Tensor) -> int:
        if self.find(tensor) is not None or tensor.ref() in self._plain or self._is_kept(tensor):
            return 0  # it is there already, or in any case
        size = plain_bytes(tensor)
        if is_small(tensor) or self.why_plain(tensor):
            return size
        if tensor.dtype == tf.bool:
            return size // 8
        codec = self._codec(tensor)
        if codec is None:
            return size
        return round(size * self._held.bits(tensor.dtype, codec) / (8 * tensor.dtype.size))

    def why_plain(self, tensor: tf.Tensor, gain: float = 1.0) -> str:
        if tensor.dtype not in (*SUPPORTED_DTYPES, tf.bool):
            return f"{tensor.dtype.name} has no codec"
        if tensor.ref() in self._plain:
            return "an earlier gradient of the step keeps it"
        offload = self._offload(tensor)
        why = None if offload is None else obstacle(offload, self.engine)
        if why is not None:
            self._held.say(why)
        if (
            offload is not None
            and offload.is_lossless
            and tensor.dtype != tf.bool
            and self._stays(offload, tensor)
        ):
            return f"not offloaded: {why or self._why_it_stays(tensor)}"
        if tensor.dtype != tf.bool and self._held.table.is_full_for(name_of(tensor)):
            return FULL
        if self._xla and gain > _LARGEST_GAIN_XLA and self._held.bound is None:
            return "a function of it is steeper than XLA's codec is fine"
        return "storage='keep'" if self._is_kept(tensor) else ""

    def _is_kept(self, tensor: tf.Tensor) -> bool:
        """Whether the user wants it kept."""
        return self._held.chosen(tensor.op) == KEEP

    def is_exact(self, tensor: tf.Tensor) -> bool:
        offload = self._offload(tensor)
        return offload is not None and offload.is_lossless

    def renormalizes(self, op: tf.Operation) -> bool:
        return self._held.chosen(op) == REBUILD

    def _offload(self, tensor: tf.Tensor) -> Offload | None:
        found = self._held.chosen(tensor.op)
        return found if isinstance(found, Offload) else None

    def _codec(self, tensor: tf.Tensor) -> Codec | None:
        offload = self._offload(tensor)
        if offload is None:
            return self._held.codec
        # Hardly anything that a product makes is zero: its stream would be another copy, in both directions.
        return None if offload.is_lossless and is_product(tensor) else offload.codec  # type: ignore[return-value]

    def hold(
        self, tensor: tf.Tensor, kind: str, mask: bool, gain: float
    ) -> tuple[tf.Tensor, Held | _Bits | Raw]:
        offload = self._offload(tensor)
        stream: Held | _Bits | Raw
        if tensor.dtype == tf.bool:
            through, stream = tensor, _Bits(tensor)
        elif offload is not None and not self._stays(offload, tensor):
            through, stream = self._move(offload, tensor, kind, mask, gain)
        else:
            through, stream = self._compress(tensor, kind, mask, gain)
        self._streams[tensor.ref()] = stream
        return through, stream

    def _stays(self, offload: Offload, tensor: tf.Tensor) -> bool:
        """Whether a tensor stays in memory that is to be offloaded."""
        small = plain_bytes(tensor) < LEAST_PLAIN_BYTES
        return small or self.recorded or obstacle(offload, self.engine) is not None

    @staticmethod
    def _why_it_stays(tensor: tf.Tensor) -> str:
        return "small" if plain_bytes(tensor) < LEAST_PLAIN_BYTES else "a gradient of the gradient is taken"

    def _move(
        self, offload: Offload, tensor: tf.Tensor, kind: str, mask: bool, gain: float
    ) -> tuple[tf.Tensor, Held | Raw]:
        on_host = self.engine.device == "GPU"
        if self._codec(tensor) is None:
            raw = Raw(Offloaded(offload, on_host, name_of(tensor), tensor, tensor))
            self.offloaded.append(raw.offloaded)
            return raw.offloaded.after(tensor), raw
        through, held = self._compress(tensor, kind, mask, gain)
        held.stream = Offloaded(offload, on_host, held.site.name, held.stream, tensor)
        self.offloaded.append(held.stream)
        return held.stream.after(through), held

    def _compress(self, tensor: tf.Tensor, kind: str, mask: bool, gain: float) -> tuple[tf.Tensor, Held]:
        codec: Any = self._codec(tensor)
        codec, bound = self._held.setting(name_of(tensor), kind, codec)
        if bound is None and gain > 1.0:
            bound = ErrorBound(DEFAULT_BOUNDS[kind].value / min(gain, _LARGEST_GAIN))
        site = self._held.site(tensor, kind, dithered(codec, mask, self._xla), bound)
        mask = mask and site.codec.carries_mask
        coder = site.coder(mask, self._xla, self._asks_the_law)
        row = site.state.index
        # Without negative values a fixed rate has finer steps, and zeros come back as they were.
        mid_rise = mask or (self._xla and about(base_of(tensor).op.type).least == 0)
        through, stream, state = coder.compress(
            tensor, self._states.read(row), site.relative_bound, mid_rise, site.bound.reference
        )
        self._states.set(row, state)
        return through, Held(site, coder, stream, tensor, mask)

    def collect(self, backward: _keras.BackwardPass, uses: Sequence[Use]) -> None:
        """Adds the statistics of the gradients of weights that are made of held tensors."""
        if not self._asks_the_law:
            return
        weights = self._held.weights()
        for stream, kernels, alone in uses:
            if not isinstance(stream, Held):
                continue
            laws = []
            for kernel in kernels:
                weight = weights.get(_handle(backward.sources[kernel.source]))
                if weight is None or {kernel.op.inputs[kernel.incoming].dtype, kernel.gradient.dtype} - set(
                    SUPPORTED_DTYPES
                ):
                    continue
                name = f"{stream.site.name} -> {getattr(weight, 'path', weight.name)}"
                self._check(name, stream.site, kernel)
                laws += self._law(name, stream, weight, kernel)
            if self._held.errors is None:  # a step that is checked collects nothing: other steps' laws stay
                self._set_laws(stream.site.name, laws, alone and len(laws) == len(kernels))

    def _set_laws(self, site: str, laws: list[LawSite], alone: bool) -> None:
        """Of all gradients of the step."""
        self._alone[site] = self._alone.get(site, True) and alone
        of_all = {law.name: law for law in (*self._laws.get(site, ()), *laws)}
        self._laws[site] = [law._replace(alone=self._alone[site]) for law in of_all.values()]
        self._held.set_laws(site, self._laws[site])

    def _check(self, name: str, site: Site, kernel: KernelGradient) -> None:
        """Adds what the law is held against, where that is asked for."""
        if self._held.errors is not None:
            error = law_error(name, kernel, self._states.now(site.state.index), site.is_by_channel)
            self._held.errors += [] if error is None else [error]

    def _law(self, name: str, stream: Held, weight: Any, kernel: KernelGradient) -> list[LawSite]:
        """The law's place of a gradient, of which the step collects the statistics; nothing where it does not."""
        statistics = self._statistics
        if statistics is None or self._held.errors is not None or statistics.table.is_full_for(name):
            return []
        dy, dw, scale = kernel.op.inputs[kernel.incoming], kernel.gradient, kernel.scale
        row, stats = statistics.table.row(name), native.ops().comptrain_gradient_stats
        reader = kernel.moved or kernel.op
        with tf.device(kernel.op.device):
            before = statistics.read(row.index)
            if scale is not None:
                if (
                    stream.site.is_by_channel
                ):  # the bound grows with the deviation that a channel is divided by
                    scale = tf.math.rsqrt(tf.reduce_mean(tf.square(1 / scale)))
                whole, factor = dy, tf.cast(scale, dy.dtype)
                dy = tf.cond(self._held.collecting, lambda: whole * factor, lambda: whole[:0])
            # As one channel, for `share` says how much of the sum over all an element of dw meets.
            of_dy = stats(tf.reshape(dy, (-1, 1)), self._held.collecting, before[:3])
            of_dw = stats(dw, self._held.collecting, before[3:6])
            elements = tf.reduce_prod(tf.cast(stream.shape, tf.float32), keepdims=True)
            statistics.set(row.index, tf.concat([of_dy, of_dw, elements], 0))
        if not self._xla:  # else dy would stay until somebody has time to look at it
            _keras.wait_for(reader, [of_dy.op])
        return [LawSite(name, stream.site, kernel.share, weight, row)]

    def write(self) -> None:
        """Assigns what is new of all tensors that were held so far."""
        self._states.write()
        if self._statistics is not None:
            self._statistics.write()


def _handle(source: Any) -> int:
    return id(getattr(source, "handle", None))
