"""The rows of a report: what crossed in the traced step, or will."""

from __future__ import annotations

from tf_comptrain.compression.report import ReportRow
from tf_comptrain.graph import SMALL, Crossing, HeldTensors
from tf_comptrain.storage import BITMASK, COMPRESS, OFFLOAD


def rows_of(held: HeldTensors) -> list[ReportRow]:
    """What crossed in the step that was traced last, without small tensors."""
    return [_row(held, crossing) for crossing in held.crossings if crossing.note != SMALL]


def _row(held: HeldTensors, crossing: Crossing) -> ReportRow:
    plain_bytes = crossing.sample_bytes or None
    site = held.sites.get(crossing.name) if crossing.storage in (COMPRESS, OFFLOAD) else None
    codec = held.codec if site is None else site.codec
    held_bytes = plain_bytes
    if crossing.storage in (COMPRESS, BITMASK):
        predicted = held.wishes.bits(crossing.dtype, codec, site) if crossing.storage == COMPRESS else 1.0
        bits = crossing.bits or (site.bits if site is not None else None) or predicted
        held_bytes = plain_bytes and round(plain_bytes * bits / (8 * crossing.dtype.size))
    elif crossing.storage == OFFLOAD and plain_bytes:
        held_bytes = 0
    return ReportRow(
        crossing.name,
        crossing.op_type,
        f"read by {', '.join(crossing.readers)}",
        crossing.storage,
        crossing.shape[1:],
        plain_bytes,
        held_bytes,
        "" if site is None or codec.is_lossless else str(site.bound),
        crossing.note,
    )
