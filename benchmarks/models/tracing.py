"""What tracing a training step costs: compressed beside plain.

    python benchmarks/models/tracing.py [--models ResNet50 DenseNet121 Gemma] [--turns 5] [--xla]

Each turn traces the train step of the plain and of the compressed model as `fit` does; CPU seconds, median
of the turns after a first one that is not counted. Nothing runs, and XLA compiles nothing.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import language_models
import tensorflow as tf
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain import _keras

_IMAGE = (4, 64, 64, 3)
_SIZES = language_models.Sizes(4, 64, 500)
_APPLICATIONS = {"ResNet50": keras.applications.ResNet50, "DenseNet121": keras.applications.DenseNet121}
_MODELS = (*_APPLICATIONS, "Gemma")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=_MODELS, default=_MODELS)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--xla", action="store_true")
    args = parser.parse_args()
    print("| network | plain | compressed | compressed / plain |\n|---|---|---|---|")
    for name in args.models:
        ways = [compiled(name, args.xla), compiled(name, args.xla)]
        ct.compress_model(ways[1][0])
        seconds: list[list[float]] = [[], []]
        for _ in range(args.turns + 1):
            for (model, x, y), taken in zip(ways, seconds):
                gc.collect()  # what earlier turns have left
                start = time.process_time()
                _keras.trace_train_step(model, x, y)
                taken.append(time.process_time() - start)
        plain, compressed = (statistics.median(taken[1:]) for taken in seconds)
        assert ct.report(ways[1][0]).rows
        print(f"| {name} | {plain:.2f} s | {compressed:.2f} s | {compressed / plain:.2f} |", flush=True)


def compiled(name: str, xla: bool) -> tuple[keras.Model, Any, Any]:
    """A model and one batch."""
    if name in _APPLICATIONS:
        model = _APPLICATIONS[name](weights=None, input_shape=_IMAGE[1:], classes=10)
        x, y = tf.ones(_IMAGE), tf.zeros(_IMAGE[:1], tf.int64)
        loss: Any = "sparse_categorical_crossentropy"
    else:
        model, x, y = language_models.make(name, _SIZES, lora=False)
        x, y = tf.nest.map_structure(lambda a: tf.constant(a[: _SIZES.batch]), (x, y))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=xla)
    model.optimizer.build(model.trainable_variables)
    return model, x, y


if __name__ == "__main__":
    main()
