"""How rows are cut into tiles, and how those of a result are put together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from tf_comptrain.graph.operations import about
from tf_comptrain.graph.order import ancestors
from tf_comptrain.graph.tensors import base_of
from tf_comptrain.graph.tiles import limits
from tf_comptrain.graph.tiles.cuts import Kept, RowCut, kept_rows, slices_rows, whole_and_part
from tf_comptrain.graph.tiles.region import Region
from tf_comptrain.graph.tiles.rows import Rows, viewed
from tf_comptrain.graph.tiles.sizes import product
from tf_comptrain.graph.tiles.untiled import Untiled

Number: TypeAlias = int | tf.Tensor


class Tiling(NamedTuple):
    """How many rows there are, tiles, and rows of one; rows along each of their dimensions.

    Beside them the size of the batch, where that is no dimension of rows and only a run says it.
    """

    rows: Number
    tiles: Number
    size: Number
    sizes: tuple[Number, ...]
    samples: tf.Tensor | None = None

    @property
    def missing(self) -> Number:
        """Rows that the last tile has too many."""
        return self.tiles * self.size - self.rows

    @property
    def fits(self) -> bool:
        """Whether it is known that none are missing."""
        return isinstance(self.missing, int) and self.missing == 0


def tiling_of(region: Region, some: tf.Tensor, place: Rows, tile_sizes: limits.TileSizes) -> Tiling:
    """Tiles of nearly one size; where the graph says all the sizes are numbers."""
    own = region.known.of(some)
    sizes: list[Any] = [tf.shape(some)[at] if own[at] is None else own[at] for at in place.dimensions]
    source = source_of_samples(region)
    samples = None if source is None else tf.shape(source[0])[source[1]]
    most: Any = max(_tile_bytes(region, tile_sizes) // region.row_bytes, 1)
    if samples is None:
        most = 1 << most.bit_length() - 1  # which samples times tokens are often a multiple of
    else:
        powers = tf.constant([1 << power for power in range(1, 31)])
        fitting = tf.cast(powers <= tf.cast(most // samples, tf.int32), tf.int32)
        most = tf.bitwise.left_shift(1, tf.reduce_sum(fitting))
    if samples is None and not any(map(tf.is_tensor, sizes)):
        rows = math.prod(sizes)
        tiles = max(-(-rows // most), 1)
        return Tiling(rows, tiles, max(-(-rows // tiles), 1), tuple(sizes))
    rows = tf.reduce_prod(tf.stack(sizes))
    tiles = tf.maximum(-(-rows // most), 1)
    return Tiling(rows, tiles, tf.maximum(-(-rows // tiles), 1), tuple(sizes), samples)


def filled(sizes: Iterable[Any], samples: tf.Tensor | None) -> list[Any]:
    """Sizes, with the batch's in the place of what only a run says."""
    return [samples if size is None else size for size in sizes]


def _tile_bytes(region: Region, tile_sizes: limits.TileSizes) -> int:
    """Of the largest tensor in a tile: each tile adds to the sums, and many of few rows would do little else."""
    own = tile_sizes.of(region.product.outputs[0].dtype)
    sums = (product(region.known.of(tensor)) or 0 for tensor in region.sums)
    return max([own.bytes, *(int(4 * size * tile_sizes.of_sum) for size in sums)])


def tiles_of(region: Region, tensor: tf.Tensor, tiling: Tiling) -> Callable[[tf.Tensor], tf.Tensor]:
    """What has the tile of a number: its rows in the first dimension.

    Rows missing in the last tile are other ones again. Zeros in their place may be what a loss divides by.
    """
    rows = region.rows[tensor.ref()]
    others = filled(rows.others(region.known.of(tensor)), tiling.samples)
    if rows.repeats:
        values, places = tf.reshape(_rows_first(tensor, rows), [-1, *others]), _places(region, tensor, tiling)
        return lambda number: tf.gather(values, tf.gather(places, number))
    kept = kept_of(region, rows)
    whole = _rows_first(_spread(region, tensor), rows)
    flat = tf.reshape(whole, [kept.count if kept else tiling.rows, *others])
    if kept:
        flat = tf.gather(flat, kept.places)
    if not tiling.fits:
        flat = tf.pad(flat, [[0, tiling.missing], *[[0, 0]] * len(others)], "SYMMETRIC")
    tiles = tf.reshape(flat, [tiling.tiles, tiling.size, *others])
    return lambda number: tf.gather(tiles, number)


