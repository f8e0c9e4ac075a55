"""Measured memory of a training step: the allocator's peak, and what crosses into the backward pass."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras, arguments
from tf_comptrain.compression.restored_state import state_restored
from tf_comptrain.memory import counters
from tf_comptrain.memory.analysis import memory_analysis
from tf_comptrain.memory.batches import batch_of
from tf_comptrain.memory.saved import saved_bytes

_LONG_S = 2.0  # calls this slow are timed three times only


class StepMemory(NamedTuple):
    """What a training step takes.

    Attributes:
      peak_bytes: Peak of the device allocator during a step, over the resting level; 0 where this
        TensorFlow build does not count.
      resting_bytes: Allocator bytes between steps: weights, optimizer slots, the batch.
      step_s: Median seconds a step.
      saved_bytes: What is held between forward and backward pass, as the model is now. Under XLA tensors of the
        graph: those that it fuses or makes again are among them.
      saved_plain_bytes: Plain bytes: what the step in plain Keras holds there.
      planned_bytes: Under XLA the step's temporary memory by the compiler's plan, which the allocator may
        round up; None on TensorFlow's executor.
    """

    peak_bytes: int
    resting_bytes: int
    step_s: float
    saved_bytes: int
    saved_plain_bytes: int
    planned_bytes: int | None = None


def synchronize() -> None:
    """Waits for the work of every device: a GPU's operations return when they are enqueued.

    To be called before each of the two readings of the clock that time a step. Eager mode only.

    Examples:
      >>> model.train_on_batch(x, y)
      >>> ct.memory.synchronize()
    """
    tf.test.experimental.sync_devices()


def measure_step(model: keras.Model, x: tf.Tensor, y: Any = None, steps: int = 3) -> StepMemory:
    """Measures real training steps of a compiled model after a warm-up; the model is left as it was.

    The step is the model's own, `train_step`, whatever it calls. Weights that its first step makes are there after it.

    Args:
      model: A compiled Keras model, compressed or not.
      x: One batch of inputs (arrays or tensors, [batch, ...], or a structure of them).
      y: Its targets; None for a model with a `train_step` of its own that takes none.
      steps: Steps measured, after two of warm-up.

    Returns:
      A `StepMemory`. Peak and saved bytes are the largest of the measured steps.

    Raises:
      ValueError: The model is not compiled, `y` is missing, or `steps` is not at least 1.

    Examples:
      >>> ct.memory.measure_step(model, images[:64], labels[:64]).peak_bytes
    """
    steps = arguments.whole("steps", steps)
    x, y = batch_of(model, x, y)
    peak, resting, seconds = measure_steps(model, x, y, steps)
    saved = saved_bytes(model, x, y)
    with _keras.plain_scope():
        saved_plain = saved_bytes(model, x, y)
    planned = memory_analysis(model, x, y).temporary_bytes if _keras.jit_compile(model) else None
    return StepMemory(peak, resting, seconds, saved, saved_plain, planned)


def measure_steps(
    model: keras.Model, x: Any, y: Any, steps: int, copies: bool = False
) -> tuple[int, int, float]:
    """(highest peak over resting, resting, median seconds) of so many steps after two; the model is left as it was.

    Args:
      model: The model.
      x: One batch of inputs, tensors.
      y: Its targets.
      steps: How many.
      copies: Whether each has a batch of its own, as in `fit`.
    """
    step = _keras.train_step_runner(model, x, y, copies)
    with state_restored(model):
        for _ in range(2):
            step()
        measured = measure_calls(step, steps)
    peaks, restings, seconds = zip(*measured)
    return max(peaks), restings[-1], statistics.median(seconds)


def measure_call(step: Any) -> tuple[int, int, float]:
    """(peak over resting, resting, seconds) of one call of `step`; no warm-up."""
    return _measured_call(step, generation=2)


def measure_calls(step: Any, count: int) -> list[tuple[int, int, float]]:
    """`measure_call` so many times.

    A collection of everything takes as long as many a step: it is made before the first call, and after what that has
    traced. Later calls leave young objects only.
    """
    return [_measured_call(step, generation=2 if number < 2 else 1) for number in range(count)]


def _measured_call(step: Any, generation: int) -> tuple[int, int, float]:
    gc.collect(generation)
    counters.reset_peak()
    resting = counters.bytes_in_use()
    synchronize()
    start = time.perf_counter()
    step()
    synchronize()
    elapsed = time.perf_counter() - start
    return max(counters.peak_bytes() - resting, 0), resting, elapsed


def timed_call(
    call: Callable[[], Any], repeats: int, of: Callable[[list[float]], float] = statistics.median
) -> tuple[Any, float]:
    """(result, seconds) of a call after one to warm up; three are enough of a call that takes long.

    Args:
      call: What is timed.
      repeats: How often.
      of: From the seconds of all calls to those that count.
    """
    seconds: list[float] = []
    result = call()
    while len(seconds) < repeats and not (len(seconds) >= 3 and sum(seconds) > _LONG_S):
        synchronize()
        start = time.perf_counter()
        result = call()
        synchronize()
        seconds.append(max(time.perf_counter() - start, 1e-9))
    return result, of(seconds)
