"""A region of a traced step as a loop over tiles of its rows, in the place of its operations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_comptrain import _keras, native
from tf_comptrain.graph.ingredients import constant_of
from tf_comptrain.graph.operations import REPEAT, VIEW, about
from tf_comptrain.graph.order import ancestors, in_order
from tf_comptrain.graph.replacements import redirect
from tf_comptrain.graph.tensors import readers_of
from tf_comptrain.graph.tiles.columns import columns_of
from tf_comptrain.graph.tiles.cuts import RowCut, slices_rows, whole_and_part
from tf_comptrain.graph.tiles.fits import DRAWN, DROPOUT
from tf_comptrain.graph.tiles.letters import swapped_product
from tf_comptrain.graph.tiles.limits import TileSizes
from tf_comptrain.graph.tiles.picks import SLICE
from tf_comptrain.graph.tiles.region import Region
from tf_comptrain.graph.tiles.seen import EVERY_KEY, SeenColumns, seen_by_tile, sizes_of_tiles
from tf_comptrain.graph.tiles.sums import Sum, sum_of
from tf_comptrain.graph.tiles.tiling import (
    Number,
    Tiling,
    are_there,
    filled,
    from_tiles,
    row_sizes,
    source_of_samples,
    sources,
    tiles_of,
    tiling_of,
)
from tf_comptrain.graph.tiles.untiled import Untiled

TILES_SCOPE = "comptrain_tiles"  # what the operations of loops stand in, with the name of the wide product

_MOST_CONSTANTS = 16  # in one that a loop has for itself


def run_by_tiles(
    region: Region,
    xla: bool,
    tile_sizes: TileSizes,
    note_body: Callable[[Mapping[Any, tf.Tensor]], None],
) -> None:
    """Puts a loop in the place of a region: what read its results reads those of the loop.

    Args:
      region: Of a graph that is being traced, whose passes are all there.
      xla: XLA compiles the graph.
      tile_sizes: How large tiles are.
      note_body: Is called in the graph of the loop's body with its tiles, by reference of what they are of.

    Raises:
      Untiled: Why it stays as it is.
    """
    if not (region.outputs or region.sums):
        return  # nothing reads what it makes
    scope = f"{TILES_SCOPE}/{region.product.name}/"
    with _keras.stop_recording(), tf.device(region.product.device), tf.name_scope(scope):
        sizes_of_rows = {op.name: row_sizes(region, op.inputs[0]) for op in region.shapes}
        found = next((source for source in sources(region) if source[1].cut is None), None)
        if found is None:
            raise Untiled("the number of rows is known only when they are there")
        tiling = tiling_of(region, *found, tile_sizes)
        inputs = {tensor.ref(): tiles_of(region, tensor, tiling) for tensor in region.inputs}
        parts = [sum_of(tensor, region.known, tile_sizes.part_bytes) for tensor in region.sums]
        outputs, sums = _loop(region, inputs, tiling, parts, xla, note_body)
        row_values = [from_tiles(region, *each, tiling) for each in zip(region.outputs, outputs)]
        for op in region.shapes:
            _say_shape(region, op, sizes_of_rows[op.name], tiling.samples)
    last = sums[0].op if sums else row_values[0].op
    for old, new in zip((*region.outputs, *region.sums), (*row_values, *sums)):
        new.set_shape(old.shape)
        outside = [(op, index) for op, index in readers_of(old) if op.name not in region.inside]
        redirect(outside, new)
    read = (tensor.op for op in region.inside.values() for tensor in op.inputs)
    before = ancestors(read, without=region.inside)
    for op in region.inside.values():
        _keras.wait_instead(op, last, free=before)


def _loop(
    region: Region,
    inputs: Mapping[Any, Callable[[tf.Tensor], tf.Tensor]],
    tiling: Tiling,
    sums: Sequence[Sum],
    xla: bool,
    note_body: Callable[[Mapping[Any, tf.Tensor]], None],
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Runs the tiles; results for each row by tile, and sums.

    Args:
      region: The region.
      inputs: By reference of what is read by rows: what has a tile of it.
      tiling: How many there are.
      sums: How those of all rows are added up.
      xla: XLA compiles the graph.
      note_body: As `run_by_tiles` has it.
    """
    ops = tf.raw_ops
    shapes = [_tile_shape(region, tensor, tiling) for tensor in region.outputs]
    zero = _late_zero(region) if xla else tf.zeros([])
    lists = [
        _list_of(tiling.tiles, shape, tensor.dtype, zero, xla)
        for tensor, shape in zip(region.outputs, shapes)
    ]
    body = _Body(region, sums, xla)
    there_in = are_there(region, tiling)

    def run(number: tf.Tensor, lists: list[tf.Tensor], totals: list[list[tf.Tensor]]) -> tuple:
        tiles = {reference: tile_of(number) for reference, tile_of in inputs.items()}
        note_body(tiles)
        there = {cut: tf.gather(some, number) for cut, some in there_in.items()}
        rows, added = body.run(tiles, number, there)
        totals = [each.with_parts(total, made) for each, total, made in zip(sums, totals, added)]
        lists = [
            ops.TensorListSetItem(input_handle=handle, index=number, item=item)
            for handle, item in zip(lists, rows)
        ]
        return number + 1, lists, totals

    start = (0, lists, [each.zeros(tiling.samples, zero) for each in sums])
    _, lists, parts = tf.while_loop(
        lambda number, *_: number < tiling.tiles, run, start, parallel_iterations=1
    )
    outputs = [
        ops.TensorListStack(input_handle=handle, element_shape=shape, element_dtype=tensor.dtype)
        for handle, tensor, shape in zip(lists, region.outputs, shapes)
    ]
    return outputs, [each.joined(some) for each, some in zip(sums, parts)]


