"""Gradient operations in whose place others stand, which read bits, positions or streams instead of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_comptrain import _keras, native
from tf_comptrain.graph.crossings import SMALL, Crossings, Streams
from tf_comptrain.graph.gradient_operations import GradientRead
from tf_comptrain.graph.kernels import NORMALIZATION_GRADIENT, inverse_deviation, statistics_of
from tf_comptrain.graph.operations import WINDOW, about
from tf_comptrain.graph.pooling import bits_of, gradient_of_positions, incoming, pooling_of, with_positions
from tf_comptrain.graph.tensors import base_of, is_small, readers_of
from tf_comptrain.storage import BITMASK, KEEP


class Replacements:
    """What stands in for gradient operations of one backward pass.

    Args:
      backward: The pass.
      streams: Where and how tensors are held.
      crossings: Takes the notes of what is held as bits or positions.
      is_of_backward_pass: Whether an operation is.

    Attributes:
      replaced: By name of a gradient that is no longer made: what stands in for it.
      moved: By name of a gradient operation whose product is looked for later: the one in its place.
    """

    def __init__(
        self,
        backward: _keras.BackwardPass,
        streams: Streams,
        crossings: Crossings,
        is_of_backward_pass: Callable[[tf.Operation], bool],
    ):
        self.replaced: dict[str, tf.Tensor] = {}
        self.moved: dict[str, tf.Operation] = {}
        self._backward = backward
        self._streams = streams
        self._crossings = crossings
        self._is_of_backward_pass = is_of_backward_pass
        self._bits: dict[Any, tf.Tensor] = {}

    def mask(self, read: GradientRead, stream: Any) -> None:
        """The gradient of a ReLU or a relative from one bit per element; a ReLU's from the stream of its output."""
        op, base = read.op, base_of(read.tensor)
        note = SMALL if is_small(base) else self._streams.why_plain(base)
        if self._backward.recorded and self._backward.xla:
            note = "a gradient of the gradient is taken"
        has_mask = getattr(stream, "mid_rise", False) and answers_relu(read)
        if has_mask and not self._backward.recorded:
            with tf.device(op.device):
                dx = stream.mask_gradient(op.inputs[0])
                self._replace(op, dx.op, [dx])
            return
        if not note:
            limits: Any = about(op.type).limits
            with tf.device(op.device):
                self._read_bits(read, self._bits_of(base, *limits))
        if base not in self._crossings:
            self._crossings.note(base, KEEP if note else BITMASK, (op.type,), note)

    def blank(self, read: GradientRead) -> None:
        """An operation that reads the size of a tensor reads zeros of that size."""
        with tf.device(read.op.device), tf.control_dependencies([read.gate.op]):
            zeros = tf.zeros(tf.shape(read.tensor), read.tensor.dtype)
        zeros.set_shape(read.tensor.shape)
        _keras.set_input(read.op, read.number, zeros)

    def may_read_stream(self, read: GradientRead) -> bool:
        """Whether an operation is the gradient of a batch normalization, by its input, where we have one of streams."""
        is_input = read.op.type == NORMALIZATION_GRADIENT and read.number == 1
        return is_input and not self._backward.recorded and statistics_of(read.op) is not None

    def normalize(self, read: GradientRead, stored: tf.Tensor, stream: Any) -> None:
        """The gradients of a batch normalization from the stream of its input, which is decoded piece by piece."""
        op = read.op
        mean, _ = statistics_of(op)  # type: ignore[misc]
        with tf.device(op.device):
            dy, shape = op.inputs[0], tf.shape(stored)
            dx, dgamma, dbeta = stream.batch_norm_gradient(
                dy if read.tensor is stored else tf.reshape(dy, shape),
                op.inputs[2],
                mean,
                inverse_deviation(op),
            )
            if read.tensor is not stored:
                dx = tf.reshape(dx, tf.shape(dy))
        self._replace(op, dgamma.op, (dx, dgamma, dbeta))
        self.moved[op.name] = dgamma.op

    def may_read_positions(self, read: GradientRead) -> bool:
        """Whether an operation is the gradient of a max pooling that may have its positions instead."""
        if read.need != WINDOW or self._backward.recorded:
            return False
        pooling = pooling_of(read.op, self._backward.xla)
        if pooling is None or self._is_of_backward_pass(pooling):
            return False
        if self._streams.is_exact(pooling.outputs[0]) and _windows_overlap(pooling):
            return False
        return not any(map(self._streams.why_plain, (pooling.inputs[0], pooling.outputs[0])))

    def pool(self, op: tf.Operation) -> None:
        """The gradient of a max pooling by positions, which the forward pass makes with the maxima."""
        pooling: Any = pooling_of(op, self._backward.xla)
        readers = readers_of(pooling.outputs[0])
        with tf.device(op.device):
            maxima, positions = with_positions(pooling)
            redirect(readers, maxima)
            dx = gradient_of_positions(pooling, positions, incoming(op))
            self._replace(op, dx.op, [dx])
        self._crossings.note(
            pooling.outputs[0], BITMASK, (op.type,), "", bits_of(pooling.get_attr("ksize")), held_as=positions
        )

    def _bits_of(self, tensor: tf.Tensor, lower: float, upper: float) -> tf.Tensor:
        """Which elements lie within limits; made once for all readers with those limits."""
        key = (tensor.ref(), lower, upper)
        if key not in self._bits:
            readers = readers_of(tensor)
            through, self._bits[key] = native.ops().comptrain_bitmask(tensor, lower=lower, upper=upper)
            redirect(readers, through)
        return self._bits[key]

    def _read_bits(self, read: GradientRead, bits: tf.Tensor) -> None:
        op, dy = read.op, read.op.inputs[0]
        grad = native.ops().comptrain_bitmask_grad
        if self._backward.recorded:  # the other tape has recorded the operation, which so stays
            with tf.control_dependencies([read.gate.op]):
                ones = tf.ones(tf.shape(dy), dy.dtype)
            inside = grad(bits, ones, on=1.0, off=0.0)
            inside.set_shape(read.tensor.shape)
            _keras.set_input(op, read.number, inside)
            return
        off = op.get_attr("alpha") if op.type == "LeakyReluGrad" else 0.0
        dx = grad(bits, dy, on=1.0, off=off)
        self._replace(op, dx.op, [dx])

    def _replace(self, old: tf.Operation, new: tf.Operation, results: Sequence[tf.Tensor]) -> None:
        """Puts an operation in the place of a gradient operation, with what waits for that and what it waits for."""
        for before, after in zip(old.outputs, results):
            after.set_shape(before.shape)
            redirect(readers_of(before), after)
            self.replaced[before.name] = after
        _keras.wait_instead(old, new)
        _keras.wait_for(new, old.control_inputs)


def answers_relu(read: GradientRead) -> bool:
    """Whether "is it zero", which a stream says of a tensor, is what a gradient operation asks of it.

    Relatives of a ReLU have other limits or slopes, and of a tensor with negative values x != 0 is not x > 0.
    """
    made_by = about(base_of(read.tensor).op.type)
    return read.op.type == "ReluGrad" and made_by.limits is not None and made_by.least == 0


def _windows_overlap(pooling: tf.Operation) -> bool:
    """Whether gradients are summed, which TensorFlow does in another order."""
    size, strides = (pooling.get_attr(name) for name in ("ksize", "strides"))
    return any(stride < extent for stride, extent in zip(strides, size))


def redirect(readers: Sequence[tuple[tf.Operation, int]], tensor: tf.Tensor) -> None:
    """Lets operations read another tensor at the given inputs."""
    for op, index in readers:
        _keras.set_input(op, index, tensor)
