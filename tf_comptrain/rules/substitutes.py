"""Layers that compute in training what they always do, by operations whose gradients read less, or run faster.

They hold nothing themselves: the traced step holds what the gradients of these operations read, as of any others.
docs/design.md has the figure that justifies each.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras, native
from tf_comptrain.rules.base import Context, Rule, register_rule
from tf_comptrain.rules.linear import WithoutActivation
from tf_comptrain.rules.normalization_formula import run_by_formula
from tf_comptrain.storage import has_codec, may_hold_positions, worth_holding

# Attributes of batch normalizations, of Keras 3 and Keras 2.
_OTHER_STATISTICS = ("synchronized", "renorm", "virtual_batch_size", "adjustment")
_MANY = 16  # channels: rows of fewer may be shorter than an error by chance, see graph/cofactors.py


class Substitute(Rule):
    """Another way to compute a layer."""

    substitutes = True


class _BatchNormalization(Substitute):
    """TensorFlow's fused kernel: its gradient reads the input and two vectors, and can read a stream tile by tile.

    The fused kernel's variance is Bessel-corrected and Keras' is not: it is multiplied by
    (n - 1) / n before it enters the moving variance.
    """

    def obstacle(self, layer: keras.layers.Layer) -> str | None:
        axis = layer.axis[0] if isinstance(layer.axis, (list, tuple)) else layer.axis
        rank = layer.input_spec.ndim if layer.input_spec is not None else None
        if axis != -1 and (rank is None or axis != rank - 1):
            return f"axis={axis}: the fused kernel normalizes the last one"
        if any(getattr(layer, name, None) for name in _OTHER_STATISTICS):
            return "it has other statistics than those of the batch"
        return None

    def call(
        self, context: Context, x: tf.Tensor, training: bool | None = None, mask: Any = None, **kwargs: Any
    ) -> Any:
        layer = context.layer
        if training is None:
            training = _keras.training()
        fits = mask is None and x.shape.rank in (2, 3, 4, 5)
        if not (fits and training and layer.trainable and worth_holding(x)):
            return context.original(x, training=training, mask=mask, **kwargs)
        channels = x.shape[-1]
        gamma = tf.convert_to_tensor(layer.gamma) if layer.scale else tf.ones([channels])
        beta = tf.convert_to_tensor(layer.beta) if layer.center else tf.zeros([channels])
        gamma, beta = (tf.cast(vector, tf.float32) for vector in (gamma, beta))
        y, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=_as_rank_4(x), scale=gamma, offset=beta, mean=[], variance=[], epsilon=layer.epsilon
        )
        _update_moving_statistics(layer, x, tf.stop_gradient(mean), tf.stop_gradient(variance))
        if context.engine.xla:
            run_by_formula(y.op)
        if context.engine.is_cpu_executor:
            # TensorFlow's optimizer joins the two where a ReLU follows, and that kernel makes zeros of NaN.
            y = tf.ensure_shape(y, y.shape)
        return _restore_shape(y, x)


def _as_rank_4(x: tf.Tensor) -> tf.Tensor:
    """[batch, 1.., channels]: the statistics run over all but the last dimension, in any split."""
    if x.shape.rank == 4:
        return x
    channels = x.shape[-1]
    if x.shape.rank == 2:
        return tf.reshape(x, [-1, 1, 1, channels])
    return tf.reshape(x, [tf.shape(x)[0], 1, -1, channels])


def _restore_shape(y: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    if like.shape.rank == 4:
        return y
    y = tf.reshape(y, tf.shape(like))
    y.set_shape(like.shape)
    return y


def _update_moving_statistics(layer: Any, x: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> None:
    values = tf.cast(tf.size(x), tf.float32) / x.shape[-1]
    variance *= tf.maximum(values - 1, 1) / values
    for moving, now in ((layer.moving_mean, mean), (layer.moving_variance, variance)):
        before = tf.cast(moving, now.dtype)
        moving.assign(tf.cast(before * layer.momentum + now * (1.0 - layer.momentum), moving.dtype))


class _LayerNormalization(Substitute):
    """Over the last dimension, of which the normalized rows are held. On a GPU's executor Keras' formula serves."""

    def call(self, context: Context, x: tf.Tensor, **kwargs: Any) -> Any:
        layer = context.layer
        axes = layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis]
        fits = worth_holding(x) and [axis % x.shape.rank for axis in axes] == [x.shape.rank - 1]
        fits = fits and (x.shape[-1] or 0) >= _MANY and not getattr(layer, "rms_scaling", False)
        if not (fits and (context.engine.is_cpu_executor or context.engine.xla)):
            return context.original(x, **kwargs)
        gamma = tf.ones(x.shape[-1:]) if layer.gamma is None else tf.convert_to_tensor(layer.gamma)
        beta = tf.zeros(x.shape[-1:]) if layer.beta is None else tf.convert_to_tensor(layer.beta)
        gamma, beta = (tf.cast(vector, tf.float32) for vector in (gamma, beta))
        x_norm, inv_std = native.ops().comptrain_layer_norm(x, epsilon=layer.epsilon)
        return native.ops().comptrain_layer_norm_affine(x_norm, gamma, beta, inv_std)


class _DepthwiseConvolution(Substitute):
    """Convolutions with as many groups as channels, by TensorFlow's depthwise kernels."""

    def call(self, context: Context, x: tf.Tensor, **kwargs: Any) -> Any:
        layer = context.layer
        if not _is_depthwise(layer, x):
            return context.original(x, **kwargs)
        y = _keras.class_call(layer)(_Depthwise(layer), x, **kwargs)
        return y if layer.activation is None else layer.activation(y)


