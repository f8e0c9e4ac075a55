"""The rows of a report: what crossed in the traced step, or will."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from tf_comptrain import _keras
from tf_comptrain.compression.layer_names import split_name
from tf_comptrain.compression.report import ReportRow, StepRows
from tf_comptrain.graph import SMALL, USUAL_BATCH, Crossing, HeldTensors
from tf_comptrain.storage import BITMASK, COMPRESS, OFFLOAD, TILE, Site

_DENSITY_OF_RELU = 0.5  # of values that are not zero, before one has been seen


def traced(held: HeldTensors, paths: Collection[str]) -> StepRows:
    """What crossed in the step that was traced last; small tensors have no rows.

    Args:
      held: What is held of the model's steps.
      paths: Of the model's layers, as it names them.
    """
    crossings = [crossing for crossing in held.crossings if crossing.note != SMALL]
    small = [crossing.sample_bytes or 0 for crossing in held.crossings if crossing.note == SMALL]
    rows = tuple(_row(held, crossing, paths) for crossing in crossings)
    return StepRows(rows, _batch_size(crossings), len(small), sum(small))


def _batch_size(crossings: Collection[Crossing]) -> int | None:
    """Of the step's arguments, or else the first dimension of most: some count the steps of sequences."""
    found = Counter(crossing.batch or crossing.shape[0] for crossing in crossings if crossing.shape)
    return found.most_common(1)[0][0] if found else None


def _row(held: HeldTensors, crossing: Crossing, paths: Collection[str]) -> ReportRow:
    value_bytes = crossing.sample_bytes or None
    site = held.sites.get(crossing.name) if crossing.storage in (COMPRESS, OFFLOAD) else None
    codec = held.codec if site is None else site.codec
    held_bytes, bits = value_bytes, 8.0 * crossing.dtype.size
    if crossing.storage in (COMPRESS, BITMASK):
        bits = crossing.bits or _bits(held, crossing, site)
        held_bytes = value_bytes and round(value_bytes * bits / (8 * crossing.dtype.size))
    elif crossing.storage in (OFFLOAD, TILE) and value_bytes:
        held_bytes = 0
    return ReportRow(
        crossing.name,
        crossing.op_type,
        f"read by {', '.join(crossing.readers)}",
        crossing.storage,
        crossing.sample_shape,
        value_bytes,
        held_bytes,
        "" if site is None or codec.is_lossless else str(site.bound),
        crossing.note,
        None if crossing.storage in (OFFLOAD, TILE) else bits,
        *split_name(crossing.name, paths, _keras.KERAS_3),
    )


def _bits(held: HeldTensors, crossing: Crossing, site: Site | None) -> float:
    """Of a value, predicted."""
    if crossing.storage == BITMASK:
        return 1.0
    if site is None:  # of a layer's own
        return held.wishes.bits(crossing.dtype, held.codec)
    density = _DENSITY_OF_RELU if crossing.op_type in ("Relu", "Relu6") else 1.0
    values = (crossing.sample_bytes or 0) // crossing.dtype.size
    rows = USUAL_BATCH * max(values // max(crossing.shape[-1] or 1, 1), 1)
    return min(site.predicted_bits(density, rows), 8.0 * crossing.dtype.size)
