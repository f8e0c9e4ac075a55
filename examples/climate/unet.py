"""A U-Net that says how rain will have changed, and the radar images that it learns from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tensorflow import keras

import tf_comptrain as ct

layers = keras.layers

SHIPPED = Path(__file__).resolve().parent / "data" / "mrms.npz"
CONVOLUTIONS = 3  # of a block
FRAMES = 4  # seen, two minutes apart
AHEAD = 5  # frames from the last one seen to the one forecast: ten minutes
THRESHOLDS = (0.5, 2.0, 8.0)  # mm/h, of rain, moderate rain, heavy rain


def unet(tile: int | None, width: int = 8, depth: int = 3, recompute: bool = False) -> keras.Model:
    """[batch, tile, tile, frames] log rain -> [batch, tile, tile, 1] log rain; begins as persistence.

    Args:
      tile: Width and height, a multiple of 2^depth.
      width: Channels at full resolution, twice as many a level down.
      depth: Levels below full resolution.
      recompute: Hold each block's input alone, and run the block again in the backward pass.
    """
    inputs = keras.Input((tile, tile, FRAMES))
    x, kept = inputs, []
    for level in range(depth):
        x = _block(x, width << level, recompute)
        kept.append(x)
        x = layers.MaxPooling2D()(x)
    x = _block(x, width << depth, recompute)
    for level in reversed(range(depth)):
        x = layers.UpSampling2D()(layers.Conv2D(width << level, 1)(x))
        x = _block(layers.Add()([x, kept[level]]), width << level, recompute)
    change = layers.Conv2D(1, 1, kernel_initializer="zeros")(x)
    return keras.Model(inputs, layers.Add()([change, inputs[..., -1:]]), name="unet")


def _block(x, filters: int, recompute: bool):
    """Three times a convolution, a normalization and a ReLU."""
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


def compiled(model: keras.Model) -> keras.Model:
    model.compile(keras.optimizers.Adam(3e-3), "mse", jit_compile=False)
    return model


def load(tile: int, file: Path = SHIPPED) -> tuple:
    """((x, y), (x_test, y_test)): log(1 + mm/h), of tiles side by side, at all times."""
    with np.load(file, allow_pickle=False) as arrays:
        return tuple(_samples(arrays[part], tile) for part in ("train", "test"))


def _samples(tenths: np.ndarray, tile: int) -> tuple[np.ndarray, np.ndarray]:
    logs = np.log1p(np.where(tenths == 65535, 0, tenths).astype(np.float32) * 0.1)
    count, height, width = logs.shape
    x, y = [], []
    for start in range(count - FRAMES - AHEAD + 1):
        seen, coming = logs[start : start + FRAMES], logs[start + FRAMES - 1 + AHEAD]
        for top in range(0, height - tile + 1, tile):
            for left in range(0, width - tile + 1, tile):
                place = np.s_[top : top + tile, left : left + tile]
                x.append(np.moveaxis(seen[(slice(None), *place)], 0, -1))
                y.append(coming[place][..., None])
    return np.stack(x), np.stack(y)


def scores(forecast: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """RMSE in mm/h and IoU at each threshold, of log rain."""
    rain, there = np.expm1(np.maximum(forecast, 0)), np.expm1(truth)
    found = {"RMSE, mm/h": float(np.sqrt(np.mean((rain - there) ** 2)))}
    for threshold in THRESHOLDS:
        ours, theirs = rain >= threshold, there >= threshold
        found[f"IoU {threshold:g} mm/h"] = float((ours & theirs).sum() / max((ours | theirs).sum(), 1))
    return found