def _spread(region: Region, tensor: tf.Tensor) -> tf.Tensor:
    """A tensor with all of its rows, where one of several sizes that only a run says may be one value for all."""
    own, rows = region.known.of(tensor), region.rows[tensor.ref()]
    unknown = [place for place in rows.dimensions if own[place] is None]
    alike = (
        (source, place)
        for source, place in sources(region)
        if place.cut is None and len(place.dimensions) == len(rows.dimensions)
    )
    source, place = next(alike, (tensor, rows))
    if len(unknown) < 2 or source is tensor:
        return tensor
    dynamic = tf.shape(source)
    sizes = [dynamic[number] for number in place.dimensions]
    if rows.cut is not None:
        sizes[rows.cut.number] -= rows.cut.before + rows.cut.after
    dynamic = tf.shape(tensor)
    others = [dynamic[place] if size is None else size for place, size in enumerate(own)]
    return tf.broadcast_to(tensor, rows.joined(others, sizes))


def are_there(region: Region, tiling: Tiling) -> dict[RowCut | None, tf.Tensor]:
    """By what is left out: which rows of each tile are there; without an entry for nothing where all are."""
    found: dict[RowCut | None, tf.Tensor] = {}
    shape = [tiling.tiles, tiling.size]
    every = tf.range(tiling.tiles * tiling.size)
    if not tiling.fits:
        found[None] = tf.reshape(every < tiling.rows, shape)
    for rows in region.rows.values():
        if rows.cut not in found and (kept := kept_of(region, rows)) is not None:
            some = tf.gather(kept.are_there, tf.minimum(every, tiling.rows - 1)) & (every < tiling.rows)
            found[rows.cut] = tf.reshape(some, shape)
    return found


def kept_of(region: Region, rows: Rows) -> Kept | None:
    """The rows that a cut leaves; None where all are there.

    Raises:
      Untiled: How many there are is known only when they are there.
    """
    return None if rows.cut is None else kept_rows(rows.cut, row_sizes(region, _whole_of(region, rows.cut)))


def _whole_of(region: Region, cut: RowCut) -> tf.Tensor:
    """What a slice is one of, or the gradient of that."""
    for op in region.inside.values():
        if slices_rows(op):
            whole, part = whole_and_part(op)
            if region.rows[part.ref()].cut == cut:
                return whole
    raise Untiled("what it is a slice of is made elsewhere")


def _places(region: Region, tensor: tf.Tensor, tiling: Tiling) -> tf.Tensor:
    """For each row of each tile: where the value is that several rows share.

    Raises:
      Untiled: How many rows share a value is not known.
    """
    row, count = tf.minimum(tf.range(tiling.tiles * tiling.size), tiling.rows - 1), tiling.rows
    if (kept := kept_of(region, region.rows[tensor.ref()])) is not None:
        row, count = tf.gather(kept.places, row), kept.count
    place, stride = tf.zeros_like(row), 1
    for size, is_shared in reversed(_shared_sizes(region, tensor, count)):
        if not is_shared:
            place += row % size * stride
            stride *= size
        row //= size
    return tf.reshape(place, [tiling.tiles, tiling.size])


