"""Batch normalization from its compressed input and the batch statistics; layer normalization from its input."""

from __future__ import annotations

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras, native
from tf_comptrain.codecs import SUPPORTED_DTYPES
from tf_comptrain.rules.base import COMPRESS, FUSED, KEEP, Context, Rule, Save, register_rule
from tf_comptrain.rules.elementwise import FromInput
from tf_comptrain.storage import Held, Site, derive, fenced, hold, slot_of, worth_holding


class _BatchNormalization(Rule):
    """Computed by TensorFlow's fused kernel, whose gradient reads the input and two vectors.

    The fused kernel's variance is Bessel-corrected and Keras' is not: it is multiplied by
    (n - 1) / n before it enters the moving variance.
    """

    storages = (COMPRESS, FUSED, KEEP)

    def obstacle(self, layer):
        axis = layer.axis[0] if isinstance(layer.axis, (list, tuple)) else layer.axis
        rank = layer.input_spec.ndim if layer.input_spec is not None else None
        if axis != -1 and (rank is None or axis != rank - 1):
            return f"axis={axis}: the fused kernel normalizes the last one"
        if not layer.trainable:
            return "frozen: its gradient needs no activation"
        return _keras.batch_norm_extras(layer)

    def saves(self, layer, storage):
        return (Save("input", "input", storage, kind="norm"),)

    def call(self, context: Context, x, training=None, mask=None, **kwargs):
        layer = context.layer
        if training is None:
            training = _keras.training()
        plain = mask is not None or x.shape.rank not in (2, 3, 4, 5) or x.dtype not in SUPPORTED_DTYPES
        if plain or not (training and layer.trainable):
            return context.original(x, training=training, mask=mask, **kwargs)
        if context.storage == COMPRESS and not worth_holding(x):
            return context.original(x, training=training, mask=mask, **kwargs)
        site = context.sites.get("input")
        channels = x.shape[-1]
        gamma = tf.convert_to_tensor(layer.gamma) if layer.scale else tf.ones([channels])
        beta = tf.convert_to_tensor(layer.beta) if layer.center else tf.zeros([channels])
        gamma, beta = (tf.cast(vector, tf.float32) for vector in (gamma, beta))
        y, mean, variance = _normalize(x, gamma, beta, layer.epsilon, site)
        if site is not None:
            inv_std = tf.math.rsqrt(_population_variance(variance, x) + layer.epsilon)
            scale = gamma * inv_std
            offset = beta - mean * scale
            slot_of(y).rebuilt = derive(x, lambda t: t * tf.cast(scale, t.dtype) + tf.cast(offset, t.dtype))
        _update_moving_statistics(layer, x, mean, variance)
        return y


def _normalize(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float, site: Site | None):
    @_keras.custom_gradient
    def apply(x, gamma, beta):
        with _keras.quiet_tape():
            through, held = (fenced(x), None) if site is None else hold(x, site)
            y, mean, variance, *reserved = tf.raw_ops.FusedBatchNormV3(
                x=_as_rank_4(through), scale=gamma, offset=beta, mean=[], variance=[], epsilon=epsilon
            )
            y = _restore_shape(y, x)
            # Eagerly, what the gradient function names stays alive: not the input that is held.
            kept = None if isinstance(held, Held) else through
            inv_std = tf.math.rsqrt(_population_variance(variance, x) + epsilon)

        def gradient(dy, unused_dmean, unused_dvariance):
            if isinstance(held, Held):
                dx, dgamma, dbeta = held.batch_norm_gradient(dy, gamma, mean, inv_std)
                if site is not None and site.statistics is not None:
                    site.statistics.collect(dy, dgamma, inv_std)  # gamma meets an error e of x as e * inv_std
                return dx, dgamma, dbeta
            dx, dgamma, dbeta, _, _ = tf.raw_ops.FusedBatchNormGradV3(
                y_backprop=_as_rank_4(dy),
                x=_as_rank_4(kept),
                scale=gamma,
                reserve_space_1=reserved[0],
                reserve_space_2=reserved[1],
                reserve_space_3=reserved[2],
                epsilon=epsilon,
            )
            return _restore_shape(dx, dy), dgamma, dbeta

        return (y, mean, variance), gradient

    y, mean, variance = apply(x, gamma, beta)
    return y, tf.stop_gradient(mean), tf.stop_gradient(variance)


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


def _population_variance(variance: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Undoes the fused kernel's Bessel correction, whose divisor is max(n - 1, 1)."""
    values = tf.cast(tf.size(x), tf.float32) / x.shape[-1]
    return variance * (tf.maximum(values - 1, 1) / values)


def _update_moving_statistics(layer, x: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> None:
    variance = _population_variance(variance, x)
    for moving, now in ((layer.moving_mean, mean), (layer.moving_variance, variance)):
        before = tf.cast(moving, now.dtype)
        moving.assign(tf.cast(before * layer.momentum + now * (1.0 - layer.momentum), moving.dtype))


class _LayerNormalization(FromInput):
    """Over the last dimension, where there are kernels for it: in one pass forward and one backward."""

    def call(self, context: Context, x, **kwargs):
        layer = context.layer
        axes = layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis]
        last = worth_holding(x) and [axis % x.shape.rank for axis in axes] == [x.shape.rank - 1]
        if (
            not last
            or x.shape[-1] is None
            or getattr(layer, "rms_scaling", False)
            or not _keras.on_cpu_executor()
        ):
            return super().call(context, x, **kwargs)
        channels = x.shape[-1]
        gamma = tf.ones([channels]) if layer.gamma is None else tf.convert_to_tensor(layer.gamma)
        beta = tf.zeros([channels]) if layer.beta is None else tf.convert_to_tensor(layer.beta)
        gamma, beta = (tf.cast(vector, tf.float32) for vector in (gamma, beta))
        return _normalize_rows(x, gamma, beta, layer.epsilon, context.sites["input"])


def _normalize_rows(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float, site: Site) -> tf.Tensor:
    ops = native.ops()

    @_keras.custom_gradient
    def apply(x, gamma, beta):
        with _keras.quiet_tape():
            through, held = hold(x, site)
            y = ops.comptrain_layer_norm(through, gamma, beta, epsilon=epsilon)

        def gradient(dy):
            if site.statistics is not None:
                site.statistics.collect(dy, None)
            return tuple(ops.comptrain_layer_norm_grad(held.restore(gate=dy), dy, gamma, epsilon=epsilon))

        return y, gradient

    return apply(x, gamma, beta)


register_rule(keras.layers.BatchNormalization)(_BatchNormalization())
register_rule(keras.layers.LayerNormalization)(_LayerNormalization("norm"))
