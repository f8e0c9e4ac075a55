"""One variant of `bench step`, in a process of its own: one measured step for each line of stdin.

Replies are JSON objects, a line each: {"saved_bytes": ..., "peak_bytes": ..., "planned_bytes": ...} when
ready, the peak being that of the first two steps, the plan that of XLA's compiler where it compiles the
step, else null; then {"peak_bytes": ..., "step_s": ...} for a line "step", and {"predicted_bytes": ...}
for "predict".
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras, memory
from tf_comptrain.cli import model_source, options
from tf_comptrain.cli.bench import LABELS
from tf_comptrain.cli.model_source import Loaded
from tf_comptrain.model_planning import compress_model

VARIANTS = tuple(LABELS)
_WARM_UP_STEPS = 2


def fused_batch_norm(layer: keras.layers.Layer) -> str:
    """Storage of the "fused_bn" variant: plain Keras, but with TensorFlow's fused batch normalization."""
    return "fused" if isinstance(layer, keras.layers.BatchNormalization) else "keep"


@functools.lru_cache(maxsize=1)
def load(source: str, image: int, loss: str | None) -> Loaded:
    """`model_source.load`, which a process calls once: model and batch come from the same."""
    return model_source.load(source, image, loss)


def build(
    source: str,
    image: int,
    loss: str | None,
    variant: str = "plain",
    jit_compile: bool = False,
    **how: Any,
) -> keras.Model:
    """The source's model, compiled, as one of the VARIANTS; `how` is for compress_model."""
    built = load(source, image, loss).model
    compress(built, variant, **how)
    if jit_compile:
        _keras.set_jit_compile(built, True)
    return built


def batch(source: str, image: int, loss: str | None, _: keras.Model, size: int) -> tuple:
    """(x, y) of so many samples for `build`'s model."""
    return load(source, image, loss).batch(size)


def prepare(built: keras.Model, variant: str, jit_compile: bool = False, **how: Any) -> keras.Model:
    """A classifier as one of the VARIANTS, compiled; `how` is for compress_model."""
    compress(built, variant, **how)
    model_source.compile_classifier(built, jit_compile or "auto")
    return built


def compress(built: keras.Model, variant: str, **how: Any) -> None:
    """Makes a model one of the VARIANTS; `how` is for compress_model."""
    if variant == "fused_bn":
        compress_model(built, storage=fused_batch_norm, check=False)
    elif variant == "compressed":
        compress_model(built, check=False, **how)


def images(image: int, batch: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Random images with random labels."""
    random = np.random.default_rng(0)
    x = tf.constant(random.uniform(size=(batch, image, image, 3)).astype("float32"))
    return x, tf.constant(random.integers(model_source.CLASSES, size=batch).astype("int32"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_to_worker(parser)
    parser.add_argument("--variant", choices=VARIANTS, required=True)
    options.add_compression(parser)
    options.add_jit_compile(parser)
    args = parser.parse_args()
    source = (args.model, args.image, args.loss)
    how = {"jit_compile": args.jit_compile, "codec": args.codec, "storage": args.storage}
    serve(lambda: (build(*source, args.variant, **how), *load(*source).batch(args.batch)))


def serve(make: Callable[[], tuple[keras.Model, Any, Any]]) -> None:
    """Answers on stdout what is asked for on stdin, with the model and the batch (x, y) that `make` returns."""
    # Replies go to the real stdout; whatever else prints goes to stderr.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    built, x, y = make()
    step = _keras.train_step_runner(built, x, y)
    first = [memory.measure_call(step) for _ in range(_WARM_UP_STEPS)]
    _, resting, _ = first[-1]  # with what the first step makes and leaves: the optimizer's slots
    peak_bytes = max(over + rest for over, rest, _ in first) - resting
    ready = {
        "saved_bytes": memory.saved_bytes(built, x, y),
        "peak_bytes": peak_bytes,
        "planned_bytes": memory.memory_analysis(built, x, y).temporary_bytes
        if _keras.jit_compile(built)
        else None,
    }
    print(json.dumps(ready), file=replies)
    for line in sys.stdin:
        if line.strip() == "predict":
            predicted_bytes = memory.predict_peak(built, len(x), x, y)
            print(json.dumps({"predicted_bytes": predicted_bytes}), file=replies)
            continue
        peak_bytes, _, step_s = memory.measure_call(step)
        print(json.dumps({"peak_bytes": peak_bytes, "step_s": step_s}), file=replies)


if __name__ == "__main__":
    main()