def _shared_sizes(region: Region, tensor: tf.Tensor, count: Number) -> list[tuple[Any, bool]]:
    """Sizes whose product is the number of rows, and whether all rows along one share a value.

    Dimensions side by side that rows share are one; what the tensor itself does not say of it, the others do.
    """
    own, rows, dynamic = region.known.of(tensor), region.rows[tensor.ref()], tf.shape(tensor)
    found: list[Any] = []
    for number, place in enumerate(rows.dimensions):
        if number not in rows.repeats:
            found.append(dynamic[place] if own[place] is None else own[place])
        elif not found or found[-1] is not None:
            found.append(None)
    if found.count(None) > 1:
        raise Untiled(f"how many rows share a value of {tensor.op.name} is not known")
    others: Any = 1
    for size in found:
        others *= 1 if size is None else size
    return [(count // others if size is None else size, size is None) for size in found]


def from_tiles(region: Region, tensor: tf.Tensor, tiles: tf.Tensor, tiling: Tiling) -> tf.Tensor:
    """The opposite of `tiles_of`, for a result."""
    sizes, rows = region.known.of(tensor), region.rows[tensor.ref()]
    others = filled(rows.others(sizes), tiling.samples)
    flat = tf.reshape(tiles, [tiling.tiles * tiling.size, *others])
    if not tiling.fits:
        flat = tf.slice(flat, [0] * (1 + len(others)), [tiling.rows, *others])
    if (kept := kept_of(region, rows)) is not None:
        flat = tf.gather(flat, kept.rows)
    whole = tf.reshape(flat, [*row_sizes(region, tensor), *others])
    order = _order(rows, len(sizes))
    return whole if order == sorted(order) else tf.transpose(whole, np.argsort(order))


def _order(rows: Rows, rank: int) -> list[int]:
    """The dimensions of a tensor, those of rows first."""
    own = [place for place in rows.dimensions if place >= 0]
    return [*own, *(place for place in range(rank) if place not in own)]


def _rows_first(tensor: tf.Tensor, rows: Rows) -> tf.Tensor:
    order = _order(rows, len(tensor.shape))
    return tensor if order == sorted(order) else tf.transpose(tensor, order)


def row_sizes(region: Region, tensor: tf.Tensor) -> list[Number]:
    """The sizes of a tensor's rows without the tensor.

    Raises:
      Untiled: Nothing outside has them.
    """
    sizes, rows = region.known.of(tensor), region.rows[tensor.ref()]
    own = [sizes[place] for place in rows.dimensions]
    if own.count(None) == 0:
        return own  # type: ignore[return-value]
    if rows.cut is not None:
        whole = row_sizes(region, _whole_of(region, rows.cut))
        if len(whole) == len(own):
            whole[rows.cut.number] -= rows.cut.before + rows.cut.after
            return whole
    for source, place in sources(region):
        if place.cut != rows.cut:
            continue
        there = [region.known.of(source)[number] for number in place.dimensions]
        if len(there) == len(own) and all(a is None or b is None or a == b for a, b in zip(there, own)):
            dynamic = tf.shape(source)
            return [dynamic[at] if size is None else size for at, size in zip(place.dimensions, own)]
    raise Untiled(f"the shape of {tensor.op.name} is known only when it runs")


def sources(region: Region) -> list[tuple[tf.Tensor, Rows]]:
    """Tensors outside that have rows and do not come of shapes inside, in every shape in which they are there.

    A factor of the product comes first: of another, a size that only a run says may be one value for all rows.
    """
    factors = {factor.ref() for factor in region.product.inputs}
    found: list[tuple[tf.Tensor, Rows]] = []
    for source in sorted(_apart_from_shapes(region), key=lambda tensor: tensor.ref() not in factors):
        tensor: tf.Tensor = source
        rows: Rows | None = region.rows[source.ref()]
        while rows is not None and not rows.repeats:
            found.append((tensor, rows))
            op = base_of(tensor).op
            if not about(op.type).is_view or op.inputs[0].shape.rank is None:
                break
            before = op.inputs[0]
            rows = viewed(rows, region.known.of(tensor), region.known.of(before))
            tensor = before
    return found


def _apart_from_shapes(region: Region) -> Iterator[tf.Tensor]:
    """What is read by rows and is not made of the shape of something inside."""
    shapes = {op.name for op in region.shapes}
    return (t for t in region.inputs if shapes.isdisjoint(ancestors([t.op], without=region.inside)))


def source_of_samples(region: Region) -> tuple[tf.Tensor, int] | None:
    """An input and its dimension, not of rows, that has the size of the batch; None where the graph says all sizes.

    Raises:
      Untiled: Only what is inside has it.
    """
    tensors = (reference.deref() for reference in region.rows)
    if not any(None in region.rows[t.ref()].others(region.known.of(t)) for t in tensors):
        return None
    for tensor in _apart_from_shapes(region):
        rows = region.rows[tensor.ref()]
        for place, size in enumerate(region.known.of(tensor)):
            if size is None and place not in rows.dimensions:
                return tensor, place
    raise Untiled("the size of the batch is known only when it runs")
