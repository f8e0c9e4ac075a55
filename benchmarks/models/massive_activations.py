"""Gradients of language models whose first token has massive activations, as pretrained ones have.

    python benchmarks/models/massive_activations.py [--models Gemma GPT2 Llama3] [--factors 1 100 1000] [--csv FILE]

keras-hub's models, 4 blocks of width 128, 8 x 64 tokens, begun anew. Two channels of the first token's embedding are
the factor times the standard deviation of all (Sun et al., Massive activations in large language models, 2024).
Weights do not change. Error: of the gradient of all weights, mean over the batches; projection: of the compressed
gradient on the plain one, 1 without a bias.
"""

from __future__ import annotations

import argparse
import csv
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import hub_models
import numpy as np
import tensorflow as tf
from tensorflow import keras

import tf_comptrain as ct

_SIZES = hub_models.Sizes(batch=8, tokens=64, vocabulary=300, width=128, blocks=4)
_FIRST, _MASSIVE = 7, (5, 17)  # the token, and its channels
_BATCHES, _SETTLING = 8, 2  # steps until running scales have settled
_HEADINGS = ("model", "factor", "executor: error", "projection", "XLA: error", "XLA: projection")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["Gemma", "GPT2", "Llama3"])
    parser.add_argument("--factors", nargs="+", type=float, default=[1, 100, 1000])
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    rows = []
    for name in args.models:
        for factor in args.factors:
            found = [errors(name, factor, xla) for xla in (False, True)]
            rows.append([name, f"{factor:g}", *(text for e, p in found for text in (f"{e:.1%}", f"{p:.3f}"))])
            print(f"| {' | '.join(rows[-1])} |", flush=True)
    if args.csv:
        with args.csv.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([_HEADINGS, *rows])


def errors(name: str, factor: float, xla: bool) -> tuple[float, float]:
    """(error, projection) over the norm of the gradient."""
    plain, compressed = (_gradients(name, factor, xla, compress) for compress in (False, True))
    norms = np.linalg.norm(plain, axis=1)
    error = np.mean(np.linalg.norm(compressed - plain, axis=1) / norms)
    return error, np.sum(compressed * plain) / np.sum(norms**2)


def _gradients(name: str, factor: float, xla: bool, compress: bool) -> np.ndarray:
    """Of each batch, one row: all weights."""
    keras.utils.set_random_seed(0)
    model, x, y = hub_models.language_model(name, _SIZES, 1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=xla)
    table = next(
        w for w in model.trainable_variables if w.shape[0] == _SIZES.vocabulary and "embedding" in w.path
    )
    values = table.numpy()
    values[_FIRST, list(_MASSIVE)] = [factor * values.std(), -factor * values.std()]
    table.assign(values)
    if compress:
        ct.compress_model(model)

    @tf.function(autograph=False, jit_compile=xla)
    def step(x: dict[str, tf.Tensor], y: tf.Tensor) -> tf.Tensor:
        weights = [weight.value for weight in model.trainable_variables]
        with ct.training_scope(), tf.GradientTape() as tape:
            value = loss(y, model(x, training=False))  # without dropout
        gradients = tape.gradient(value, weights, unconnected_gradients="zero")
        return tf.concat([tf.reshape(gradient, [-1]) for gradient in gradients], 0)

    rng, found = np.random.default_rng(0), []
    for _ in range(_SETTLING + _BATCHES):
        tokens = rng.integers(_FIRST + 1, _SIZES.vocabulary, (_SIZES.batch, _SIZES.tokens), "int32")
        tokens[:, 0] = _FIRST
        given = {part: tf.constant(tokens if "token" in part else values) for part, values in x.items()}
        found.append(step(given, tf.constant(rng.integers(0, _SIZES.vocabulary, y.shape))).numpy())
    return np.stack(found[_SETTLING:]).astype(np.float64)


if __name__ == "__main__":
    main()
