"""Gradients of weights: products of an incoming gradient and a tensor of the forward pass, whose error ends there."""

from __future__ import annotations

import math
from typing import NamedTuple

import tensorflow as tf

from tf_comptrain import _keras
from tf_comptrain.graph.crossings import Stream
from tf_comptrain.graph.gradient_operations import GradientOperations
from tf_comptrain.graph.held_or_rebuilt import AFFINE, NORMALIZATION
from tf_comptrain.graph.operations import KERNEL_GRADIENT, MATRIX_PRODUCT, about
from tf_comptrain.graph.tensors import base_of, is_moved

NORMALIZATION_GRADIENT = "FusedBatchNormGradV3"


class KernelGradient(NamedTuple):
    """A product in the backward pass that becomes the gradient of a weight, and nothing else.

    Attributes:
      op: The product.
      stored: Number of its input that is a tensor of the forward pass.
      incoming: Number of the one that is a gradient, dy.
      source: Number of the weight among the sources of the backward pass.
      gradient: Of the weight.
      share: Sum of dy^2 behind one element of the gradient, mean over those / sum of dy^2.
      x: What it reads there as the forward pass has it.
      path: Operations that make the gradient of the product, last one first; None where others add to it.
      moved: The operation in its place; None: none.
      affine: The second part of a layer normalization, which makes what it reads of the held tensor; None: that is it.
    """

    op: tf.Operation
    stored: int
    incoming: int
    source: int
    gradient: tf.Tensor
    share: float
    x: tf.Tensor
    path: tuple[tf.Operation, ...] | None = ()
    moved: tf.Operation | None = None
    affine: tf.Operation | None = None

    @property
    def growth(self) -> tf.Tensor | None:
        """Of an error of the held tensor on the way to what the product reads: the root mean square of gamma."""
        return None if self.affine is None else tf.sqrt(tf.reduce_mean(tf.square(self.affine.inputs[1])))

    @property
    def scale(self) -> tf.Tensor | None:
        """[channels] factor on dy, of a normalization: gamma meets an error e of the input as e / sigma."""
        return inverse_deviation(self.op) if self.op.type == NORMALIZATION_GRADIENT else None


class Use(NamedTuple):
    """What a backward pass makes of a stream.

    Attributes:
      stream: The stream.
      kernels: Gradients of weights that are products with what it holds.
      alone: Nothing else is made of it: an error ends in those gradients.
    """

    stream: Stream
    kernels: tuple[KernelGradient, ...]
    alone: bool


def kernel_gradients(backward: _keras.BackwardPass, gradients: GradientOperations) -> list[KernelGradient]:
    """The kernel gradients of a backward pass whose share follows from shapes."""
    found = []
    for source, gradient in enumerate(backward.gradients):
        if not isinstance(gradient, tf.Tensor) or not gradient.shape.is_fully_defined():
            continue
        normalization = _normalization_behind(gradient)
        if normalization is not None:
            share = 1 / math.prod(gradient.shape)
            x = normalization.inputs[1]
            found.append(KernelGradient(normalization, 1, 0, source, gradient, share, x))
            continue
        products = [
            KernelGradient(product.op, *roles, source, gradient, share, product.op.inputs[roles[0]], path)
            for product, summed, path in _products_behind(gradient, gradients)
            if (roles := _roles(product.op, gradients)) is not None
            and (share := _share(product, *roles, gradient, summed)) is not None
        ]
        # Where a weight has several, the errors add up: each gets its part of what the whole may have.
        alone = len(products) == 1
        found += [
            kernel._replace(share=len(products) * kernel.share, path=kernel.path if alone else None)
            for kernel in products
        ]
    return found


def _normalization_behind(gradient: tf.Tensor) -> tf.Operation | None:
    """The gradient operation of a fused batch normalization of which this is the gradient of its scale."""
    while _is_handed_on(gradient):
        gradient = gradient.op.inputs[0]
    is_gamma = gradient.op.type == NORMALIZATION_GRADIENT and gradient.value_index == 1
    return gradient.op if is_gamma and statistics_of(gradient.op) is not None else None


def statistics_of(op: tf.Operation) -> tuple[tf.Tensor, tf.Tensor] | None:
    """Mean and variance of the batch that a normalization's gradient reads, where the statistics are the batch's."""
    forward = op.inputs[3].op
    if forward.type != NORMALIZATION or not op.get_attr("is_training"):
        return None
    return None if op.get_attr("data_format") != b"NHWC" else (forward.outputs[1], forward.outputs[2])


def inverse_deviation(op: tf.Operation) -> tf.Tensor:
    """[channels] 1 / sqrt(population variance + epsilon), for a normalization's gradient that has `statistics_of`."""
    forward = op.inputs[3].op
    return normalizing(forward, forward.outputs[2])


def normalizing(op: tf.Operation, variance: tf.Tensor) -> tf.Tensor:
    """[channels] 1 / sqrt(population variance + epsilon) of a fused batch normalization."""
    x = op.inputs[0]
    values = tf.cast(tf.size(x), tf.float32) / x.shape[-1]
    # The fused kernel's variance has Bessel's correction, with a divisor of max(n - 1, 1).
    return tf.math.rsqrt(variance * (tf.maximum(values - 1, 1) / values) + op.get_attr("epsilon"))


