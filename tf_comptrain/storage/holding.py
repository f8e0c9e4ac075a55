"""How one tensor is held between the passes, as data: what the user, a policy, a plan and the default rule write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tf_comptrain.codecs import Codec, ErrorBound
from tf_comptrain.storage.held import FUSED, KEEP
from tf_comptrain.storage.offload import OFFLOAD, Offload


class Holding(NamedTuple):
    """How a tensor is held between the passes.

    Attributes:
      way: "keep": as it is. "compress": as a stream. "bitmask": as bits. "rebuild": not at all, it is made again.
        "offload": outside of the device's memory, as a stream or as it is.
      codec: Of the stream; None: it has none, or that is still to be decided.
      bound: Of the stream; None: the default of `kind`.
      kind: What an error of the tensor does, see DEFAULT_BOUNDS; "" where that is still to be found in the step.
      mask: Whether the stream says which elements are zero, for the gradient of a ReLU.
      offload: Where the tensor waits; None: in the device's memory.
      note: Why it is kept, or what holds it; "" where there is nothing to say.
    """

    way: str
    codec: Codec | None = None
    bound: ErrorBound | None = None
    kind: str = ""
    mask: bool = False
    offload: Offload | None = None
    note: str = ""


def holding_of(storage: str | Offload) -> Holding:
    """What a storage that the user or a plan names says of a tensor.

    Args:
      storage: "keep", "fused", "compress", "rebuild" or an `Offload`.
    """
    if isinstance(storage, Offload):
        return Holding(OFFLOAD, offload=storage)
    return Holding(KEEP if storage == FUSED else storage)


def holdings_of(storages: Mapping[str, str | Offload]) -> dict[str, Holding]:
    """`holding_of` for each name of an operation, or of a scope of operations."""
    return {name: holding_of(storage) for name, storage in storages.items()}
