"""What loops keep in lists, turn by turn: streams in the place of tensors, on the executor of a CPU.

A stream is made in the turn that makes the tensor, and decoded in the turn of the gradient that reads it: no more than
a turn is ever there whole. Each has the scale of its own values, since a turn has no state of the step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tf_comptrain import _keras
from tf_comptrain.codecs import SUPPORTED_DTYPES, Codec, ErrorBound, State, scales_rows
from tf_comptrain.graph.cofactors import with_exact_reads
from tf_comptrain.graph.control_flow import sample_bytes_of
from tf_comptrain.graph.gradient_operations import GradientOperations
from tf_comptrain.graph.held.streams_of_step import StreamsOfStep
from tf_comptrain.graph.ingredients import Ingredients, exact_inputs
from tf_comptrain.graph.operations import (
    CONVOLUTION,
    EXACT,
    LINEAR,
    NO_ERROR,
    NONLINEAR,
    SHAPE,
    SIGN,
    SIZE,
    UNKNOWN,
    about,
)
from tf_comptrain.graph.tensors import base_of, element_count
from tf_comptrain.storage import Holding

_LARGE = 1 << 14  # elements
_LOOPS = ("While", "StatelessWhile")
_POPS = "TensorListPopBack"


class HeldList(NamedTuple):
    """A list that holds streams.

    Attributes:
      tensor: The list.
      element: What a turn makes, in the graph of a turn.
      readers: Types of the operations that read what is restored.
      bits: Of a value, predicted.
      sample_bytes: Of the tensors, for a sample and all turns; None where the graph does not say it.
    """

    tensor: tf.Tensor
    element: tf.Tensor
    readers: tuple[str, ...]
    bits: float
    sample_bytes: int | None


class _PoppedRead(NamedTuple):
    """What the gradient of a turn does with a tensor from a list.

    Attributes:
      needs: What it needs of it.
      readers: Types of the operations of the gradient.
      known: Names of the operations that read the tensor itself and that the needs answer for.
    """

    needs: set[str]
    readers: set[str]
    known: set[str]


def hold_lists(backward: _keras.BackwardPass, streams: StreamsOfStep) -> tuple[HeldList, ...]:
    """Has the loops of a step keep streams, as far as what reads them bears an error.

    Args:
      backward: The pass.
      streams: Says how what an operation makes is held.
    """
    if not streams.may_hold_lists:
        return ()
    found: list[HeldList] = []
    changed: dict[str, tf.Operation] = {}
    for loop in backward.operations():
        if loop.type not in _LOOPS or _keras.loop_body(loop) is None:
            continue
        turn = _turn(loop)
        gate = next((begins for begins in turn.seeds if begins.dtype in SUPPORTED_DTYPES), None)
        readings = {} if gate is None else _readings(turn)
        for each in _keras.loop_lists(loop):
            reading = readings.get(each.popped.ref())
            if reading is None:
                continue
            holding = _holding(each, reading, streams)
            if holding is None or holding.codec is None or holding.bound is None:
                continue
            found.append(_described(each, reading, holding.codec, holding.bound))
            _hold(each, gate, holding.codec, holding.bound)
            changed |= {op.name: op for op in (each.filled.op, loop)}
    _keras.register_bodies(changed.values())
    return tuple(found)


def _holding(each: _keras.LoopList, reading: _PoppedRead, streams: StreamsOfStep) -> Holding | None:
    element = base_of(each.element)
    if not _is_large(element) or reading.needs & {SIGN, *NO_ERROR}:
        return None
    if not Ingredients().has_activations(element):  # of weights alone, in whatever type and parts
        return None
    needs = reading.needs - {SIZE}
    readers = (op for op in each.popped.consumers() if about(op.type).kind != SHAPE)
    if not needs or not reading.known.issuperset(op.name for op in readers):
        return None
    kind = next((kind for kind in (NONLINEAR, LINEAR) if kind in needs), CONVOLUTION)
    if about(element.op.type).saturates:  # of a function that saturates its derivative is made
        kind = NONLINEAR
    return streams.of_turns(each.filled.op, kind)


def _is_large(element: tf.Tensor) -> bool:
    """Whether a turn makes so much that an encoder and a decoder in each turn take little time beside it."""
    may_be_held = element.dtype in SUPPORTED_DTYPES and (element.shape.rank or 0) > 1
    return may_be_held and element_count(element) >= _LARGE


def _readings(turn: _keras.BackwardPass) -> dict[Any, _PoppedRead]:
    """By reference of a tensor from a list: what the gradient of a turn does with it."""
    gradients = GradientOperations(turn)
    found: dict[Any, _PoppedRead] = {}
    reads = [(read.op, read.tensor, read.need) for read in with_exact_reads(gradients)]
    for op, tensor, need in (*reads, *((op, tensor, UNKNOWN) for op, tensor in gradients.factors)):
        for popped, of_popped, reader in _popped(op, tensor, need):
            reading = found.setdefault(popped.ref(), _PoppedRead(set(), set(), set()))
            if of_popped == LINEAR and not (about(op.type).is_product and gradients.ends(op)):
                of_popped = NONLINEAR  # an error goes on from turn to turn
            reading.needs.add(of_popped)
            reading.readers.add(op.type)
            reading.known.add(reader)
    return found


def _turn(loop: tf.Operation) -> _keras.BackwardPass:
    """A turn of a gradient's loop as a backward pass: its gradients are the variables that a turn changes."""
    body = _keras.loop_body(loop)
    changing = [
        (begins, ends)
        for begins, ends in _keras.body_inputs(loop)
        if begins is not ends
        and ends.op.type != _POPS
        and (begins.dtype.is_floating or begins.dtype == tf.variant)
    ]
    seeds, gradients = tuple(zip(*changing)) if changing else ((), ())
    return _keras.BackwardPass(
        body, 0, len(body.get_operations()), seeds, (), gradients, recorded=False, xla=False
    )