def _late_zero(region: Region) -> tf.Tensor:
    """What loops begin with, once what they read is there; XLA would make that of all loops before the first runs."""
    return native.ops().comptrain_fence([tf.zeros([]), *(t for t in region.inputs if t.dtype.is_floating)])[0]


def _list_of(tiles: Number, shape: tf.Tensor, dtype: tf.DType, zero: tf.Tensor, xla: bool) -> tf.Tensor:
    """A list with room for what each tile makes."""
    if not xla:
        return tf.raw_ops.TensorListReserve(element_shape=shape, num_elements=tiles, element_dtype=dtype)
    whole = tf.fill(tf.concat([[tiles], shape], 0), tf.cast(zero, dtype))
    return tf.raw_ops.TensorListFromTensor(tensor=whole, element_shape=shape)


class _Body:
    """The operations of a region in the graph of a loop's body, where each tensor has the rows of one tile.

    Args:
      region: The region.
      sums: How those over all rows are added up.
      xla: XLA compiles the graph.
    """

    def __init__(self, region: Region, sums: Sequence[Sum], xla: bool):
        self._region, self._sums, self._xla = region, sums, xla
        self._columns, self._seen = columns_of(region, by_tile=xla), EVERY_KEY
        apart = {each.tensor.op.name for each in sums}
        order = [op for op in in_order(region.inside.values()) if op.name not in apart]
        before = self._columns.before if self._columns else frozenset()
        self._first = [op for op in order if op.name in before]
        self._order = [op for op in order if op.name not in before]

    def run(
        self, tiles: Mapping[Any, tf.Tensor], number: tf.Tensor, there: Mapping[RowCut | None, tf.Tensor]
    ) -> tuple[Sequence[tf.Tensor], Sequence[Iterable[tf.Tensor]]]:
        """Results of one tile for each row, and parts of sums over its rows.

        Args:
          tiles: What is read by rows, with these in the first dimension.
          number: Of the tile.
          there: By what is left out of them: which of its rows are there; all where it does not say so.
        """
        self._number, self._seen, self._there = number, EVERY_KEY, there
        self._measure(tiles)
        made = {reference: self._shaped(reference.deref(), tile) for reference, tile in tiles.items()}
        self._run_all(self._first, made)
        if self._columns is None:
            return self._run_rest(made)
        if not self._xla:
            self._seen = seen_by_tile(self._columns, made)
            return self._run_rest(made)

        def run_with(seen: SeenColumns) -> tuple:
            self._seen = seen
            self._measure(tiles)
            rows, sums = self._run_rest(dict(made))
            return rows, [list(parts) for parts in sums]

        which, sizes = sizes_of_tiles(self._columns, made)
        return tf.switch_case(which, [functools.partial(run_with, seen) for seen in sizes])

    def _measure(self, tiles: Mapping[Any, tf.Tensor]) -> None:
        """Finds sizes in the graph that is being made: XLA sees them here, and not where they come from outside."""
        self._size = tf.shape(next(iter(tiles.values())))[0]
        self._samples = None
        if (found := source_of_samples(self._region)) is not None:
            source, place = found
            before = sum(own < place for own in self._region.rows[source.ref()].dimensions)
            self._samples = tf.shape(tiles[source.ref()])[1 + place - before]

    def _run_rest(self, made: dict[Any, tf.Tensor]) -> tuple[list[tf.Tensor], list[Iterator[tf.Tensor]]]:
        self._run_all(self._order, made)
        rows = [self._flat(tensor, made[tensor.ref()]) for tensor in self._region.outputs]
        return rows, [self._parts(each, made) for each in self._sums]

    def _run_all(self, operations: Iterable[tf.Operation], made: dict[Any, tf.Tensor]) -> None:
        for op in operations:
            for old, new in zip(op.outputs, self._run_op(op, made)):
                if old.ref() in self._region.rows:
                    new.set_shape(self._static_shape_of(old))
                elif self._region.known.rank(old) is not None:
                    new.set_shape(self._seen.sizes(old, self._region.known.of(old), static=True))
                made[old.ref()] = new

    def _parts(self, each: Sum, made: dict[Any, tf.Tensor]) -> Iterator[tf.Tensor]:
        """Parts of a sum over rows, with zeros for the rows that are not there."""
        op = each.tensor.op
        first, *others = (self._operand(op, tensor, made) for tensor in op.inputs)
        first = self._with_zeros(op.inputs[0], first)
        return (self._seen.padded(each.tensor, part) for part in each.parts([first, *others]))

    def _with_zeros(self, tensor: tf.Tensor, tile: tf.Tensor) -> tf.Tensor:
        """A tile of a tensor with zeros for the rows that are not there."""
        rows = self._region.rows[tensor.ref()]
        there = self._there.get(rows.cut)
        if there is None:
            return tile
        rank = len(self._region.known.of(tensor))
        column = tf.reshape(there, [-1 if place == rows.last else 1 for place in range(rank)])
        return _where(column, tile, self._xla)

    def _run_op(self, op: tf.Operation, made: Mapping[Any, tf.Tensor]) -> Sequence[tf.Tensor]:
        result = op.outputs[0]
        operands = [self._operand(op, tensor, made) for tensor in op.inputs]
        if about(op.type).kind == VIEW:
            return [tf.reshape(operands[0], self._shape_of(result, self._size))]
        if about(op.type).kind == REPEAT:
            return [tf.broadcast_to(operands[0], self._shape_of(result, self._size))]
        if slices_rows(op) and self._cuts(op):
            whole = operands[0] if op.type == SLICE else self._with_zeros(op.inputs[-1], operands[-1])
            return [whole]
        if op.type == "Fill":
            return [tf.fill(self._shape_of(result, self._size), operands[1])]
        if op.type == DROPOUT:
            operands[2] = self._counter(operands[2], tf.size(operands[0], tf.int64))
        if op.type == DRAWN:
            operands[0] = tf.stack(self._shape_of(result, self._size))
            operands[2] = self._counter(operands[2], tf.reduce_prod(tf.cast(operands[0], tf.int64)))
        if self._xla and len(operands) == 2 and (swapped := swapped_product(op, *operands)) is not None:
            return [swapped]
        return _keras.run_again(op, operands, "tile", shaped=False)

    def _cuts(self, op: tf.Operation) -> bool:
        """Whether a slice leaves out rows, or its gradient has more than that reads."""
        rows = self._region.rows
        whole, part = whole_and_part(op)
        return rows[part.ref()].cut != rows[whole.ref()].cut

    def _operand(self, op: tf.Operation, tensor: tf.Tensor, made: Mapping[Any, tf.Tensor]) -> tf.Tensor:
        """What an operation reads: of a tile, or the same for all."""
        operand = made[tensor.ref()] if tensor.ref() in made else self._from_outside(tensor)
        return self._seen.read(op, tensor, operand)

    @staticmethod
    def _from_outside(tensor: tf.Tensor) -> tf.Tensor:
        """What is the same for all tiles; a constant as one of the loop's own, for TensorFlow's optimizer."""
        is_number = tensor.shape.rank == 0 and tensor.dtype.is_floating
        value: Any = constant_of(tensor) if is_number else None
        if value is None and tensor.op.type == "Const" and tensor.shape.num_elements() <= _MOST_CONSTANTS:
            value = tf.get_static_value(tensor)
        return tensor if value is None else tf.constant(value, tensor.dtype)

    def _counter(self, counter: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
        """Where in random numbers those of a tile begin, of so many each: a count is four of them."""
        before = tf.cast(self._number, tf.int64) * size
        low, high = tf.unstack(counter)
        sum_ = low + tf.cast(before // 4, tf.uint64)
        return tf.stack([sum_, high + tf.cast(sum_ < low, tf.uint64)])

    def _shaped(self, tensor: tf.Tensor, tile: tf.Tensor) -> tf.Tensor:
        """A tile with as many dimensions as the whole tensor has; of those of rows all but the last have one row."""
        rows, sizes = self._region.rows[tensor.ref()], self._region.known.of(tensor)
        if before := len(rows.before(sizes)):
            others = range(before + 1, tile.shape.rank)
            tile = tf.transpose(tile, [*range(1, before + 1), 0, *others])
        return tile if len(rows.dimensions) == 1 else tf.reshape(tile, self._shape_of(tensor, self._size))

    def _flat(self, tensor: tf.Tensor, tile: tf.Tensor) -> tf.Tensor:
        """The opposite of `_shaped`."""
        sizes, rows = self._region.known.of(tensor), self._region.rows[tensor.ref()]
        before, after = (filled(part, self._samples) for part in (rows.before(sizes), rows.after(sizes)))
        flat = tile if len(rows.dimensions) == 1 else tf.reshape(tile, [*before, self._size, *after])
        if not before:
            return flat
        return tf.transpose(
            flat, [len(before), *range(len(before)), *range(len(before) + 1, flat.shape.rank)]
        )

    def _shape_of(self, tensor: tf.Tensor, size: Any) -> list:
        """Of a tile of a tensor, whose last dimension of rows has that size."""
        return filled(self._static_shape_of(tensor, size, static=False), self._samples)

    def _static_shape_of(self, tensor: tf.Tensor, size: Any = None, static: bool = True) -> list:
        rows = self._region.rows[tensor.ref()]
        sizes = self._seen.sizes(tensor, self._region.known.of(tensor), static)
        return rows.joined(sizes, [*[1] * (len(rows.dimensions) - 1), size])


def _where(there: tf.Tensor, tile: tf.Tensor, xla: bool) -> tf.Tensor:
    """A tile with zeros for rows that are not there; on the executor a copy, where some are not."""

    def masked() -> tf.Tensor:
        return tf.where(there, tile, 0)

    return masked() if xla else tf.cond(tf.reduce_all(there), lambda: tile, masked)


def _tile_shape(region: Region, tensor: tf.Tensor, tiling: Tiling) -> Any:
    others = region.rows[tensor.ref()].others(region.known.of(tensor))
    return tf.stack([tiling.size, *filled(others, tiling.samples)])


def _say_shape(region: Region, op: tf.Operation, row_sizes: list[Number], samples: tf.Tensor | None) -> None:
    """Lets the readers of a shape have it without the tensor."""
    tensor = op.inputs[0]
    sizes, rows = region.known.of(tensor), region.rows[tensor.ref()]
    own = filled(rows.joined(sizes, row_sizes), samples)
    if op.type == "Shape":
        said = tf.cast(tf.stack(own), op.outputs[0].dtype)
    elif op.type == "Size":
        said = tf.cast(tf.reduce_prod(tf.stack(own)), op.outputs[0].dtype)
    else:
        said = tf.constant(len(own))
    redirect([place for place in readers_of(op.outputs[0]) if place[0].name not in region.inside], said)
