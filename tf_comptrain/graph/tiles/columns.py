"""Keys that no query of a tile sees, which the tile leaves out: nearly half of all where a mask is causal.

What a softmax makes of them is exactly zero, and so is all that a region makes of that. This is followed
through the region; which keys are seen is read from the masks while it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tf_comptrain.graph.ingredients import constant_of
from tf_comptrain.graph.operations import BLANK, MATRIX_PRODUCT, SUMMATION, about
from tf_comptrain.graph.order import ancestors, in_order
from tf_comptrain.graph.tensors import base_of
from tf_comptrain.graph.tiles.fits import DRAWN, DROPOUT, Fit, fit, fit_result
from tf_comptrain.graph.tiles.letters import letters_of
from tf_comptrain.graph.tiles.region import Region
from tf_comptrain.graph.tiles.rows import Rows

# Scores of this and below are of keys that are not seen: beside any other its exponential is zero.
_HIDDEN = -1e4
# What is added to scores and hides them, however large they are.
ADDED = -1e8

# At a key that is not seen: exactly zero, or a score that a softmax makes zero.
ZERO, HIDDEN = "zero", "hidden"
_KEEPS_ZERO = ("Neg", "RealDiv")


class Columns(NamedTuple):
    """What a region has fewer keys of.

    Attributes:
      made: By reference of a tensor made of seen keys alone: the dimension that these have.
      read: By reference of one that is read at these: the same.
      operations: Names of the operations that read them.
      masks: Tensors that say which keys are seen, in `read`.
      before: Names of operations that masks are made by.
      keys: How many there are.
    """

    made: Mapping[Any, int]
    read: Mapping[Any, int]
    operations: frozenset[str]
    masks: tuple[tf.Tensor, ...]
    before: frozenset[str]
    keys: int


class _Unknown(Exception):
    """It is not known that what is left out is zero."""


def columns_of(region: Region, by_tile: bool = False) -> Columns | None:
    """Keys that tiles of a region may leave out; None where it has none, or where that may change a result.

    Args:
      region: The region.
      by_tile: Only where a mask says for each query which keys it sees.
    """
    found = _keys(region)
    if found is None or any(op.type in (DRAWN, DROPOUT) for op in region.inside.values()):
        return None
    place, count = found
    search = _Search(region)
    try:
        search.cut(region.product.outputs[0], place)
        search.check()
    except _Unknown:
        return None
    masks = [mask for mask in search.masks if mask.ref() in search.read]
    if not masks or by_tile and not any(mask.ref() in region.rows for mask in masks):
        return None
    places = {(mask.shape.rank, search.read[mask.ref()]) for mask in masks}
    if len(places) > 1:
        return None  # which keys a query sees is not known by all of them together
    before = ancestors([tensor.op for tensor in masks]) & region.inside.keys()
    if not before.isdisjoint(search.operations):
        return None
    names = frozenset(search.operations)
    return Columns(search.made, search.read, names, tuple(masks), frozenset(before), count)


def _keys(region: Region) -> tuple[int, int] | None:
    """The dimension of keys in what the product makes, and their number; None where tiles are not of queries."""
    terms, rows = letters_of(region.product), region.rows[region.product.outputs[0].ref()].dimensions
    if terms is None or len(rows) != 1:
        return None
    *factors, made = terms
    queries = made[rows[0]]
    if queries in factors[0] and queries in factors[1]:
        return None
    own, other = factors if queries in factors[0] else factors[::-1]
    alone = [n for n, letter in enumerate(made) if letter in other and letter not in own]
    sizes = region.known.of(region.product.outputs[0])
    counts = [(sizes[n], n) for n in alone]
    if not counts or any(size is None for size, _ in counts):
        return None
    count, place = max(counts)  # type: ignore[type-var]
    return place, count  # type: ignore[return-value]


class _Search:
    """Follows the dimension of keys through a region.

    Attributes:
      made: As `Columns` has it.
      read: The same.
      operations: By name.
      masks: Operands of choices and sums that may hide keys.
    """

    def __init__(self, region: Region):
        self.made: dict[Any, int] = {}
        self.read: dict[Any, int] = {}
        self.operations: dict[str, tf.Operation] = {}
        self._region = region
        masks = (mask for op in region.inside.values() if (mask := _mask_of(op)) is not None)
        self._whole = {mask.ref(): mask for mask in masks}
        self.masks = list(self._whole.values())

    def cut(self, tensor: tf.Tensor, place: int) -> None:
        """Has a tensor made, or read, at the keys that are seen; and all that follows from that."""
        waiting = [(tensor, place)]
        while waiting:
            tensor, place = waiting.pop()
            known = self.made.get(tensor.ref(), self.read.get(tensor.ref()))
            if known is None:
                waiting += self._note(tensor, place)
            elif known != place:
                raise _Unknown

    def _note(self, tensor: tf.Tensor, place: int) -> list[tuple[tf.Tensor, int]]:
        op, inside = tensor.op, self._region.inside
        found = None
        if op.name in inside and tensor.ref() not in self._whole:
            found = self._operands(tensor, place)
        if found is None:
            self.read[tensor.ref()] = place
            return []
        self.made[tensor.ref()] = place
        self.operations[op.name] = op
        readers = (reader for reader in tensor.consumers() if reader.name in inside)
        return found + [more for reader in readers for more in self._follow(reader)]

    def _operands(self, tensor: tf.Tensor, place: int) -> list[tuple[tf.Tensor, int]] | None:
        """What is read at keys so that a tensor has them; None where it has to be whole."""
        op = tensor.op
        if _is_along_last(op, place):
            return [(op.inputs[0], place)]
        if op.type == "OneHot":
            return None
        if about(op.type).kind == BLANK and op.type != "Fill":
            return [(op.inputs[0], place)]
        found = fit_result(tensor, Rows((place,)), self._region.known)
        return None if found is None else _places(op, found)

    def _follow(self, op: tf.Operation) -> list[tuple[tf.Tensor, int]]:
        """What follows for an operation that reads something with keys."""
        self.operations[op.name] = op
        known = self._region.known
        rows = {
            n: Rows((place,))
            for n, t in enumerate(op.inputs)
            if (place := self.made.get(t.ref())) is not None
        }
        if 0 in rows and _is_along_last(op, rows[0].last):
            return [(op.outputs[0], rows[0].last)]
        if op.type == "Max" and rows[0].last in {
            a % op.inputs[0].shape.rank for a in known.axes(op.inputs[1]) or ()
        }:
            return []
        found = fit(op, rows, known)
        if found is None or len(op.outputs) != 1:
            raise _Unknown
        made = found.outputs[0]
        return _places(op, found) + ([] if made is None else [(op.outputs[0], made.last)])

    def check(self) -> None:
        """Looks whether all that leaves the region is zero at keys that are not seen, or has none.

        Raises:
          _Unknown: It may not be.
        """
        states: dict[Any, str] = {}
        for op in in_order(self.operations.values()):
            state = _state(op, self.made, self.read, states)
            if op.outputs[0].ref() in self.made and state:
                states[op.outputs[0].ref()] = state
        if any(tensor.ref() in self.made for tensor in self._region.outputs):
            raise _Unknown
        for tensor in self._region.sums:
            if tensor.ref() in self.made and states.get(tensor.ref()) != ZERO:
                raise _Unknown


def _places(op: tf.Operation, found: Fit) -> list[tuple[tf.Tensor, int]]:
    if any(len(rows.dimensions) > 1 for rows in found.inputs.values()):
        raise _Unknown  # keys are several dimensions
    return [(op.inputs[n], rows.last) for n, rows in found.inputs.items()]


def _is_along_last(op: tf.Operation, place: int) -> bool:
    """Whether an operation is a softmax over keys."""
    return op.type == "Softmax" and place == op.inputs[0].shape.rank - 1


def _mask_of(op: tf.Operation) -> tf.Tensor | None:
    """The operand by which an operation may hide keys; None where it does not."""
    if op.type in ("Select", "SelectV2") and _value(op.inputs[2]) is not None:
        mask = op.inputs[0]
        while mask.op.type == "LogicalAnd":  # with what is true of all, to have its shape
            there = [t for t in mask.op.inputs if not (about(t.op.type).kind == BLANK and _value(t) == 1)]
            if len(there) != 1:
                break
            (mask,) = there
        return mask
    if op.type == "AddV2":
        return next(
            (base for t in op.inputs if (base := base_of(t)).op.type == "Mul" and _is_bias(base)), None
        )
    return None


def _is_bias(tensor: tf.Tensor) -> bool:
    """Whether a tensor is something times a number that hides what it is added to."""
    factors = [_value(operand) for operand in tensor.op.inputs]
    return any(value is not None and value <= ADDED for value in factors)


def _value(tensor: tf.Tensor) -> float | None:
    """The value of all elements of a tensor; None where it is not known."""
    tensor = base_of(tensor)
    if tensor.op.type in ("BroadcastTo", "Fill"):
        tensor = tensor.op.inputs[int(tensor.op.type == "Fill")]
    return 0.0 if tensor.op.type == "ZerosLike" else constant_of(tensor)


def _state(op: tf.Operation, made: Mapping, read: Mapping, states: Mapping[Any, str]) -> str | None:
    """What the result of an operation is at keys that are not seen.

    Raises:
      _Unknown: It has no keys, and is made of something at all of them.
    """
    own = [states.get(tensor.ref()) for tensor in op.inputs]
    if op.outputs[0].ref() not in made:
        zero, hidden = ZERO in own, own[0] == HIDDEN
        sums = op.type == "Sum" or about(op.type).kind == MATRIX_PRODUCT
        if not (zero and sums or hidden and op.type == "Max"):
            raise _Unknown
        return None
    row = about(op.type)
    if row.kind == MATRIX_PRODUCT:
        return ZERO if ZERO in own else None
    if row.kind == SUMMATION or row.is_move or row.is_alias or op.type == "Cast":
        return own[0]
    if _is_along_last(op, made[op.outputs[0].ref()]):
        if own[0] != HIDDEN:
            raise _Unknown
        return ZERO
    return _elementwise_state(op, read, own)


def _elementwise_state(op: tf.Operation, read: Mapping, own: list[str | None]) -> str | None:
    mask, kind = _mask_of(op), op.type
    if mask is not None and mask.ref() in read:
        if kind == "AddV2":
            return HIDDEN
        value: Any = _value(op.inputs[2])
        return ZERO if value == 0 else HIDDEN if value <= _HIDDEN else None
    if kind == "Exp":
        return ZERO if own[0] == HIDDEN else None
    if kind in ("AddV2", "Sub"):
        if HIDDEN in own:
            return HIDDEN if kind == "AddV2" or own[0] == HIDDEN else None
        return ZERO if own == [ZERO, ZERO] else None
    if kind == "Mul":
        return ZERO if ZERO in own else None
    return ZERO if kind in _KEEPS_ZERO and own[0] == ZERO else None
