"""The rows of a report: what crossed in the traced step, or will."""

from __future__ import annotations

import math

from tf_comptrain.compression.report import Row
from tf_comptrain.graph import SMALL, Crossing, HeldTensors
from tf_comptrain.storage import BITMASK, COMPRESS, OFFLOAD


def rows_of(held: HeldTensors) -> list[Row]:
    """What crossed in the step that was traced last, without small tensors."""
    return [_row(held, crossing) for crossing in held.crossings if crossing.note != SMALL]


def _row(held: HeldTensors, crossing: Crossing) -> Row:
    shape = crossing.shape[1:]
    elements = math.prod(size if size is not None else 0 for size in shape) if shape else 0
    plain_bits = 8.0 * crossing.dtype.size
    site = held.sites.get(crossing.name) if crossing.storage in (COMPRESS, OFFLOAD) else None
    codec = held.codec if site is None else site.codec
    predicted = {COMPRESS: held.bits(crossing.dtype, codec), BITMASK: 1.0}.get(crossing.storage, plain_bits)
    bits = crossing.bits or (site.bits if site is not None else None) or predicted
    held_bytes = round(elements * bits / 8) or None
    return Row(
        crossing.name,
        crossing.op_type,
        f"read by {', '.join(crossing.readers)}",
        crossing.storage,
        shape,
        round(elements * plain_bits / 8) or None,
        0 if crossing.storage == OFFLOAD and held_bytes else held_bytes,
        "" if site is None or codec.is_lossless else str(site.bound),
        crossing.note,
    )
