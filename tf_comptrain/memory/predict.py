"""The peak of a training step at a batch size that has not run, from two small steps."""

from __future__ import annotations

import collections
from typing import Any

import tensorflow as tf
from tensorflow import keras

from tf_comptrain.memory.explain import batch_of, trace_model
from tf_comptrain.memory.trace import Event, Trace

_SMALL_BATCHES = (2, 4)


def predict_peak(model: keras.Model, batch_size: int, x: Any = None, y: Any = None) -> int:
    """Predicts the allocator's peak over the resting level without a step of that batch size.

    Steps of 2 and 4 samples run under the profiler. Each of their buffers is taken to grow by a
    straight line,

        bytes(batch) = bytes(4) + (bytes(4) - bytes(2)) / 2 * (batch - 4),

    and the allocations and releases of the larger step are replayed at the sizes this gives. So the
    peak is found where it lies at `batch_size`, which may be another moment of the step.

    Args:
      model: A compiled Keras model, compressed or not.
      batch_size: Samples a step.
      x: Inputs of at least 4 samples; None: random ones of the model's input shapes.
      y: Their targets; None with x.

    Returns:
      Bytes.

    Raises:
      ValueError: The model is not compiled, `x` is too short, or the model has no input shapes to
        make a random batch from.
      RuntimeError: The profiler runs already, or records no allocations in this TensorFlow build.

    Example:
      >>> ct.memory.predict_peak(model, 256) / 1e9
    """
    small, large = (
        trace_model(model, *_first(count, *batch_of(model, count if x is None else x, y)))
        for count in _SMALL_BATCHES
    )
    return peak_at(batch_size, small, large, _SMALL_BATCHES)


def _first(count: int, x: Any, y: Any) -> tuple:
    length = len(tf.nest.flatten(x)[0])
    if length < count:
        raise ValueError(f"`x` must have at least {max(_SMALL_BATCHES)} samples. Received: {length}.")
    return tf.nest.map_structure(lambda tensor: tensor[:count], (x, y))


def peak_at(batch_size: int, small: Trace, large: Trace, batches: tuple[int, int]) -> int:
    """Replays the trace of the larger of two batches at the sizes that its buffers have at `batch_size`."""
    growth = (batch_size - batches[1]) / (batches[1] - batches[0])
    seen: collections.Counter = collections.Counter()
    sizes_in_small = {_key(event, seen): event.bytes for event in small.events if event.bytes > 0}
    seen.clear()
    alive: dict[int, float] = {}
    level = highest = 0.0
    for event in large.events:
        if event.bytes > 0:
            before = sizes_in_small.get(_key(event, seen), event.bytes)
            size = max(event.bytes + growth * (event.bytes - before), 0.0)
            alive[event.address] = size
            level += size
            highest = max(highest, level)
        else:
            level -= alive.pop(event.address, -event.bytes)
    return round(highest)


def _key(event: Event, seen: collections.Counter) -> tuple[str, str, int]:
    """(operation, region, how manieth of these)."""
    seen[event.op, event.region] += 1
    return event.op, event.region, seen[event.op, event.region]
