"""The tensors that one traced step holds: what is decided for each, and how that is carried out."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf
from absl import logging

from tf_comptrain import codecs, native
from tf_comptrain.codecs import RATES, SUPPORTED_DTYPES, Codec, ErrorBound
from tf_comptrain.graph.crossings import Crossing
from tf_comptrain.graph.gradient_operations import is_product
from tf_comptrain.graph.held.channels import channel_dimensions, is_batch_normalized
from tf_comptrain.graph.held.sites import Sites
from tf_comptrain.graph.held.states import FULL, TableInStep
from tf_comptrain.graph.held.wishes import Wishes
from tf_comptrain.graph.operations import about
from tf_comptrain.graph.tensors import base_of, is_small, plain_bytes
from tf_comptrain.graph.tiles.limits import TileSizes, tile_sizes
from tf_comptrain.storage import (
    BITMASK,
    COMPRESS,
    DEFAULT_BOUNDS,
    KEEP,
    LEAST_PLAIN_BYTES,
    OFFLOAD,
    REBUILD,
    Engine,
    Held,
    Holding,
    Offload,
    Offloaded,
    Raw,
    codec_obstacle,
    name_of,
    obstacle,
)

KEPT_BEFORE = "an earlier gradient of the step keeps it"
_OFFLOADED_NOWHERE = "Tensors with storage='offload' stay in memory: the step is %s."
_WHOLE = "%s, about %.3g MB, is made whole, not by tiles of rows: %s."
_TOO_FINE = (
    "The bound of %s and others, %s, is finer than what XLA's streams have, %d bits a value: errors are larger. With "
    "jit_compile=False they keep the bound."
)
_TRUTH = tf.float16  # the smallest type that the mask operations take
# Gains are those of a constant before a nonlinear function.
_LARGEST_GAIN = 64.0  # six bits a value
_LARGEST_GAIN_UNDER_XLA = 4.0  # its codec has two bits more than the default bound takes


class Bits:
    """A tensor of truth values held as bits.

    Args:
      tensor: The tensor.
      xla: XLA compiles the step.
    """

    storage = BITMASK
    is_exact = True

    def __init__(self, tensor: tf.Tensor, xla: bool):
        self._xla = xla
        self._shape = tf.shape(tensor)
        self._static_shape = tensor.shape
        _, self._bits = native.ops().comptrain_bitmask(tf.cast(tensor, _TRUTH))

    def restore(self, gate: tf.Tensor) -> tf.Tensor:
        """The tensor, once the gate is there."""
        bits = self._bits
        if self._xla:  # which knows no control dependencies
            bits = native.ops().comptrain_fence([bits, gate])[0]
        with tf.control_dependencies([gate.op]):
            ones = tf.ones(self._shape, _TRUTH)
        restored = tf.cast(native.ops().comptrain_bitmask_grad(bits, ones), tf.bool)
        restored.set_shape(self._static_shape)
        return restored


class StreamsOfStep:
    """The held tensors of one traced graph, for all gradients that are taken in it.

    Args:
      wishes: What is said of how tensors are held.
      sites: Of the model.
      engine: Of the step.
      said: What was said already of why nothing is offloaded.

    Attributes:
      recorded: A gradient is taken of the gradients of the pass that is rewired.
      crossings: By name.
      offloaded: What was offloaded so far.
      states: Of the sites.
    """

    def __init__(self, wishes: Wishes, sites: Sites, engine: Engine, said: set[str] | None = None):
        self.recorded = False
        self.crossings: dict[str, Crossing] = {}
        self.offloaded: list[Offloaded] = []
        # The kernels of a GPU know bounds before they are launched.
        self.states = TableInStep(sites.table, on_host=not engine.xla and engine.device == "GPU")
        self._wishes, self._sites, self._engine = wishes, sites, engine
        self._statistics = False
        self._streams: dict[Any, Held | Bits | Raw] = {}
        self._kept: set[Any] = set()
        self._said = set() if said is None else said

    def begin(self, engine: Engine, recorded: bool, statistics: bool) -> None:
        """Says what is so of the pass that is rewired next.

        Args:
          engine: Of the step.
          recorded: A gradient is taken of its gradients.
          statistics: The step collects or checks what the error-bound law reads.
        """
        self._engine, self.recorded, self._statistics = engine, recorded, statistics

    @property
    def is_lossless(self) -> bool:
        """No tensor comes back with an error."""
        return self._wishes.is_lossless()

    @property
    def asks_for_bits(self) -> bool:
        """Whether the step is to have the bits of plain Keras."""
        return self._wishes.asks_for_bits()

    @property
    def runs_in_one_order(self) -> bool:
        """Whether each operation that makes a large tensor waits for the one before."""
        return self._wishes.is_plan and not self._engine.xla and not self.asks_for_bits

    def find(self, tensor: tf.Tensor) -> Held | Bits | Raw | None:
        """The stream that this gradient or an earlier one of the step has made of the tensor."""
        return self._streams.get(tensor.ref())

    def keep(self, tensor: tf.Tensor) -> None:
        """Says that the tensor is held as it is, also for later gradients of the step."""
        self._kept.add(tensor.ref())

    def is_exact(self, tensor: tf.Tensor) -> bool:
        """Whether what is restored of a tensor has to be it, bit for bit."""
        offload = self._wishes.offload_of(tensor.op)
        return offload is not None and offload.is_lossless

    @property
    def may_run_kernels(self) -> bool:
        """Whether kernels may stand in for formulas: they are for a CPU's executor, and round otherwise."""
        return self._engine.is_cpu_executor and not self.recorded and not self.is_lossless

    @property
    def on_gpu(self) -> bool:
        return self._engine.is_for_gpu

    @property
    def tile_sizes(self) -> TileSizes:
        """How large tiles of wide layers are."""
        return tile_sizes(self._engine.xla, self.on_gpu, self._wishes.smaller_tiles)

    @property
    def may_hold_lists(self) -> bool:
        """Whether lists of loops may hold streams."""
        return self._engine.is_cpu_executor and not self.recorded

    def of_turns(self, loop: tf.Operation, kind: str) -> Holding | None:
        """How what each turn of a loop makes is held; None: as it is.

        Args:
          loop: The loop.
          kind: What an error does, see storage.DEFAULT_BOUNDS.
        """
        if self._way(loop) not in (None, COMPRESS) or self._wishes.offload_of(loop) is not None:
            return None
        stream = self._wishes.stream(loop.name, kind, self._wishes.codec)
        bound = stream.bound or DEFAULT_BOUNDS[kind]
        if not bound.relative:  # an absolute one is in the state of a site
            return None
        codec = codecs.dithered(stream.codec or self._wishes.codec, False, self._engine.xla)
        return Holding(COMPRESS, codec, bound, kind)

    def wishes_alike(self, op: tf.Operation, other: tf.Operation) -> bool:
        """Whether the same is wished for what two operations make."""
        return self._wishes.of(op) == self._wishes.of(other)

    def may_round(self, tensor: tf.Tensor) -> bool:
        """Whether a tensor may be made in another way, which rounds otherwise."""
        return self._way(tensor.op) in (None, COMPRESS) and not self.is_exact(tensor)

    def say_whole(self, tensor: tf.Tensor, why: str, crosses: bool = True) -> None:
        """Says why a wide tensor is not made by tiles, each reason once, in the report too where it had said so.

        Args:
          tensor: The tensor.
          why: What prevents it.
          crosses: Whether the backward pass reads the tensor itself; False: it makes it again.
        """
        name = name_of(tensor)
        if not crosses:
            self.crossings.pop(name, None)
        elif name in self.crossings:
            self.crossings[name] = self.crossings[name]._replace(storage=KEEP, note=why)
        self._say_once(_WHOLE % (name, plain_bytes(tensor) / 1e6, why), why)

    def renormalizes(self, op: tf.Operation) -> bool:
        """Whether what a batch normalization makes may be rebuilt from its input."""
        return self.is_lossless or self._way(op) == REBUILD

    def held_bytes(self, tensor: tf.Tensor) -> int:
        """What a tensor will take."""
        if self.find(tensor) is not None or tensor.ref() in self._kept or self._way(tensor.op) == KEEP:
            return 0  # it is there already, or in any case
        size = plain_bytes(tensor)
        if is_small(tensor) or self.why_plain(tensor):
            return size
        if tensor.dtype == tf.bool:
            return size // 8
        codec = self._codec(tensor)
        if codec is None:
            return size
        return round(size * self._wishes.bits(tensor.dtype, codec) / (8 * tensor.dtype.size))

    def why_plain(self, tensor: tf.Tensor, gain: float = 1.0) -> str:
        """Why a tensor is held as it is; "" where it need not be.

        Args:
          tensor: Any.
          gain: What a default bound is divided by, see `errors.Made`.
        """
        if tensor.dtype not in (*SUPPORTED_DTYPES, tf.bool):
            return f"{tensor.dtype.name} has no codec"
        if tensor.ref() in self._kept:
            return KEPT_BEFORE
        why = self._why_not_offloaded(tensor)
        if why:
            return why
        if tensor.dtype != tf.bool and not self._sites.has_room_for(name_of(tensor)):
            return FULL
        if self._engine.xla and gain > _LARGEST_GAIN_UNDER_XLA and self._wishes.bound is None:
            return "a function of it is steeper than XLA's codec is fine"
        return "storage='keep'" if self._way(tensor.op) == KEEP else ""

    def decide(self, tensor: tf.Tensor, kind: str, mask: bool, gain: float) -> Holding:
        """How a tensor is held that nothing keeps.

        Args:
          tensor: One that is not held yet, and that `why_plain` says nothing of.
          kind: What an error of it does, see storage.DEFAULT_BOUNDS.
          mask: It is the output of a ReLU; the stream has a `mask_gradient(dy)` then: dy where it is not zero.
          gain: What a default bound is divided by, see `errors.Made`.
        """
        if tensor.dtype == tf.bool:
            return Holding(BITMASK)
        offload, codec = self._wishes.offload_of(tensor.op), self._codec(tensor)
        moved = offload if offload is not None and not self._stays(offload, tensor) else None
        if codec is None:
            return Holding(OFFLOAD, offload=moved)
        name = name_of(tensor)
        stream = self._wishes.stream(name, kind, codec)
        codec, bound = stream.codec or codec, stream.bound
        why = codec_obstacle(codec, self._engine)
        if why is not None:
            return Holding(KEEP, note=why)
        self._sites.claim(name)
        if bound is None and gain > 1.0:
            bound = ErrorBound(DEFAULT_BOUNDS[kind].value / min(gain, _LARGEST_GAIN))
        codec = codecs.dithered(codec, mask, self._engine.xla)
        way = COMPRESS if moved is None else OFFLOAD
        return Holding(way, codec, bound, kind, mask, moved)

    def hold(self, tensor: tf.Tensor, holding: Holding) -> tuple[tf.Tensor, Held | Bits | Raw]:
        """The tensor passed through, and its stream.

        Args:
          tensor: One that is not held yet.
          holding: As `decide` has it.
        """
        stream: Held | Bits | Raw
        if holding.way == BITMASK:
            through, stream = tensor, Bits(tensor, self._engine.xla)
        elif holding.codec is None and holding.offload is not None:
            stream = Raw(self._move(holding.offload, name_of(tensor), tensor, tensor))
            through = stream.offloaded.after(tensor)
        else:
            through, stream = self._compress(tensor, holding)
            if holding.offload is not None:
                stream.stream = self._move(holding.offload, stream.site.name, stream.stream, tensor)
                through = stream.stream.after(through)
        self._streams[tensor.ref()] = stream
        return through, stream

    def _say_once(self, sentence: str, topic: str) -> None:
        if topic not in self._said:
            self._said.add(topic)
            logging.warning("%s", sentence)

    def _way(self, op: tf.Operation) -> str | None:
        """What is wished for what an operation makes."""
        wish = self._wishes.of(op)
        return None if wish is None else wish.way

    def _why_not_offloaded(self, tensor: tf.Tensor) -> str:
        """Why a tensor stays as it is that is to be offloaded without an error; "" of others."""
        offload = self._wishes.offload_of(tensor.op)
        if offload is None:
            return ""
        why = obstacle(offload, self._engine)
        if why is not None:
            self._say_once(_OFFLOADED_NOWHERE % why, why)
        if not offload.is_lossless or tensor.dtype == tf.bool or not self._stays(offload, tensor):
            return ""
        small = plain_bytes(tensor) < LEAST_PLAIN_BYTES
        return f"not offloaded: {why or ('small' if small else 'a gradient of the gradient is taken')}"

    def _codec(self, tensor: tf.Tensor) -> Codec | None:
        offload = self._wishes.offload_of(tensor.op)
        if offload is None:
            return self._wishes.codec
        # Hardly anything that a product makes is zero: its stream would be another copy, in both directions.
        return None if offload.is_lossless and is_product(tensor) else offload.codec  # type: ignore[return-value]

    def _stays(self, offload: Offload, tensor: tf.Tensor) -> bool:
        """Whether a tensor stays in memory that is to be offloaded."""
        small = plain_bytes(tensor) < LEAST_PLAIN_BYTES
        return small or self.recorded or obstacle(offload, self._engine) is not None

    def _move(self, offload: Offload, site: str, value: tf.Tensor, tensor: tf.Tensor) -> Offloaded:
        moved = Offloaded(offload, self._engine.device == "GPU", site, value, tensor)
        self.offloaded.append(moved)
        return moved

    def _compress(self, tensor: tf.Tensor, holding: Holding) -> tuple[tf.Tensor, Held]:
        site = self._sites.of(tensor, holding)
        mask = holding.mask and site.codec.carries_mask
        coder = site.coder(mask, self._engine.xla, self._statistics)
        if self._engine.xla and site.is_too_fine(mask):
            self._say_once(_TOO_FINE % (name_of(tensor), site.bound, RATES[-1]), _TOO_FINE)
        row = site.state.index
        count = 1 if mask else channel_dimensions(tensor)
        x = tensor if count == 1 else _joined(tensor, count)
        through, stream, state = coder.compress(
            x,
            self.states.read(row),
            site.relative_bound,
            self._is_mid_rise(tensor, mask),
            site.bound.reference,
            site.scales_rows(x, self._engine.xla) and not is_batch_normalized(tensor),
        )
        self.states.set(row, state)
        if count > 1:
            through = _in_shape_of(through, tensor)
        return through, Held(site, coder, stream, x, mask, None if count == 1 else tensor)

    def _is_mid_rise(self, tensor: tf.Tensor, mask: bool) -> bool:
        """Whether no value of a tensor that is not zero becomes zero."""
        # Under XLA a fixed rate has finer steps without negative values, and zeros come back as they were.
        return mask or (self._engine.xla and about(base_of(tensor).op.type).least == 0)


def _joined(tensor: tf.Tensor, count: int) -> tf.Tensor:
    """A tensor with its last `count` dimensions as one."""
    sizes = tensor.shape
    channels = math.prod(sizes[-count:])
    joined = tf.reshape(tensor, [*tf.unstack(tf.shape(tensor))[:-count], channels])
    joined.set_shape([*sizes[:-count], channels])
    return joined


def _in_shape_of(through: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    shaped = tf.reshape(through, tf.shape(tensor))
    shaped.set_shape(tensor.shape)
    return shaped
