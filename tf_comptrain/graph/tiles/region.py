"""What of a traced step runs tile after tile: what is around a wide tensor, to where all is narrow again.

A product makes rows that are several times as long as those it reads, as the logits of a language model,
or matrices several times as large, as the scores of an attention. What is made of them row by row, or
matrix by matrix, is followed, in the forward and the backward pass, to results that are short for each row
(a loss, the gradient of what the product reads, a prediction) or sums over all rows (the gradient of the
weights). Where all of that is found, none of the wide tensors has to exist whole.

Where much stands between a loss and its gradient, as after an attention, forward and backward pass are two
regions. The second begins with what the rewiring has made again for it.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tf_comptrain.graph.operations import MATRIX_PRODUCT, RANDOM, REDUCTION, SUMMATION, VIEW, about
from tf_comptrain.graph.tiles import limits
from tf_comptrain.graph.tiles.fits import DRAWN, DROPOUT, MASKED, Fit, fit, fit_result
from tf_comptrain.graph.tiles.limits import TileSizes
from tf_comptrain.graph.tiles.rows import Rows
from tf_comptrain.graph.tiles.sizes import KnownSizes, Sizes, of_sample
from tf_comptrain.graph.tiles.starts import Start, starts
from tf_comptrain.graph.tiles.untiled import DrawnWhole, InTwoPasses, MuchBetween, Untiled


class Region(NamedTuple):
    """What runs tile after tile.

    Attributes:
      product: The operation that makes it wide.
      inside: Its operations, by name.
      rows: By reference of a tensor that is made inside or read by rows: where its rows are.
      known: What is known of sizes.
      inputs: Tensors that are read by rows.
      outputs: Results for each row that others read.
      sums: Sums over all rows that others read.
      shapes: Operations outside that read the shape of something inside.
    """

    product: tf.Operation
    inside: Mapping[str, tf.Operation]
    rows: Mapping[Any, Rows]
    known: KnownSizes
    inputs: tuple[tf.Tensor, ...]
    outputs: tuple[tf.Tensor, ...]
    sums: tuple[tf.Tensor, ...]
    shapes: tuple[tf.Operation, ...]

    def reads_wide(self, op: tf.Operation) -> bool:
        """Whether an operation inside reads rows as wide as the product's."""
        width = self._width_of(self.product.outputs[0])
        return any(self._width_of(tensor) >= width for tensor in op.inputs if tensor.ref() in self.rows)

    @property
    def row_bytes(self) -> int:
        """Of one row of the largest tensor inside."""
        inside = (reference.deref() for reference in self.rows)
        return max(self._width_of(tensor) * tensor.dtype.size for tensor in inside)

    @property
    def is_of_one_product(self) -> bool:
        """Whether what is wide is read by no other product, as that of a head is."""
        return all(op is self.product or about(op.type).kind != MATRIX_PRODUCT for op in self.inside.values())

    def _width_of(self, tensor: tf.Tensor) -> int:
        return of_sample(self.rows[tensor.ref()].others(self.known.of(tensor)))


class Scope(NamedTuple):
    """Where a region is looked for.

    Attributes:
      early: Names of the operations of the forward pass.
      tile_sizes: How large tiles are.
      unread: Names of operations that nothing comes of: what they read is read by nothing.
    """

    early: frozenset[str]
    tile_sizes: TileSizes
    unread: frozenset[str] = frozenset()


def find_region(
    wide: tf.Operation, known: KnownSizes, scope: Scope, returned: Iterable[tf.Tensor] = ()
) -> Region:
    """What runs by tiles around a product.

    Args:
      wide: The product.
      known: What is known of sizes; more is found.
      scope: Of the step.
      returned: What the function that is traced returns, as far as that is known.

    Raises:
      InTwoPasses: There are two regions, once what the second reads is made again.
      Untiled: Why nothing does.
    """
    reasons = []
    for may_draw_whole in (False, True):
        for start in starts(wide, known, scope.tile_sizes.of(wide.outputs[0].dtype).bytes):
            try:
                growth = _Growth(start, wide, known, scope, may_draw_whole)
                return _region_from(growth, wide, scope, returned)
            except Untiled as reason:
                reasons.append(reason)
        if not any(isinstance(reason, DrawnWhole) for reason in reasons):
            break
    raise reasons[0]


