"""Batch normalization under XLA, by a formula in the place of TensorFlow's fused operations.

XLA takes the variance of those for E[x^2] - E[x]^2, which cancels where a channel's mean is a hundred times its
deviation; and beside them it writes out the random numbers of dropout value by value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_comptrain import _keras

_GRADIENT = "FusedBatchNormGradV3"
_AXES = [0, 1, 2]


class _BatchStatistics(NamedTuple):
    """Of a batch, [channels] float32.

    Attributes:
      mean: Of each channel.
      variance: Of the population.
      inverse: 1 / sqrt(variance + epsilon).
      count: Values of a channel.
    """

    mean: tf.Tensor
    variance: tf.Tensor
    inverse: tf.Tensor
    count: tf.Tensor


def run_by_formula(forward: tf.Operation) -> None:
    """Puts the formula in the place of a FusedBatchNormV3, channels last, and of its gradients.

    When the function is traced: until then they are what the passes over the graph know.
    """
    _keras.at_end_of_trace(forward.graph, lambda returned: _replace(forward, returned))


def _replace(forward: tf.Operation, returned: Sequence[Any]) -> None:
    fixed = {tensor.ref() for tensor in returned if tf.is_tensor(tensor)}
    gradients = [op for op in forward.outputs[3].consumers() if op.type == _GRADIENT]
    with forward.graph.as_default(), tf.device(forward.device), tf.name_scope(f"{forward.name}/formula/"):
        x, gamma, beta = list(forward.inputs)[:3]
        of_batch = _statistics(x, forward.get_attr("epsilon"))
        scale = of_batch.inverse * gamma
        y = tf.cast((tf.cast(x, tf.float32) - of_batch.mean) * scale + beta, x.dtype)
        sample_variance = of_batch.variance * (of_batch.count / tf.maximum(of_batch.count - 1, 1))
        for gradient in gradients:
            _redirect(gradient, _gradients(gradient, scale, of_batch), fixed)
        _redirect(forward, [y, of_batch.mean, sample_variance, of_batch.mean, of_batch.variance], fixed)


def _statistics(x: tf.Tensor, epsilon: float) -> _BatchStatistics:
    """In two passes: the variance is that of the differences from the mean."""
    count = tf.cast(tf.size(x) / x.shape[-1], tf.float32)
    values = tf.cast(x, tf.float32)
    mean = tf.reduce_mean(values, _AXES)
    variance = tf.reduce_mean(tf.square(values - mean), _AXES)
    return _BatchStatistics(mean, variance, tf.math.rsqrt(variance + epsilon), count)


def _gradients(op: tf.Operation, scale: tf.Tensor, of_batch: _BatchStatistics) -> list[tf.Tensor]:
    """Of x, gamma and beta."""
    dy, x = (tf.cast(tensor, tf.float32) for tensor in list(op.inputs)[:2])
    x_norm = (x - of_batch.mean) * of_batch.inverse
    dbeta, dgamma = tf.reduce_sum(dy, _AXES), tf.reduce_sum(dy * x_norm, _AXES)
    dx = scale * (dy - dbeta / of_batch.count - x_norm * (dgamma / of_batch.count))
    return [tf.cast(dx, op.inputs[1].dtype), dgamma, dbeta]


def _redirect(op: tf.Operation, results: Sequence[tf.Tensor], fixed: set) -> None:
    """Lets the readers of an operation read other tensors, but for what its function returns."""
    for before, after in zip(op.outputs, results):
        if before.ref() in fixed:
            continue
        after.set_shape(before.shape)
        for reader in before.consumers():
            for index, read in enumerate(reader.inputs):
                if read is before:
                    _keras.set_input(reader, index, after)
