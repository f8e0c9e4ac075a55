"""A U-Net that says how likely rain reaches each of some thresholds."""

from __future__ import annotations

import numpy as np
import radar
import tensorflow as tf
from tensorflow import keras

import tf_comptrain as ct

layers = keras.layers

CONVOLUTIONS = 2  # of a block
_WEIGHTS = (1.0, 4.0, 16.0)  # of the thresholds in the loss: rarer rain counts more
_STEEPNESS = 4.0  # of the probability by which the untrained network forecasts, in log(1 + mm/h)


def unet(tile: int | None, width: int = 8, depth: int = 3, recompute: bool = False) -> keras.Model:
    """[batch, tile, tile, frames] log rain -> [batch, tile, tile, thresholds] logits; begins as advection.

    Args:
      tile: Width and height, a multiple of 2^depth.
      width: Channels at full resolution, twice as many a level down.
      depth: Levels below full resolution.
      recompute: Hold each block's input alone, and run the block again in the backward pass.
    """
    inputs = keras.Input((tile, tile, radar.FRAMES))
    x, kept = inputs, []
    for level in range(depth):
        x = _block(x, width << level, recompute)
        kept.append(x)
        x = layers.MaxPooling2D()(x)
    x = _block(x, width << depth, recompute)
    for level in reversed(range(depth)):
        x = layers.UpSampling2D()(layers.Conv2D(width << level, 1)(x))
        x = _block(layers.Add()([x, kept[level]]), width << level, recompute)
    change = layers.Conv2D(len(radar.THRESHOLDS), 1, kernel_initializer="zeros")(x)
    logs = np.log1p(np.array(radar.THRESHOLDS, np.float32))
    advected = layers.Rescaling(_STEEPNESS, -_STEEPNESS * logs)(inputs[..., -1:])
    return keras.Model(inputs, layers.Add()([change, advected]), name="unet")


def _block(x, filters: int, recompute: bool):
    """Some times a convolution, a normalization and a ReLU."""
    made = keras.Sequential(
        [
            layer
            for _ in range(CONVOLUTIONS)
            for layer in (
                layers.Conv2D(filters, 3, padding="same", use_bias=False),
                layers.BatchNormalization(momentum=0.9),
                layers.ReLU(),
            )
        ]
    )
    return (ct.Recompute(made) if recompute else made)(x)


def compiled(model: keras.Model, steps: int) -> keras.Model:
    """Ready to be trained for so many steps."""
    rate = keras.optimizers.schedules.CosineDecay(3e-3, steps)
    model.compile(keras.optimizers.Adam(rate), _loss, jit_compile=False)
    return model


def _loss(truth: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    return tf.nn.sigmoid_cross_entropy_with_logits(truth, logits) * tf.constant(_WEIGHTS)