def _region_from(growth: _Growth, wide: tf.Operation, scope: Scope, returned: Iterable[tf.Tensor]) -> Region:
    growth.grow([wide])
    is_early = wide.name in scope.early
    if is_early and growth.is_head():
        before = growth.copied()
        try:
            while between := growth.between():
                growth.absorb(between)
        except Untiled as reason:
            raise before.head_in_two_passes(reason) from None
        growth.take_operands()
    else:
        growth.take_makers()
        is_before_its_gradient = is_early and growth.between()
        growth.take_operands()
        if is_before_its_gradient:
            raise growth.in_two_passes()
        if between := growth.between():
            raise Untiled(f"what is read by rows waits for all rows, at {between[0].name}")
    return growth.region({tensor.ref() for tensor in returned})


class _Growth:
    """Follows rows from a product on.

    Args:
      start: Rows to begin with.
      wide: The product.
      known: What is known of sizes.
      scope: Of the step.
      may_draw_whole: Random numbers that no tile can draw may be drawn whole.
    """

    def __init__(
        self, start: Start, wide: tf.Operation, known: KnownSizes, scope: Scope, may_draw_whole: bool
    ):
        self._may_draw_whole = may_draw_whole
        self._wide, self._known, self._scope = wide, known, scope
        self._inside: dict[str, tf.Operation] = {}
        # Of these: what is made inside because wide operands are read by rows; others may read the original.
        self._operands: set[str] = set()
        self._shapes: dict[str, tf.Operation] = {}
        self._rows = {t.ref(): rows for t, rows in zip(wide.inputs, start.factors) if rows is not None}
        self._width = of_sample(start.made.others(self._known.of(wide.outputs[0])))

    def grow(self, operations: Iterable[tf.Operation]) -> None:
        """Takes operations in, and all that reads something wide of what they make."""
        waiting = list(operations)
        while waiting:
            op = waiting.pop()
            if op.name not in self._inside:
                waiting += self._take(op)

    def between(self) -> list[tf.Operation]:
        """Operations outside on a way from what is made inside to what is read there."""
        before: dict[str, tf.Operation] = {}
        waiting = [t.op for op in self._inside.values() for t in op.inputs if t.op.name not in self._inside]
        while waiting:
            op = waiting.pop()
            if op.name not in before and op.name not in self._inside:
                before[op.name] = op
                waiting += [tensor.op for tensor in op.inputs]
        waiting = [reader for tensor in self._results() for reader in self._readers(tensor)]
        found: dict[str, tf.Operation] = {}
        while waiting:
            op = waiting.pop()
            if op.name in before and op.name not in found and op.name not in self._inside:
                found[op.name] = op
                waiting += [reader for tensor in op.outputs for reader in self._readers(tensor)]
        return list(found.values())

    def absorb(self, operations: list[tf.Operation]) -> None:
        """Takes in what stands between results and reads."""
        if len(operations) > limits.MOST_BETWEEN:
            raise MuchBetween("its gradient comes later")
        for op in operations:
            if self._rows_read(op):
                self.grow([op])
                return
        raise Untiled(f"the gradient of each row waits for all rows, at {operations[0].name}")

    def copied(self) -> _Growth:
        """The same, which goes on by itself."""
        other = copy.copy(self)
        other._inside, other._operands = dict(self._inside), set(self._operands)
        other._shapes, other._rows = dict(self._shapes), dict(self._rows)
        return other

    def in_two_passes(self) -> InTwoPasses:
        """What is to run by tiles in each pass."""
        wide = (name for name, op in self._inside.items() if any(map(self._is_wide, op.outputs)))
        return InTwoPasses(dict(self._inside), frozenset(wide))

    def head_in_two_passes(self, reason: Untiled) -> Exception:
        """Of a head whose loss is not one of rows, for that reason: the two passes, or else the reason."""
        try:
            self.take_operands()
            self.region(())
        except Untiled:
            return reason
        found = self.in_two_passes()
        early = [op for name, op in self._inside.items() if name in self._scope.early]
        read = (
            t for op in early for t in op.inputs if t.ref() in self._rows and t.op.name not in self._inside
        )
        made = (t for op in early for t in op.outputs if not self._is_wide(t))
        exact = [tensor for tensor in (*read, *made) if tensor.dtype.is_floating]
        return InTwoPasses(found.inside, found.wide, exact)

    def is_head(self) -> bool:
        """Whether no other product of the forward pass makes something narrow of it."""
        early = (op for name, op in self._inside.items() if name in self._scope.early)
        return not any(op is not self._wide and about(op.type).kind == MATRIX_PRODUCT for op in early)

    def take_makers(self) -> None:
        """Takes in what makes wide matrices of the backward pass that are read by rows, and all that reads these.

        Its own gradients come of another product, and what the forward pass had is made again there.
        """
        waiting = list(self._inside.values())
        while waiting:
            for tensor in waiting.pop().inputs:
                rows, op = self._rows.get(tensor.ref()), tensor.op
                if rows is None or op.name in self._scope.early or not self._is_made_inside(tensor):
                    continue
                if (found := fit_result(tensor, rows, self._known)) is not None:
                    before = set(self._inside)
                    self._note(op, found)
                    self.grow(reader for made in op.outputs for reader in self._readers(made))
                    waiting += [self._inside[name] for name in self._inside.keys() - before]

    def take_operands(self) -> None:
        """Has wide tensors that are read by rows made inside, where they can be, as labels that are one-hot."""
        waiting = list(self._inside.values())
        while waiting:
            for tensor in waiting.pop().inputs:
                rows, op = self._rows.get(tensor.ref()), tensor.op
                if rows is None or not (self._is_made_inside(tensor) or self._reduces_wide(tensor)):
                    continue
                found = fit_result(tensor, rows, self._known)
                if found is not None:
                    self._operands.add(op.name)
                    self._note(op, found)
                    self._readers(tensor)
                    waiting.append(op)

    def _is_made_inside(self, tensor: tf.Tensor) -> bool:
        """Whether to make a tensor that is read by rows inside: it is wide, and no mask that has to be whole.

        Random numbers and bits that were restored would be whole too, which take more than the mask does.

        Raises:
          DrawnWhole: Where that is not wanted.
        """
        rows, behind = self._rows[tensor.ref()], tensor
        while about(behind.op.type).is_elementwise and behind.op.type not in (MASKED, "Select", "SelectV2"):
            behind = behind.op.inputs[0]
        is_random = about(behind.op.type).kind == RANDOM and behind.op.type != DROPOUT
        if behind.op.type == DRAWN and self._is_wide(tensor):
            is_random = fit_result(behind, rows, self._known) is None
            if is_random and not self._may_draw_whole:
                raise DrawnWhole(f"{behind.op.name} is drawn whole")
        is_mask = is_random or behind.op.type == MASKED and behind.op.inputs[0].op.type != DROPOUT
        return (
            not rows.repeats and tensor.op.name not in self._inside and self._is_wide(tensor) and not is_mask
        )

    def _reduces_wide(self, tensor: tf.Tensor) -> bool:
        """Whether a short tensor that is read by rows is a sum or the like of a wide one, made for it alone."""
        rows, op = self._rows[tensor.ref()], tensor.op
        is_made_again = op.name in self._scope.early and self._wide.name not in self._scope.early
        if rows.repeats or op.name in self._inside or is_made_again:
            return False
        found = (
            fit_result(tensor, rows, self._known) if about(op.type).kind in (SUMMATION, REDUCTION) else None
        )
        if found is None or 0 not in found.inputs:
            return False
        return 2 * of_sample(found.inputs[0].others(self._known.of(op.inputs[0]))) > self._width

    def region(self, returned: Collection[Any]) -> Region:
        read = [t for t in self._results() if self._is_read(t) or t.ref() in returned]
        inputs = {
            tensor.ref(): tensor
            for op in self._inside.values()
            for tensor in op.inputs
            if tensor.op.name not in self._inside and tensor.ref() in self._rows
        }
        outputs = tuple(tensor for tensor in read if tensor.ref() in self._rows)
        for tensor in outputs:
            if self._is_wide(tensor):
                raise Untiled(f"{tensor.op.name} is read whole")
        sums = tuple(tensor for tensor in read if tensor.ref() not in self._rows)
        for tensor in sums:
            if about(tensor.op.type).is_alias:
                raise Untiled(f"{tensor.op.name} passes on what is not of rows")
        for tensor in (*(reference.deref() for reference in self._rows), *sums):
            self._check_sizes(tensor)
        shapes = tuple(op for op in self._shapes.values() if op.name not in self._inside)
        inside, rows, known = self._inside, self._rows, self._known
        return Region(self._wide, inside, rows, known, tuple(inputs.values()), outputs, sums, shapes)

    def _is_read(self, tensor: tf.Tensor) -> bool:
        """Whether something outside reads the values of what is made inside."""
        return any(reader.name not in self._inside for reader in self._readers(tensor))

    def _results(self) -> Iterator[tf.Tensor]:
        for op in self._inside.values():
            if op.name not in self._operands:
                yield from op.outputs

    def _check_sizes(self, tensor: tf.Tensor) -> None:
        """Of all sizes but those of rows only one may be known when it runs: that of the batch."""
        sizes = self._others(tensor)
        if sizes.count(None) > 1 or None in sizes and not self._has_same_samples(tensor):
            raise Untiled(f"a size of {tensor.op.name} is known only when it runs")

    def _has_same_samples(self, tensor: tf.Tensor) -> bool:
        """Whether what is not known of a tensor is the same size in what it is a view of."""
        if about(tensor.op.type).kind != VIEW or tensor.op.name not in self._inside:
            return True
        before = self._others(tensor.op.inputs[0])
        return before.count(None) == 1 and of_sample(before) == of_sample(self._others(tensor))

    def _others(self, tensor: tf.Tensor) -> Sizes:
        sizes, rows = self._known.of(tensor), self._rows.get(tensor.ref())
        return sizes if rows is None else rows.others(sizes)

    def _take(self, op: tf.Operation) -> list[tf.Operation]:
        """Takes an operation in; what has to follow."""
        rows = self._rows_read(op)
        found = fit(op, rows, self._known) if rows else None
        if found is None:
            if op.type.startswith("Comptrain>"):
                raise Untiled("an earlier gradient of the step holds or reads what is made of it")
            raise Untiled(f"a {op.type} makes its rows of more than one row")
        self._note(op, found)
        follow: list[tf.Operation] = []
        for tensor in op.outputs:
            if tensor.ref() in self._rows and self._is_wide(tensor):
                follow += self._readers(tensor)
        return follow

    def _rows_read(self, op: tf.Operation) -> dict[int, Rows]:
        """By number of an input that is there by rows, and not repeated for several: these."""
        found = {n: self._rows[t.ref()] for n, t in enumerate(op.inputs) if t.ref() in self._rows}
        return {n: rows for n, rows in found.items() if not rows.repeats}

    def _note(self, op: tf.Operation, found: Fit) -> None:
        self._inside[op.name] = op
        for number, rows in found.inputs.items():
            self._ask_for(op.inputs[number], rows)
        for number, (tensor, place) in enumerate(zip(op.outputs, found.outputs)):
            if found.sizes and found.sizes[number]:
                self._known.note(tensor, found.sizes[number])
            if place is not None and self._rows.setdefault(tensor.ref(), place) != place:
                raise Untiled(f"{tensor.op.name} is read by other rows than it is made by")

    def _ask_for(self, tensor: tf.Tensor, rows: Rows) -> None:
        """Has a tensor there by rows."""
        if self._rows.setdefault(tensor.ref(), rows) != rows:
            raise Untiled(f"{tensor.op.name} is read by rows in two ways")

    def _readers(self, tensor: tf.Tensor) -> list[tf.Operation]:
        """What reads the values of a tensor; what reads its shape is noted."""
        readers = []
        for op in tensor.consumers():
            if op.name in self._scope.unread:
                continue
            if op.type in ("Rank", "Shape", "Size"):
                self._shapes[op.name] = op
            else:
                readers.append(op)
        return readers

    def _is_wide(self, tensor: tf.Tensor) -> bool:
        rows = self._rows.get(tensor.ref())
        if rows is None:
            return False
        return 2 * of_sample(rows.others(self._known.of(tensor))) > self._width
