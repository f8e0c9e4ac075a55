"""Max pooling by the position of each maximum in its window; average pooling needs nothing."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras, native
from tf_comptrain.rules.base import BITMASK, KEEP, Context, Passive, Rule, Save, register_rule
from tf_comptrain.storage import fenced

_MAX_WINDOW = 1 << 16
_MAX_XLA_WINDOW = 64  # the lowering compares every position


class Window(NamedTuple):
    """How a pooling window lies: positions and steps along each axis, "VALID" or "SAME"."""

    size: tuple[int, ...]
    strides: tuple[int, ...]
    padding: str


class _MaxPooling(Rule):
    """A layer or operation."""

    storages = (BITMASK, KEEP)

    def window(self, layer: Any, shape: tuple[int | None, ...]) -> Window | None:
        """Of an input [batch, .., channels]; None where there is no such window."""
        axes = len(shape) - 2
        size = _per_axis(layer.pool_size, axes)
        return Window(size, _per_axis(layer.strides or size, axes), layer.padding.upper())

    def obstacle(self, layer):
        if (layer.data_format or keras.backend.image_data_format()) != "channels_last":
            return "data_format='channels_first'"
        shape = _keras.input_shape(layer)
        window = None if shape is None else self.window(layer, shape)
        if shape is not None and window is None:
            return "windows of unequal size"
        if window is not None and math.prod(window.size) > _MAX_WINDOW:
            return f"a window of more than {_MAX_WINDOW} positions"
        return None

    def saves(self, layer, storage):
        shape = _keras.input_shape(layer)
        window = None if shape is None else self.window(layer, shape)
        bits = 8 if window is None else _index_bits(math.prod(window.size))
        return (Save("index", "output", BITMASK, bits=bits),)

    def call(self, context: Context, x, **kwargs):
        window = self.window(context.layer, tuple(x.shape))
        limit = _MAX_XLA_WINDOW if _keras.under_xla() else _MAX_WINDOW
        fits = window is not None and math.prod(window.size) <= limit
        if window is None or not fits or not x.dtype.is_floating or x.dtype == tf.float64:
            return context.original(x, **kwargs)
        y, _ = native.ops().comptrain_max_pool(
            fenced(x), ksize=window.size, strides=window.strides, padding=window.padding
        )
        return y


class _AdaptiveMaxPooling(_MaxPooling):
    """Windows of equal size, where the input is a multiple of the output; of equal maxima the first."""

    def window(self, layer, shape):
        spatial = shape[1:-1]
        counts = _per_axis(layer.output_size, len(spatial))
        if any(size is None or size % count for size, count in zip(spatial, counts)):
            return None
        size = tuple((size or 0) // count for size, count in zip(spatial, counts))
        return Window(size, size, "VALID")


class _GlobalMaxPooling(Rule):
    """The position of each maximum; of equal ones the first, where plain Keras divides the gradient among them."""

    storages = (BITMASK, KEEP)

    def obstacle(self, layer):
        return "data_format='channels_first'" if layer.data_format != "channels_last" else None

    def saves(self, layer, storage):
        return (Save("index", "output", BITMASK, bits=32),)

    def call(self, context: Context, x, **kwargs):
        @_keras.custom_gradient
        def apply(x):
            shape = tf.shape(x)
            positions = tf.reduce_prod(shape[1:-1])
            index = tf.argmax(tf.reshape(x, [shape[0], positions, shape[-1]]), axis=1, output_type=tf.int32)

            def gradient(dy):
                dy = tf.reshape(dy, [shape[0], 1, shape[-1]])
                return tf.reshape(dy * tf.one_hot(index, positions, axis=1, dtype=dy.dtype), shape)

            return context.original(x, **kwargs), gradient

        return apply(fenced(x))


def _per_axis(size: Any, axes: int) -> tuple[int, ...]:
    return tuple(size) if isinstance(size, (list, tuple)) else (size,) * axes


def _index_bits(window: int) -> int:
    return next(bits for bits in (1, 2, 4, 8, 16) if window <= 1 << bits)


register_rule(
    keras.layers.MaxPooling1D,
    keras.layers.MaxPooling2D,
    keras.layers.MaxPooling3D,
    *_keras.operation_classes("MaxPool"),
)(_MaxPooling())
_ADAPTIVE = [getattr(keras.layers, f"AdaptiveMaxPooling{axes}D", None) for axes in (1, 2, 3)]
register_rule(*filter(None, _ADAPTIVE))(_AdaptiveMaxPooling())
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
