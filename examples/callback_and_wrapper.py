"""Two other ways in: a callback that steers bounds and batch size, and the layer wrapper.

python examples/callback_and_wrapper.py
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from tensorflow import keras

import tf_comptrain as ct

layers = keras.layers


def with_callbacks(x: np.ndarray, y: np.ndarray, epochs: int) -> None:
    """Bounds follow the theory, layer by layer; the batch grows into the memory that compression freed."""
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
        ]
    )
    print(ct.compress_model(model))
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    samples = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=1)
    training = ct.AdaptiveTraining(memory="400MB", max_batch=256, interval=10, warmup=5)
    data = ct.elastic_batch(samples, batch_size=32)
    model.fit(data, epochs=epochs, callbacks=[training], shuffle=False, verbose=2)
    for update in list({update.layer: update for update in training.bounds.updates}.values()):
        print(f"{update.layer}: bound {update.bound:.4g}, {update.bound_over_sigma:.3f} of the input's sigma")


def with_wrapper(x: np.ndarray, y: np.ndarray, epochs: int) -> None:
    """Only the wrapped layers are held compressed; the model's file keeps the wrappers."""
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            ct.Compress(layers.Conv2D(16, 3, padding="same", activation="relu")),
            ct.Compress(layers.Conv2D(32, 3, padding="same", activation="relu"), error_bound=0.01),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    model.fit(x, y, batch_size=50, epochs=epochs, verbose=2)
    used = ct.memory.measure_step(model, x[:50], y[:50])
    print(
        f"saved activations: {used.saved_plain_bytes / 1e6:.2f} MB plain, {used.saved_bytes / 1e6:.2f} MB wrapped"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=2000, help="training images (%(default)s)")
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    keras.utils.set_random_seed(1)
    with np.load(Path(__file__).parent / "data" / "fashion_mnist.npz") as file:
        x = file["x_train"][: args.images, ..., None].astype("float32") / 255
        y = file["y_train"][: args.images].astype("int32")
    with_callbacks(x, y, args.epochs)
    with_wrapper(x, y, args.epochs)


if __name__ == "__main__":
    main()
