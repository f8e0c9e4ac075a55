"""What the backward pass needs of what crosses: values, signs, sizes, positions in windows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_comptrain.graph.cofactors import with_exact_reads
from tf_comptrain.graph.control_flow import Lists, lists_read
from tf_comptrain.graph.gradient_operations import GradientRead
from tf_comptrain.graph.held.streams_of_step import StreamsOfStep
from tf_comptrain.graph.kernels import NORMALIZATION_GRADIENT, statistics_of
from tf_comptrain.graph.operations import SIGN, SIZE, WINDOW, about
from tf_comptrain.graph.passes.step import TracedStep
from tf_comptrain.graph.pooling import pooling_of
from tf_comptrain.graph.tensors import base_of

_VALUE = "value"


class Factor(NamedTuple):
    """What an operation reads that takes no incoming gradient, of a kind that is not known to bear an error.

    Attributes:
      op: The operation.
      tensor: What it reads of the forward pass.
    """

    op: tf.Operation
    tensor: tf.Tensor


class Needs(NamedTuple):
    """What a backward pass reads of the forward pass, by what it needs of it.

    Attributes:
      values: Reads of values.
      signs: Reads that ask whether values lie within limits.
      sizes: Reads of shapes.
      poolings: Gradients of max poolings that positions stand in for.
      factors: What is held as it is in any case.
      lists: What loops keep in lists.
      masked: By reference: tensors whose zeros answer what a ReLU's gradient asks.
      whole: What normalizations read as a stream: it is held itself.
    """

    values: tuple[GradientRead, ...]
    signs: tuple[GradientRead, ...]
    sizes: tuple[GradientRead, ...]
    poolings: tuple[tf.Operation, ...]
    factors: tuple[Factor, ...]
    lists: tuple[Lists, ...]
    masked: frozenset
    whole: tuple[tf.Tensor, ...]


def needs_of(step: TracedStep, streams: StreamsOfStep, held_lists: Collection[Any] = ()) -> Needs:
    """Sorts what the gradient operations of a step read.

    Args:
      step: The step.
      streams: Says which tensors may come back with an error.
      held_lists: By reference: lists that hold streams.
    """
    reads, whole = step.gradients.reads, ()
    if not streams.is_lossless:
        found = zip(reads, with_exact_reads(step.gradients))
        reads = [read if step.is_made_again_exactly(read.op) else exact for read, exact in found]
        whole = tuple(base_of(read.tensor) for read in reads if may_read_stream(step, read))
    poolings = {read.op.name: read.op for read in reads if _may_read_positions(step, streams, read)}
    of_need: dict[str, list[GradientRead]] = {}
    for read in reads:
        is_value = read.need not in (SIGN, SIZE)
        if not is_value or read.op.name not in poolings:
            of_need.setdefault(_VALUE if is_value else read.need, []).append(read)
    values, signs, sizes = (tuple(of_need.get(need, ())) for need in (_VALUE, SIGN, SIZE))
    factors = (Factor(op, base_of(tensor)) for op, tensor in step.gradients.factors)
    return Needs(
        values,
        signs,
        sizes,
        tuple(poolings.values()),
        tuple(factor for factor in factors if not step.is_late(factor.tensor.op)),
        tuple(lists_read(reads, step.is_late, held_lists)),
        _masked(step, signs),
        whole,
    )


def may_read_stream(step: TracedStep, read: GradientRead) -> bool:
    """Whether an operation is the gradient of a batch normalization, by its input, where we have one of streams."""
    is_input = read.op.type == NORMALIZATION_GRADIENT and read.number == 1
    return is_input and not step.backward.recorded and statistics_of(read.op) is not None


def _may_read_positions(step: TracedStep, streams: StreamsOfStep, read: GradientRead) -> bool:
    """Whether an operation is the gradient of a max pooling that may have its positions instead."""
    if read.need != WINDOW or step.backward.recorded:
        return False
    pooling = pooling_of(read.op, step.backward.xla)
    if pooling is None or step.is_late(pooling):
        return False
    if streams.is_exact(pooling.outputs[0]) and _windows_overlap(pooling):
        return False
    return not any(map(streams.why_plain, (pooling.inputs[0], pooling.outputs[0])))


def _answers_relu(read: GradientRead) -> bool:
    """Whether "is it zero", which a stream says of a tensor, is what a gradient operation asks of it.

    Relatives of a ReLU have other limits or slopes, and of a tensor with negative values x != 0 is not x > 0.
    """
    made_by = about(base_of(read.tensor).op.type)
    return read.op.type == "ReluGrad" and made_by.limits is not None and made_by.least == 0


def _masked(step: TracedStep, signs: Sequence[GradientRead]) -> frozenset:
    """Of a pass that another tape records the ReLUs' gradients stay."""
    if step.backward.recorded:
        return frozenset()
    return frozenset(base_of(read.tensor).ref() for read in signs if _answers_relu(read))


def _windows_overlap(pooling: tf.Operation) -> bool:
    """Whether gradients are summed, which TensorFlow does in another order."""
    size, strides = (pooling.get_attr(name) for name in ("ksize", "strides"))
    return any(stride < extent for stride, extent in zip(strides, size))
