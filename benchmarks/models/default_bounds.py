"""What the default bounds do: error of the weights' gradients, and saved bytes, with other bounds in their place.

    python benchmarks/models/default_bounds.py --bounds 0.1 0.1 0.2 0.2 0.25 0.25

Bounds come in pairs: of what convolutions and normalizations read, and of what matrix products do, in standard
deviations. One step from the same weights and batch, with and without compression; the error of each weight's gradient
relative to its norm, median over the weights. ResNet50 at 96 px, batch 16; language models as in language_models.py.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import language_models
import numpy as np
import tensorflow as tf
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain import storage

_IMAGES = 16
_MODELS = ("ResNet50", "Gemma", "Llama3")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bounds", type=float, nargs="+", default=[0.1, 0.1, 0.2, 0.2, 0.25, 0.25])
    parser.add_argument("--models", nargs="+", choices=_MODELS, default=_MODELS)
    args = parser.parse_args()
    print(
        "| network | convolutions, normalizations | products | error of the gradient | plain / saved bytes |"
    )
    print("|---|---|---|---|---|")
    for name in args.models:
        for convolutions, products in zip(args.bounds[::2], args.bounds[1::2]):
            error, ratio = measured(name, convolutions, products)
            print(f"| {name} | {convolutions} | {products} | {error:.1%} | {ratio:.1f} |", flush=True)


def measured(name: str, convolutions: float, products: float) -> tuple[float, float]:
    """Median error, and plain / compressed saved bytes."""
    storage.DEFAULT_BOUNDS.update(
        convolution=ct.ErrorBound(convolutions),
        norm=ct.ErrorBound(convolutions),
        linear=ct.ErrorBound(products),
    )
    keras.utils.set_random_seed(0)
    model, x, y = images() if name == "ResNet50" else passages(name)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=False)
    x, y = tf.nest.map_structure(tf.constant, (x, y))
    plain, plain_bytes = language_models.gradients(model, x, y), ct.memory.saved_bytes(model, x, y)
    ct.compress_model(model)
    ours = language_models.gradients(model, x, y)
    return language_models.errors(ours, plain)[0], plain_bytes / ct.memory.saved_bytes(model, x, y)


def images() -> tuple:
    model = keras.applications.ResNet50(
        weights=None, input_shape=(96, 96, 3), classes=10, classifier_activation=None
    )
    random = np.random.default_rng(0)
    return (
        model,
        random.uniform(size=(_IMAGES, 96, 96, 3)).astype("float32"),
        random.integers(10, size=_IMAGES),
    )


def passages(name: str) -> tuple:
    model, x, y = language_models.make(name, lora=False)
    first = len(y) // 6
    return model, *tf.nest.map_structure(lambda part: part[:first], (x, y))


if __name__ == "__main__":
    main()
