"""What runs tile after tile: decided when a gradient is taken, carried out when all of the step is traced.

What reads something wide later, as a metric does, so runs by tiles too.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tf_comptrain import _keras
from tf_comptrain.graph.held.streams_of_step import StreamsOfStep
from tf_comptrain.graph.tiles.loop import run_by_tiles
from tf_comptrain.graph.tiles.region import MuchBetween, Region, Untiled, find_region, wide_products
from tf_comptrain.graph.tiles.sizes import KnownSizes


class TiledParts(NamedTuple):
    """What runs tile after tile.

    Attributes:
      parts: (the product that is wide, types of operations of the backward pass beside it).
      at_once: Names of all operations inside: they read with the forward pass what that makes.
    """

    parts: tuple[tuple[tf.Operation, tuple[str, ...]], ...]
    at_once: frozenset[str]


def plan_tiles(backward: _keras.BackwardPass, streams: StreamsOfStep) -> TiledParts:
    """Finds what can run by tiles, and has that done at the end of the trace.

    Args:
      backward: A pass that nothing has changed yet.
      streams: Says what is to stay as it is.
    """
    operations = backward.graph.get_operations()
    late = frozenset(op.name for op in operations[backward.start : backward.stop])
    regions: list[Region] = []
    at_once: frozenset[str] = frozenset()
    known = KnownSizes()
    for wide in () if backward.recorded else wide_products(operations[: backward.start], known):
        if not streams.may_tile(wide.outputs[0]):
            continue
        try:
            region = find_region(wide, known)
        except MuchBetween:
            continue
        except Untiled as reason:
            streams.say_whole(wide.outputs[0], str(reason))
            continue
        if at_once.isdisjoint(region.inside) and not late.isdisjoint(region.inside):
            regions.append(region)
            at_once |= region.inside.keys()
            _keras.at_end_of_trace(backward.graph, functools.partial(_run_by_tiles, wide, known, streams))
    parts = ((region.product, _readers(region, late)) for region in regions)
    return TiledParts(tuple(parts), at_once)


def _run_by_tiles(
    wide: tf.Operation, known: KnownSizes, streams: StreamsOfStep, returned: Sequence[tf.Tensor]
) -> None:
    try:
        run_by_tiles(find_region(wide, known, returned))
    except Untiled as reason:
        streams.say_whole(wide.outputs[0], str(reason))


def _readers(region: Region, late: frozenset[str]) -> tuple[str, ...]:
    """Types of the operations of the backward pass that read something wide."""
    found = (op.type for name, op in region.inside.items() if name in late and region.reads_wide(op))
    return tuple(dict.fromkeys(found))