def stored_behind(tensor: tf.Tensor, saved: set) -> tf.Tensor | None:
    """The held tensor of which this one is a view; None where there is none."""
    tensor = _first_behind(tensor, saved)
    return tensor if tensor.ref() in saved else None


def affine_behind(tensor: tf.Tensor, saved: set) -> tf.Operation | None:
    """The second part of a layer normalization of which this tensor is a view; None where it is none, or held."""
    tensor = _first_behind(tensor, saved)
    return tensor.op if tensor.op.type == AFFINE and tensor.ref() not in saved else None


def _first_behind(tensor: tf.Tensor, saved: set) -> tf.Tensor:
    tensor = base_of(tensor)
    while tensor.ref() not in saved and _is_handed_on(tensor):
        tensor = base_of(tensor.op.inputs[0])
    return tensor


def _is_handed_on(tensor: tf.Tensor) -> bool:
    """Whether a tensor has the values of what its operation reads first, in whatever shape and type."""
    return is_moved(tensor) or tensor.op.type == "Cast"


def _products_behind(
    gradient: tf.Tensor, gradients: GradientOperations
) -> list[tuple[tf.Tensor, tuple[int | None, ...] | None, tuple[tf.Operation, ...]]]:
    """(product, shape that it is summed to, operations after it) of all that a weight's gradient is made of."""
    found = []
    waiting: list[tuple[tf.Tensor, tuple | None, tuple | None, tuple]] = [(gradient, None, None, ())]
    while waiting:
        tensor, shape, summed, path = waiting.pop()
        op, expected = tensor.op, 0 if tensor is gradient else 1
        if len(gradients.readers_of(tensor)) != expected:  # more comes of it: an error would travel on
            continue
        if tensor.shape.is_fully_defined():
            shape = tuple(tensor.shape)
        if about(op.type).kind in (KERNEL_GRADIENT, MATRIX_PRODUCT):
            found.append((tensor, summed, path))
        elif op.type == "Sum" and summed is None and shape is not None:
            waiting.append((op.inputs[0], shape, shape, (*path, op)))
        elif _is_handed_on(tensor):
            waiting.append((op.inputs[0], shape, summed, (*path, op)))
        elif op.type == "AddN":
            waiting += [(term, shape, summed, path) for term in op.inputs]
    return found


def _roles(op: tf.Operation, gradients: GradientOperations) -> tuple[int, int] | None:
    """(stored, incoming) numbers of inputs; None unless exactly one is a gradient."""
    first, second = sorted(about(op.type).gradient or ())
    if gradients.is_gradient(op.inputs[first]) == gradients.is_gradient(op.inputs[second]):
        return None
    return (second, first) if gradients.is_gradient(op.inputs[first]) else (first, second)


def _share(
    product: tf.Tensor, stored: int, incoming: int, gradient: tf.Tensor, summed: tuple | None
) -> float | None:
    """`KernelGradient.share`; None where an element of the stored tensor may meet an element of the gradient twice.

    The mean over the elements dw is, of dims that only x has, each with all of dy: their size / that of dw.
    """
    op = product.op
    if about(op.type).kind == KERNEL_GRADIENT:
        return _share_of_convolution(op, incoming) if summed is None else None
    if op.type == "Einsum":
        only_stored = _only_stored(op, stored, incoming) if summed is None else None
    else:
        if not _has_all_batches(op.inputs[incoming], product):
            return None
        if summed is not None and (
            not _has_all_batches(op.inputs[stored], product) or tuple(product.shape[-2:]) != summed[-2:]
        ):
            return None
        rows, columns = product.shape[-2], product.shape[-1]
        only_stored, other = (rows, columns) if stored == 0 else (columns, rows)
        if only_stored is None and op.type == "MatMul" and other:
            only_stored = math.prod(gradient.shape) // other
    return None if only_stored is None else only_stored / math.prod(gradient.shape)


def _share_of_convolution(op: tf.Operation, incoming: int) -> float | None:
    dy, kind = op.inputs[incoming], op.get_attr("data_format").decode()
    channels = dy.shape[kind.index("C")] if dy.shape.rank == len(kind) else None
    if channels is None:
        return None
    # Of a transposed convolution dy is the larger one: a weight meets it at one of `strides` positions.
    return 1.0 / (channels * (math.prod(op.get_attr("strides")) if incoming == 0 else 1))


def _only_stored(op: tf.Operation, stored: int, incoming: int) -> int | None:
    """Elements along what the stored tensor and the gradient have, and dy has not."""
    terms, result = op.get_attr("equation").decode().split("->")
    letters = terms.split(",")
    x, dy = letters[stored], letters[incoming]
    simple = all(part.isalpha() and len(set(part)) == len(part) for part in (x, dy, result))
    if not simple or not set(x) ^ set(dy) <= set(result) or op.outputs[0].shape.rank != len(result):
        return None
    sizes = [size for letter, size in zip(result, op.outputs[0].shape) if letter not in dy]
    return None if None in sizes else math.prod(sizes)


def _has_all_batches(factor: tf.Tensor, product: tf.Tensor) -> bool:
    """Whether a factor of a product of many matrices has a matrix of its own for each of them."""
    if product.shape.rank is None or factor.shape.rank != product.shape.rank:
        return product.shape.rank == 2
    return all(size != 1 or of_all == 1 for size, of_all in zip(factor.shape[:-2], product.shape[:-2]))
