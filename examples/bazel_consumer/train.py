"""Trains a small network with its saved activations compressed, from a Bazel target."""

import keras
import numpy as np

import tf_comptrain as ct


def main():
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(1).normal(size=(256, 16, 16, 3)).astype("float32")
    y = (x.mean(axis=(1, 2, 3)) > 0).astype("int32")
    model = keras.Sequential(
        [
            keras.layers.Input((16, 16, 3)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(2),
        ]
    )
    print(ct.compress_model(model))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses = model.fit(x, y, batch_size=32, epochs=3, verbose=2).history["loss"]
    if not losses[-1] < losses[0]:
        raise SystemExit(f"the loss did not fall: {losses}")


if __name__ == "__main__":
    main()
