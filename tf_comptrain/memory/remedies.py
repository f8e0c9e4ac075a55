"""What a step that ran out of memory holds most of, and what would hold less."""

from __future__ import annotations

import collections
from typing import Any

import tensorflow as tf
from tensorflow import keras

from tf_comptrain.compression.instrumentation import is_compressed
from tf_comptrain.memory.saved import saved_tensors
from tf_comptrain.render.units import format_bytes

_LARGEST = 5


def out_of_memory(model: keras.Model, x: Any, y: Any, samples: int) -> str:
    """The layers that a step of so many samples holds most of for its backward pass, and a remedy.

    Args:
      model: A compiled model.
      x: A batch, tensors, of so many samples or fewer.
      y: Its targets; None for a train step that takes none.
      samples: Of the step that failed.
    """
    times = samples / int(tf.nest.flatten(x)[0].shape[0])
    held: collections.Counter[str] = collections.Counter()
    for row in saved_tensors(model, x, y):
        held[row.layer or row.op] += round(times * row.bytes)
    largest = ", ".join(
        f"{layer} ({format_bytes(size)})" for layer, size in held.most_common(_LARGEST) if size
    )
    remedy = (
        "`compress_model(model, memory=...)` plans a step within a limit."
        if is_compressed(model)
        else "`compress_model(model)` holds less."
    )
    return (
        f"A step of {samples} samples holds about {format_bytes(held.total())} for its backward pass, most of it of "
        f"{largest}. {remedy}"
    )
