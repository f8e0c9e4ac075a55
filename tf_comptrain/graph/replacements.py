"""Gradient operations in whose place others stand, which read bits, positions or streams instead of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_comptrain import _keras, native
from tf_comptrain.graph.gradient_operations import GradientRead
from tf_comptrain.graph.kernels import inverse_deviation, statistics_of
from tf_comptrain.graph.operations import about
from tf_comptrain.graph.pooling import gradient_of_positions, incoming, with_positions
from tf_comptrain.graph.tensors import readers_of


class Replacements:
    """What stands in for gradient operations of one backward pass.

    Args:
      backward: The pass.

    Attributes:
      replaced: By name of a gradient that is no longer made: what stands in for it.
      moved: By name of a gradient operation whose product is looked for later: the one in its place.
    """

    def __init__(self, backward: _keras.BackwardPass):
        self.replaced: dict[str, tf.Tensor] = {}
        self.moved: dict[str, tf.Operation] = {}
        self._backward = backward
        self._bits: dict[Any, tf.Tensor] = {}

    def mask_from_stream(self, read: GradientRead, stream: Any) -> bool:
        """The gradient of a ReLU from the stream of its output; False, and no change, where that does not say it.

        Args:
          read: What the gradient operation reads.
          stream: Of that tensor; None: it has none.
        """
        is_said = getattr(stream, "mid_rise", False) and read.op.type == "ReluGrad"
        if not is_said or self._backward.recorded:
            return False
        with tf.device(read.op.device):
            dx = stream.mask_gradient(*self._terms(read.op.inputs[0]))
            self._replace(read.op, dx.op, [dx])
        return True

    def mask(self, read: GradientRead, tensor: tf.Tensor) -> None:
        """The gradient of a ReLU or a relative from one bit per element.

        Args:
          read: What the gradient operation reads.
          tensor: The tensor behind that.
        """
        limits: Any = about(read.op.type).limits
        with tf.device(read.op.device):
            self._read_bits(read, self._bits_of(tensor, *limits))

    def blank(self, read: GradientRead) -> None:
        """An operation that reads the size of a tensor reads zeros of that size."""
        with tf.device(read.op.device), tf.control_dependencies([read.gate.op]):
            zeros = tf.zeros(tf.shape(read.tensor), read.tensor.dtype)
        zeros.set_shape(read.tensor.shape)
        _keras.set_input(read.op, read.number, zeros)

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

    def pool(self, op: tf.Operation, pooling: Any) -> tuple[tf.Operation, tf.Operation, tf.Tensor]:
        """The gradient of a max pooling by positions, which the forward pass makes with the maxima.

        Returns:
          The pooling, `op` and the positions.
        """
        readers = readers_of(pooling.outputs[0])
        with tf.device(op.device):
            maxima, positions = with_positions(pooling)
            redirect(readers, maxima)
            dx = gradient_of_positions(pooling, positions, incoming(op))
            self._replace(op, dx.op, [dx])
        return pooling, op, positions

    def _terms(self, dy: tf.Tensor) -> list[tf.Tensor]:
        """What a gradient is the sum of, where it need not be a tensor; else the gradient.

        Under XLA, of two that are tensors anyway, and where nothing else reads their sum.
        """
        terms = list(dy.op.inputs)
        if not self._backward.xla or dy.op.type != "AddN" or len(terms) != 2 or len(dy.consumers()) > 1:
            return [dy]
        return terms if all(_is_made_by_a_kernel(term.op) for term in terms) else [dy]

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


def _is_made_by_a_kernel(op: tf.Operation) -> bool:
    """Whether XLA makes a tensor of it whoever reads that: it is a product, or has or will have a kernel of ours."""
    return about(op.type).is_product or op.type == "ReluGrad" or op.type.startswith("Comptrain>")


def redirect(readers: Sequence[tuple[tf.Operation, int]], tensor: tf.Tensor) -> None:
    """Lets operations read another tensor at the given inputs."""
    for op, index in readers:
        _keras.set_input(op, index, tensor)
