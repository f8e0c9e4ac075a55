"""Are gradients right in the mean? Their error over single batches, and that of the mean over many.

    python benchmarks/accuracy/bias.py FASHION_MNIST.npz [--networks cnn3-grey resnet8-grey vit-grey] [--batches 64]

Weights do not change. d is the compressed gradient less the plain one of the same batch, all weights
together. The single error is the root mean square of |d| over that of the gradient; the mean error that of
the mean of d over all batches. Without a bias mean / single is 1 / sqrt(batches), 0.125 of 64.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import data
import keras
import networks
import numpy as np
import tensorflow as tf

import tf_comptrain as ct

_BATCH, _SETTLING = 64, 5  # samples a batch; steps until running scales have settled


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("fashion", help="Fashion-MNIST as .npz; see data.load")
    parser.add_argument("--networks", nargs="+", default=["cnn3-grey", "resnet8-grey", "vit-grey"])
    parser.add_argument("--batches", type=int, default=64)
    args = parser.parse_args()
    images = data.load(args.fashion, _BATCH * args.batches, 1)
    x = data.scaled(images.x).reshape(args.batches, _BATCH, *images.x.shape[1:])
    y = images.y.reshape(args.batches, _BATCH)
    print(
        "| network | engine | single error | mean error | mean / single | saved |\n|---|---|---|---|---|---|"
    )
    for name in args.networks:
        for engine in ("executor", "XLA"):
            single, mean, saved = errors(name, engine == "XLA", x, y)
            row = (
                name,
                engine,
                f"{single:.2%}",
                f"{mean:.2%}",
                f"{mean / single:.3f}",
                f"{saved / 1e6:.2f} MB",
            )
            print(f"| {' | '.join(row)} |", flush=True)


def errors(name: str, xla: bool, x: np.ndarray, y: np.ndarray) -> tuple[float, float, int]:
    """(single, mean, bytes saved for the backward pass); the errors over the norm of the gradient."""
    keras.utils.set_random_seed(0)
    model = networks.BUILDERS[name]()
    plain = gradients(model, xla, x, y)
    ct.compress_model(model)
    apart = gradients(model, xla, x, y) - plain
    norm = np.sqrt(np.mean(np.sum(np.square(plain), axis=1)))
    single = np.sqrt(np.mean(np.sum(np.square(apart), axis=1)))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=xla)
    saved = ct.memory.saved_bytes(model, tf.constant(x[0]), tf.constant(y[0]))
    return single / norm, np.linalg.norm(np.mean(apart, axis=0)) / norm, saved


def gradients(model: keras.Model, xla: bool, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of each batch, one row: all weights."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function(autograph=False, jit_compile=xla)
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        weights = [weight.value for weight in model.trainable_variables]
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        return tf.concat([tf.reshape(g, [-1]) for g in tape.gradient(value, weights)], 0)

    for _ in range(_SETTLING):
        step(x[0], y[0])
    return np.stack([step(*batch).numpy() for batch in zip(x, y)]).astype(np.float64)


if __name__ == "__main__":
    main()
