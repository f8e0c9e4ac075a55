"""Steps of a model in the ways in which its tensors may be held, timed and under the profiler."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.compression.instrumentation import compressed_models
from tf_comptrain.compression.restored_state import state_restored
from tf_comptrain.memory import counters
from tf_comptrain.memory.measure import measure_calls
from tf_comptrain.memory.trace import Trace, trace_step
from tf_comptrain.storage import Offload, holdings_of

_STEPS = 10  # with the two of warm-up the first twelve, which a limit is promised for


class MeasuredSteps(NamedTuple):
    """Steps of one way to hold tensors.

    Attributes:
      step_s: Seconds of the fastest step, after two of warm-up.
      peak_bytes: Of the allocator over the resting level, the highest of all steps, the first included.
      resting_bytes: Given out when all is put back: an allocator has given the weights other chunks than before.
      graph: Of the step.
      trace: Of one step; None where it was not asked for.
    """

    step_s: float
    peak_bytes: int
    resting_bytes: int
    graph: tf.Graph
    trace: Trace | None


def measure(
    model: keras.Model, x: Any, y: Any, storage: Mapping[str, str | Offload], profile: bool
) -> MeasuredSteps:
    """Steps of a compressed model with storages by operation; the model is left as it was, its traces aside.

    Args:
      model: One that `compress_model` took, compiled.
      x: One batch of inputs, tensors.
      y: Its targets.
      storage: By name of an operation.
      profile: Whether one of the steps runs under the profiler.
    """
    graphs: list[tf.Graph] = []
    with _stored(model, storage), _keras.on_gradients(lambda backward: graphs.append(backward.graph)):
        step = _keras.train_step_runner(model, x, y, copies=True)
        with state_restored(model), _keras.order_kept():
            calls = measure_calls(step, 2 + _STEPS)
            trace = trace_step(_keras.train_step_runner(model, x, y)) if profile else None
    seconds = min(elapsed for _, _, elapsed in calls[2:])  # other work only ever makes a step slower
    # The first step starts without the batch of one before.
    peak = max(peak + resting for peak, resting, _ in calls) - calls[-1][1]
    return MeasuredSteps(seconds, peak, counters.bytes_in_use(), graphs[-1], trace)


@contextlib.contextmanager
def _stored(model: keras.Model, storage: Mapping[str, str | Offload]) -> Iterator[None]:
    """Inside, the model's step is traced with these storages, and afterwards anew."""
    wishes = compressed_models[model].held.wishes
    before = wishes.named, wishes.is_plan
    wishes.named, wishes.is_plan = holdings_of(storage), True
    _keras.forget_traces(model)
    try:
        yield
    finally:
        wishes.named, wishes.is_plan = before
        _keras.forget_traces(model)
