"""What a step that ran out of memory holds most of, and what would hold less."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import tensorflow as tf
from tensorflow import keras

from tf_comptrain.compression.instrumentation import is_compressed
from tf_comptrain.memory import counters
from tf_comptrain.memory.saved import saved_tensors
from tf_comptrain.render.units import format_bytes

_LARGEST = 5
_is_answered: ContextVar[bool] = ContextVar("comptrain_out_of_memory_is_answered", default=False)


@contextlib.contextmanager
def answered() -> Iterator[None]:
    """Inside, the caller answers a step that runs out of memory, and `explained` adds nothing."""
    token = _is_answered.set(True)
    try:
        yield
    finally:
        _is_answered.reset(token)


@contextlib.contextmanager
def explained(model: keras.Model, x: Any, y: Any) -> Iterator[None]:
    """Adds what `out_of_memory` says to the error of a step on a batch that runs out of memory."""
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        if _is_answered.get():
            raise
        said = ""
        with contextlib.suppress(Exception):  # whatever the batch is, the step's own error is raised
            samples = int(tf.nest.flatten(x)[0].shape[0])
            said = out_of_memory(model, lambda count: _first(count, x, y), samples)
        if not said:
            raise
        raise type(error)(error.node_def, error.op, f"{error.message}\n{said}") from error


def _first(count: int, x: Any, y: Any) -> tuple[Any, Any]:
    return tf.nest.map_structure(lambda part: part if part is None else part[:count], (x, y))


def out_of_memory(model: keras.Model, batch: Callable[[int], tuple[Any, Any]], samples: int) -> str:
    """The layers that a step of so many samples holds most of for its backward pass, and a remedy.

    Where sizes are known at run time only, a step runs: of fewer samples where these are still too many.

    Args:
      model: A compiled model.
      batch: (count) -> that many samples and their targets, tensors; targets are None for a train step that takes
        none.
      samples: Of the step that failed.

    Returns:
      Three sentences; "" where nothing can be said.
    """
    for count in (samples, samples // 8, 1):
        with contextlib.suppress(tf.errors.OpError, ValueError):
            return _sentences(model, *batch(max(count, 1)), samples)
    return ""


def _sentences(model: keras.Model, x: Any, y: Any, samples: int) -> str:
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
        f"A step of {samples} sample{'s' * (samples > 1)} holds about {format_bytes(held.total())} for its backward "
        f"pass, most of it of {largest}. {remedy} Between steps {format_bytes(counters.bytes_in_use())} are in use."
    )