class _Depthwise(WithoutActivation):
    def convolution_op(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        layer: Any = self.reference()
        channels, stride = inputs.shape[-1], layer.strides[0]
        return tf.nn.depthwise_conv2d(
            inputs,
            tf.reshape(kernel, [*kernel.shape[:2], channels, kernel.shape[3] // channels]),
            strides=(1, stride, stride, 1),
            padding=layer.padding.upper(),
            dilations=layer.dilation_rate,
        )


def _is_depthwise(layer: keras.layers.Layer, inputs: tf.Tensor) -> bool:
    """Whether a Conv2D has as many groups as channels, for which TensorFlow has kernels of their own.

    Keras compiles it with XLA instead, whose weight gradient writes out the input once per position of
    the kernel: 49 times, for the first convolutions of ConvNeXt.
    """
    return (
        isinstance(layer, keras.layers.Conv2D)
        and type(layer).convolution_op is keras.layers.Conv2D.convolution_op
        and 1 < layer.groups == inputs.shape[-1]
        and layer.data_format == "channels_last"
        and layer.strides[0] == layer.strides[1]
        and (layer.strides[0] == 1 or max(layer.dilation_rate) == 1)
    )


class _Dropout(Substitute):
    """Keras' random numbers in one pass that keeps none of them, on the executor of a CPU."""

    needs_bits = True

    def obstacle(self, layer: keras.layers.Layer) -> str | None:
        return None if _keras.KERAS_3 else "Keras 2 draws its numbers otherwise"

    def call(self, context: Context, x: tf.Tensor, **kwargs: Any) -> Any:
        layer = context.layer
        rate = float(layer.rate)
        fits = 0 < rate < 1 and layer.noise_shape is None and has_codec(x)
        if not (fits and _keras.training() and context.engine.is_cpu_executor):
            return context.original(x, **kwargs)
        key = _keras.draw_key(layer)
        y, _ = native.ops().comptrain_dropout(x, *key, rate=rate, scale=1 / (1 - rate))
        return y


class _MaxPooling(Substitute):
    """A layer or operation, by the position of each maximum in its window."""

    needs_bits = True

    def obstacle(self, layer: keras.layers.Layer) -> str | None:
        if (layer.data_format or keras.backend.image_data_format()) != "channels_last":
            return "data_format='channels_first'"
        return None

    def call(self, context: Context, x: tf.Tensor, **kwargs: Any) -> Any:
        layer, axes = context.layer, x.shape.rank - 2
        size = _per_axis(layer.pool_size, axes)
        if not may_hold_positions(size, x, context.engine.xla):
            return context.original(x, **kwargs)
        strides = _per_axis(layer.strides or size, axes)
        return native.ops().comptrain_max_pool(x, ksize=size, strides=strides, padding=layer.padding.upper())[
            0
        ]


def _per_axis(size: Any, axes: int) -> tuple[int, ...]:
    return tuple(size) if isinstance(size, (list, tuple)) else (size,) * axes


register_rule(keras.layers.BatchNormalization)(_BatchNormalization())
register_rule(keras.layers.LayerNormalization)(_LayerNormalization())
register_rule(keras.layers.Dropout)(_Dropout())
register_rule(keras.layers.Conv2D)(_DepthwiseConvolution())
register_rule(
    keras.layers.MaxPooling1D,
    keras.layers.MaxPooling2D,
    keras.layers.MaxPooling3D,
)(_MaxPooling())
