"""What is wished for how tensors are held, before a step says what crosses: the one door for all who wish."""

from __future__ import annotations

import math
import re
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from tf_comptrain import codecs
from tf_comptrain.codecs import SIGMA, Codec, ErrorBound
from tf_comptrain.storage import COMPRESS, DEFAULT_BOUNDS, Holding, Offload, Policy

# Between the bounds of what matrix products and what convolutions read.
_USUAL_BOUND = math.sqrt(DEFAULT_BOUNDS["linear"].value * DEFAULT_BOUNDS["convolution"].value)

_MICROBATCH = "microbatch_"
_GRADIENTS = "gradient_tape/"  # before the scope of what the gradient of an operation makes


def microbatch_scope(number: int) -> str:
    """Of the operations of a later microbatch; those of the first, and their names in each, are as in a whole step."""
    return f"{_MICROBATCH}{number}"


def _as_in_first(name: str) -> str:
    return re.sub(rf"^({_GRADIENTS})?{_MICROBATCH}\d+/", r"\1", name)


class Wishes:
    """What layers, names of operations, a policy and a plan say of how tensors are held.

    Of an operation the longest name that it or a scope around it has counts first, then what a layer has said when it
    was called, then what is said of the whole step. Codec and bound of a stream are the policy's where there is one.

    Args:
      codec: How streams are encoded.
      bound: Their error bound; None for the default of what reads a tensor.
      named: By the name of an operation, or of a scope of operations.
      offload: How whatever has no wish of its own is offloaded; None where it is not.
      policy: Codec and bound of each tensor, in place of `codec` and `bound`; None: those.

    Attributes:
      codec: As given.
      bound: As given.
      named: As given; a plan that is made again writes it anew.
      policy: As given.
      is_plan: Whether a plan says it, whose memory is to be that of every step.
      smaller_tiles: How many times smaller than usual the tiles of wide layers are.
    """

    def __init__(
        self,
        codec: Codec,
        bound: ErrorBound | None = None,
        named: Mapping[str, Holding] | None = None,
        offload: Holding | None = None,
        policy: Policy | None = None,
    ):
        self.codec = codec
        self.bound = bound
        self.named = dict(named or {})
        self.policy = policy
        self.is_plan = False
        self.smaller_tiles = 1
        self._offload = offload
        self._of_layers: weakref.WeakKeyDictionary[Any, dict[str, Holding]] = weakref.WeakKeyDictionary()

    def say(self, graph: tf.Graph, operations: Iterable[tf.Operation], holding: Holding) -> None:
        """Says how what these operations make is held; what an inner layer has said of one of them stays."""
        said = self._of_layers.setdefault(graph, {})
        for op in operations:
            said.setdefault(op.name, holding)
            for scope in (op.name, op.name.rpartition("/")[0]):  # of what its gradient makes for itself
                said.setdefault(f"{_GRADIENTS}{scope}/", holding)

    def of(self, op: tf.Operation) -> Holding | None:
        """The wish for what an operation makes; None where there is none."""
        said, scope = self._of_layers.get(op.graph, {}), op.name.rpartition("/")[0]
        found = said.get(op.name, said.get(f"{scope}/", self._offload))
        own = _as_in_first(op.name).removeprefix(_GRADIENTS)
        scopes = (name for name in self.named if own == name or own.startswith(f"{name}/"))
        longest = max(scopes, key=len, default=None)
        return found if longest is None else self.named[longest]

    def offload_of(self, op: tf.Operation) -> Offload | None:
        """How what an operation makes is offloaded; None where it is not."""
        wish = self.of(op)
        return None if wish is None else wish.offload

    def is_lossless(self) -> bool:
        """Whether whatever is held comes back as it was."""
        of_layers = (holding for said in self._of_layers.values() for holding in said.values())
        offloads = (h.offload for h in (self._offload, *self.named.values(), *of_layers) if h is not None)
        return all(codec.is_lossless for codec in self.codecs()) and all(
            offload.is_lossless for offload in offloads if offload is not None
        )

    def asks_for_bits(self) -> bool:
        """Whether training is to have the bits of plain Keras: all that has no wish of its own comes back as it was."""
        offload = None if self._offload is None else self._offload.offload
        return self.is_lossless() or (offload is not None and offload.is_lossless)

    def codecs(self) -> list[Codec]:
        """All that tensors may be encoded with."""
        return [self.codec, *(self.policy.codecs() if self.policy is not None else ())]

    def stream(self, name: str, kind: str, codec: Codec) -> Holding:
        """The stream of a tensor, by its name and by what an error of it does.

        Args:
          name: Of the tensor.
          kind: See storage.DEFAULT_BOUNDS.
          codec: What encodes it without a policy.
        """
        if self.policy is None:
            return Holding(COMPRESS, codec, self.bound, kind)
        setting = self.policy.setting(_as_in_first(name), kind)
        return Holding(COMPRESS, codecs.get(setting.codec), setting.error_bound(), kind)

    def bits(self, dtype: tf.DType, codec: Codec) -> float:
        """What a value of that type takes in a stream, predicted before it is known what reads the tensor."""
        bound = self.bound
        of_sigma = bound is not None and bound.relative and bound.relative_to == SIGMA
        bits = codec.predicted_bits(bound.value if of_sigma else _USUAL_BOUND)  # type: ignore[union-attr]
        return min(bits, 8.0 * dtype.size)
