"""Layers whose gradient needs no tensor, and dropout, which needs its mask."""

from __future__ import annotations

from functools import partial

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras, native
from tf_comptrain.rules.base import BITMASK, KEEP, NOTHING, Context, Passive, Rule, Save, register_rule
from tf_comptrain.rules.differentiate import from_replay
from tf_comptrain.rules.elementwise import NO_REPLAY
from tf_comptrain.storage import fenced

_NAMES = (
    "InputLayer", "Flatten", "Reshape", "Permute", "RepeatVector", "Identity",
    "Add", "Subtract", "Average", "Concatenate",
    "ZeroPadding1D", "ZeroPadding2D", "ZeroPadding3D", "Cropping1D", "Cropping2D", "Cropping3D",
    "UpSampling1D", "UpSampling2D", "UpSampling3D", "GaussianNoise", "Rescaling", "Normalization",
    "ActivityRegularization", "Embedding", "Masking", "Resizing", "CenterCrop",
    "AdaptiveAveragePooling1D", "AdaptiveAveragePooling2D", "AdaptiveAveragePooling3D",
)  # fmt: skip
register_rule(*(getattr(keras.layers, name) for name in _NAMES if hasattr(keras.layers, name)))(Passive())


class _Dropout(Rule):
    """The layer's own dropout, applied to ones: its mask is held as one bit per element.

    The random numbers are the ones plain Keras would draw.
    """

    storages = (BITMASK, KEEP)

    def saves(self, layer, storage):
        return (Save("mask", "output", BITMASK),) if layer.rate > 0 else ()

    def call(self, context: Context, x, **kwargs):
        rate = float(context.layer.rate)
        if not _keras.training() or not 0 < rate < 1 or not x.dtype.is_floating or x.dtype == tf.float64:
            return context.original(x, **kwargs)
        kwargs["training"] = True

        @tf.custom_gradient
        def apply(x):
            with _keras.quiet_tape():
                scaled_mask = context.original(tf.ones_like(x), **kwargs)
                scaled_mask, bits = native.ops().comptrain_bitmask(scaled_mask)
                y = x * scaled_mask

            def gradient(dy):
                return native.ops().comptrain_bitmask_grad(bits, dy, on=1 / (1 - rate))

            return y, gradient

        return apply(fenced(x))


class _Noise(Rule):
    """x times random numbers, plus others: they are drawn again, and nothing is held."""

    storages = (NOTHING, KEEP)

    def obstacle(self, layer):
        return None if _keras.KERAS_3 else NO_REPLAY

    def saves(self, layer, storage):
        return ()

    def call(self, context: Context, x, **kwargs):
        if not _keras.training():
            return context.original(x, **kwargs)
        kwargs["training"] = True
        return from_replay(partial(context.original, **kwargs), x, context.layer)


register_rule(keras.layers.AlphaDropout, keras.layers.GaussianDropout)(_Noise())
register_rule(
    keras.layers.Dropout,
    keras.layers.SpatialDropout1D,
    keras.layers.SpatialDropout2D,
    keras.layers.SpatialDropout3D,
)(_Dropout())
