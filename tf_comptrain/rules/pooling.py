"""Max pooling by the position of each maximum in its window; average pooling needs nothing."""

from __future__ import annotations

import math

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras, native
from tf_comptrain.rules.base import BITMASK, KEEP, Context, Passive, Rule, Save, register_rule
from tf_comptrain.storage import fenced

_MAX_WINDOW = 1 << 16
_MAX_XLA_WINDOW = 64  # the lowering compares every position


class _MaxPooling(Rule):
    storages = (BITMASK, KEEP)

    def obstacle(self, layer):
        if layer.data_format != "channels_last":
            return "data_format='channels_first'"
        if math.prod(layer.pool_size) > _MAX_WINDOW:
            return f"a window of more than {_MAX_WINDOW} positions"
        return None

    def saves(self, layer, storage):
        return (Save("index", "output", BITMASK, bits=_index_bits(math.prod(_tuple(layer.pool_size)))),)

    def call(self, context: Context, x, **kwargs):
        layer = context.layer
        too_large = _keras.under_xla() and math.prod(_tuple(layer.pool_size)) > _MAX_XLA_WINDOW
        if not x.dtype.is_floating or x.dtype == tf.float64 or too_large:
            return context.original(x, **kwargs)
        y, _ = native.ops().comptrain_max_pool(
            fenced(x),
            ksize=_tuple(layer.pool_size),
            strides=_tuple(layer.strides),
            padding=layer.padding.upper(),
        )
        return y


class _GlobalMaxPooling(Rule):
    """The position of each maximum; of equal ones the first, where plain Keras divides the gradient among them."""

    storages = (BITMASK, KEEP)

    def obstacle(self, layer):
        return "data_format='channels_first'" if layer.data_format != "channels_last" else None

    def saves(self, layer, storage):
        return (Save("index", "output", BITMASK, bits=32),)

    def call(self, context: Context, x, **kwargs):
        @tf.custom_gradient
        def apply(x):
            shape = tf.shape(x)
            positions = tf.reduce_prod(shape[1:-1])
            index = tf.argmax(tf.reshape(x, [shape[0], positions, shape[-1]]), axis=1, output_type=tf.int32)

            def gradient(dy):
                dy = tf.reshape(dy, [shape[0], 1, shape[-1]])
                return tf.reshape(dy * tf.one_hot(index, positions, axis=1, dtype=dy.dtype), shape)

            return context.original(x, **kwargs), gradient

        return apply(fenced(x))


def _tuple(size) -> tuple[int, ...]:
    return tuple(size) if isinstance(size, (list, tuple)) else (size,)


def _index_bits(window: int) -> int:
    return next(bits for bits in (1, 2, 4, 8, 16) if window <= 1 << bits)


register_rule(keras.layers.MaxPooling1D, keras.layers.MaxPooling2D, keras.layers.MaxPooling3D)(_MaxPooling())
register_rule(
    keras.layers.GlobalMaxPooling1D, keras.layers.GlobalMaxPooling2D, keras.layers.GlobalMaxPooling3D
)(_GlobalMaxPooling())
register_rule(
    keras.layers.AveragePooling1D,
    keras.layers.AveragePooling2D,
    keras.layers.AveragePooling3D,
    keras.layers.GlobalAveragePooling1D,
    keras.layers.GlobalAveragePooling2D,
    keras.layers.GlobalAveragePooling3D,
)(Passive())
