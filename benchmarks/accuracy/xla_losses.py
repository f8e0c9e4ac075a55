"""Losses of 200 steps compiled by XLA beside those of the executor, on the same images in the same order.

    python benchmarks/accuracy/xla_losses.py

Plain Keras shows what another order of additions makes of the same training. Real images: the shipped part of
Fashion-MNIST.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow import keras

import tf_comptrain as ct

layers = keras.layers
ROOT = Path(__file__).resolve().parents[2]
STEPS, BATCH, TOGETHER = 200, 32, 20


def network() -> keras.Model:
    keras.utils.set_random_seed(0)
    x = image = keras.Input((28, 28, 1))
    for filters, strides in ((16, 1), (32, 2), (32, 1)):
        x = layers.Conv2D(filters, 3, strides, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    return keras.Model(image, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


class _Losses(keras.callbacks.Callback):
    """Of each step; Keras' logs are the means so far."""

    def __init__(self) -> None:
        super().__init__()
        self.means: list[float] = []

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self.means.append((logs or {})["loss"])


def losses(compressed: bool, jit: bool, data: tf.data.Dataset) -> np.ndarray:
    model = network()
    if compressed:
        ct.compress_model(model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, jit_compile=jit)
    seen = _Losses()
    model.fit(data, verbose=0, callbacks=[seen])
    return np.diff(np.array(seen.means) * np.arange(1, STEPS + 1), prepend=0.0)


def main() -> None:
    sys.path.insert(0, str(ROOT / "examples"))
    import demo_data

    images = demo_data.load(demo_data.SHIPPED.parent, STEPS * BATCH, 1, offline=True)
    data = tf.data.Dataset.from_tensor_slices((images.x, images.y)).batch(BATCH)
    for compressed in (False, True):
        executor, xla = (losses(compressed, jit, data) for jit in (False, True))
        some = np.abs(xla.reshape(-1, TOGETHER).mean(1) / executor.reshape(-1, TOGETHER).mean(1) - 1)
        print(
            f"{'compressed' if compressed else 'plain'}: means of {TOGETHER} steps differ by "
            f"{100 * np.median(some):.1f}% (median), {100 * some.max():.1f}% at most; "
            f"that of {STEPS} by {100 * abs(xla.mean() / executor.mean() - 1):.1f}%"
        )


if __name__ == "__main__":
    main()