def _popped(op: tf.Operation, tensor: tf.Tensor, need: str) -> list[tuple[tf.Tensor, str, str]]:
    """The tensors from lists that a tensor is made of: each with what is needed of it, and who reads it, by name.

    Args:
      op: What reads the tensor.
      tensor: The tensor.
      need: What is needed of it.
    """
    found, waiting, seen = [], [(op, tensor, need)], set()
    while waiting:
        reader, current, need = waiting.pop()
        row = about(current.op.type)
        if current.op.type == _POPS:
            found.append((current, need, reader.name))
        if row.kind == SHAPE or current.op.type == _POPS or (reader.name, current.ref(), need) in seen:
            continue
        seen.add((reader.name, current.ref(), need))
        for number, operand in enumerate(current.op.inputs):
            is_exact = number in exact_inputs(current.op)
            waiting.append((current.op, operand, EXACT if is_exact else _passed_on(row.again, need)))
    return found


def _passed_on(again: str, need: str) -> str:
    """What is needed of the operand of an operation that runs again."""
    if again == LINEAR or need in (SIZE, *NO_ERROR):
        return need
    return NONLINEAR if again else UNKNOWN


def _described(each: _keras.LoopList, reading: _PoppedRead, codec: Codec, bound: ErrorBound) -> HeldList:
    bits = min(codec.predicted_bits(bound.value), 8.0 * each.element.dtype.size)
    readers = tuple(sorted(reading.readers))
    return HeldList(each.filled, each.element, readers, bits, sample_bytes_of(each.filled))


def _hold(each: _keras.LoopList, gate: tf.Tensor, codec: Codec, bound: ErrorBound) -> None:
    def encode(tensor: tf.Tensor) -> tf.Tensor:
        state = tf.zeros([len(State._fields)])
        row_scales = scales_rows(tensor, codec, bound)
        return codec.compress(tensor, state, bound.value, False, bound.reference, row_scales)[1]

    def decode(stream: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
        return codec.decompress(stream, shape, each.element.dtype, gate)

    _keras.hold_list(each, encode, decode)
