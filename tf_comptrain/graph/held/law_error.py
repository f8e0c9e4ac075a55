"""What the error-bound law is held against: gradients from restored tensors beside those from the tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_comptrain import _keras
from tf_comptrain.graph.kernels import NORMALIZATION_GRADIENT, KernelGradient, inverse_deviation


class LawNumbers(NamedTuple):
    """What a step finds of one gradient.

    Attributes:
      state: `codecs.State` of the tensor's stream.
      plain_bytes: Of the tensor as float32.
      error: Root mean square over the gradient's elements: from the restored tensor less from the tensor.
      size: As `error`, of the gradient from the tensor itself.
      cosine: Of the angle between the two gradients.
      sum_sq: Sum of dy^2; of a normalization [channels].
      mean_dy_norm: Of a normalization, as the following: [channels] mean(dy x_norm).
      sigma: [channels] Standard deviation of its input, epsilon included.
      gamma: [channels] Its scale.
      count: Elements of a channel.
      input_error: As `error`, of the gradient of its input; so are the following.
      input_size: As `size`.
      input_cosine: As `cosine`.
    """

    state: tf.Tensor
    plain_bytes: tf.Tensor
    error: tf.Tensor
    size: tf.Tensor
    cosine: tf.Tensor
    sum_sq: tf.Tensor
    mean_dy_norm: tf.Tensor
    sigma: tf.Tensor
    gamma: tf.Tensor
    count: tf.Tensor
    input_error: tf.Tensor
    input_size: tf.Tensor
    input_cosine: tf.Tensor


_OfGradient = tuple[tf.Tensor, ...]


class LawError(NamedTuple):
    """One gradient of a traced step that the error-bound law speaks of.

    Attributes:
      name: As `LawSite.name`.
      share: As `KernelGradient.share`.
      is_normalization: Whether the gradient is that of a batch normalization's scale.
      by_channel: Whether the bound of each channel is in proportion to its own scale.
      numbers: Tensors of the step.
    """

    name: str
    share: float
    is_normalization: bool
    by_channel: bool
    numbers: LawNumbers


def law_error(name: str, kernel: KernelGradient, state: tf.Tensor, by_channel: bool) -> LawError | None:
    """Adds to the step what the law is held against; None where others add to the gradient."""
    if kernel.path is None:
        return None
    is_normalization = kernel.op.type == NORMALIZATION_GRADIENT
    inputs = list(kernel.op.inputs)
    inputs[kernel.stored] = kernel.x
    with tf.device(kernel.op.device):
        exact = _keras.run_again(kernel.op, inputs, "exact")
        found = (kernel.moved or kernel.op).outputs
        plain_bytes = 4.0 * tf.cast(tf.size(kernel.x), tf.float32)
        dy = tf.cast(inputs[kernel.incoming], tf.float32)
        growth = kernel.growth
        dy = dy if growth is None else dy * growth
        of_gradient: _OfGradient
        if is_normalization:
            of_gradient = _of_normalization(kernel.op, dy, found, exact)
        else:
            of_gradient = _of_product(kernel.path, dy, found[0], exact[0])
        numbers = LawNumbers(tf.cast(state, tf.float32), plain_bytes, *of_gradient)
    return LawError(name, kernel.share, is_normalization, by_channel, numbers)


def _of_product(
    path: Sequence[tf.Operation], dy: tf.Tensor, found: tf.Tensor, exact: tf.Tensor
) -> _OfGradient:
    difference = found - exact  # here: the rounding of what follows is not the restored tensor's
    for op in reversed(path):
        difference, exact = (
            _keras.run_again(op, [value, *list(op.inputs)[1:]], "exact")[0] for value in (difference, exact)
        )
    none = (tf.zeros([]),) * (len(LawNumbers._fields) - 6)
    return *_compared(difference, exact), tf.reduce_sum(tf.square(dy)), *none


def _of_normalization(op: tf.Operation, dy: tf.Tensor, found: Any, exact: list) -> _OfGradient:
    axes = list(range(dy.shape.rank - 1))
    count = tf.cast(tf.size(dy), tf.float32) / math.prod(op.inputs[2].shape)
    dx, dgamma = (found[k] - exact[k] for k in range(2))
    return (
        *_compared(dgamma, exact[1]),
        tf.reduce_sum(tf.square(dy), axes),
        exact[1] / count,
        1 / inverse_deviation(op),
        op.inputs[2],
        count,
        *_compared(dx, exact[0]),
    )


def _compared(difference: tf.Tensor, exact: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """`LawNumbers.error`, `size` and `cosine`."""
    difference, exact = tf.cast(difference, tf.float32), tf.cast(exact, tf.float32)
    found = exact + difference
    scale = tf.norm(exact) * tf.norm(found)
    return _rms(difference), _rms(exact), tf.math.divide_no_nan(tf.reduce_sum(exact * found), scale)


def _rms(values: tf.Tensor) -> tf.Tensor:
    return tf.sqrt(tf.reduce_mean(tf.square(tf.cast(values, tf.float32))))
