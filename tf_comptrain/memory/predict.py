"""The peak of a training step at a batch size that has not run, from two small steps."""

from __future__ import annotations

import collections
import statistics
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras, arguments
from tf_comptrain.memory.allocator_model import BestFitHeap
from tf_comptrain.memory.analysis import analysis_of_step
from tf_comptrain.memory.batches import batch_of
from tf_comptrain.memory.explain import trace_model, trace_steps
from tf_comptrain.memory.saved import SavedTensor, saved_tensors
from tf_comptrain.memory.trace import AllocationEvent, NothingRecordedError, Trace

# Smaller ones would leave streams below the 256 kB from which on TensorFlow records a buffer.
_SMALL_BATCHES = (4, 8)
_LEAST_RECORDED = 256 << 10  # bytes
_TRACES = 3  # no two steps run in the same order, and so have the same peak
_WARM_UP_STEPS, _STEPS = 2, 3  # replayed, as measure_step takes them


def predict_peak(model: keras.Model, batch_size: int, x: Any = None, y: Any = None) -> int:
    """Predicts the allocator's peak over the resting level without a step of that batch size.

    Steps of 4 and 8 samples run under the profiler. Each of their buffers is taken to grow by a
    straight line,

        bytes(batch) = bytes(8) + (bytes(8) - bytes(4)) / 4 * (batch - 8),

    and the allocations and releases of the larger step are replayed at the sizes this gives, in an
    allocator that works as TensorFlow's. So the peak is found where it lies at `batch_size`, which
    may be another moment of the step. Like `measure_step`, the replay takes the highest of three steps
    after two; of three traces of the larger batch the median counts. TensorFlow records no buffers
    under 256 kB: those that are held for the backward pass are taken from `saved_tensors`, and to grow
    with the batch.

    Of a step that XLA compiles it is the temporary memory of the compiler's plan, see `memory_analysis`.

    Args:
      model: A compiled Keras model, compressed or not.
      batch_size: Samples a step.
      x: Inputs of at least 8 samples; None: random ones of the model's input shapes.
      y: Their targets; None without x, and for a model with a `train_step` of its own that takes none.

    Returns:
      Bytes.

    Raises:
      ValueError: The model is not compiled, `batch_size` is no whole number of at least 1, `x` is too
        short, or the model has no input shapes to make a random batch from.
      RuntimeError: The profiler runs already, or records no allocations: of too small a model, or in this
        TensorFlow build.

    Examples:
      >>> ct.memory.predict_peak(model, 256) / 1e9
    """
    batch_size = arguments.whole("batch_size", batch_size, remedy="Data goes into x and y.")
    if _keras.jit_compile(model):
        given_x, given_y = batch_of(model, 1 if x is None else x, y)
        return analysis_of_step(model, given_x, given_y, batch_size).temporary_bytes
    (small_x, small_y), (large_x, large_y) = (
        _first(count, *batch_of(model, count if x is None else x, y)) for count in _SMALL_BATCHES
    )
    try:
        small = trace_model(model, small_x, small_y)
        traces = trace_steps(model, large_x, large_y, _TRACES)
    except NothingRecordedError:
        raise NothingRecordedError(
            f"Steps of {' or '.join(map(str, _SMALL_BATCHES))} samples have no buffer of 256 kB, from which on "
            f"TensorFlow records them, so that nothing can be predicted. Model {model.name!r} is small: measure a "
            "batch of the size itself, memory.measure_step(model, x, y). If that reads 0, this build counts none."
        ) from None
    saved = saved_tensors(model, large_x, large_y)
    peaks = [peak_at(batch_size, small, large, _SMALL_BATCHES, saved) for large in traces]
    return statistics.median_low(peaks)


def _first(count: int, x: Any, y: Any) -> tuple:
    length = len(tf.nest.flatten(x)[0])
    if length < count:
        raise ValueError(f"`x` must have at least {max(_SMALL_BATCHES)} samples. Received: {length}.")
    return tf.nest.map_structure(lambda tensor: None if tensor is None else tensor[:count], (x, y))


def peak_at(
    batch_size: int,
    small: Trace,
    large: Trace,
    batches: tuple[int, int],
    saved: Sequence[SavedTensor] = (),
) -> int:
    """Replays the trace of the larger of two batches at the sizes that its buffers have at `batch_size`.

    Args:
      batch_size: Samples.
      small: Of a step of batches[0] samples.
      large: Of a step of batches[1] samples.
      batches: Samples of the two.
      saved: What the larger step holds for its backward pass, in the order in which it is made.
    """
    growth = (batch_size - batches[1]) / (batches[1] - batches[0])
    shrunk = batches[0] / batches[1]
    seen: collections.Counter = collections.Counter()
    in_small = {_key(event, seen): event.requested_bytes for event in small.events if event.bytes > 0}
    seen.clear()
    acts: list[tuple[int, int]] = []  # (address, bytes asked for; 0 for a release)
    before_step: dict[int, int] = {}  # what was there before and is released in the step
    known: set[int] = set()
    unrecorded = _Unrecorded(large, saved, batch_size / batches[1])
    acts += unrecorded.made_after(None)
    for index, event in enumerate(large.events):
        size = event.requested_bytes
        if event.bytes > 0:
            # One that is missing was too small to be recorded.
            less = in_small.get(_key(event, seen), round(size * shrunk))
            size = max(round(size + growth * (size - less)), 1)
            known.add(event.address)
            acts.append((event.address, size))
            acts += unrecorded.made_after(index)
        else:
            if event.address not in known:
                before_step[event.address] = size
            known.discard(event.address)
            acts += unrecorded.freed_before(index)
            acts.append((event.address, 0))
    acts += unrecorded.freed_before(None)
    return _replayed(acts, before_step, large.base_bytes)


class _Unrecorded:
    """Saved tensors that are too small to be in a trace, between those that are.

    What is made after another one is freed before it, for the backward pass goes the other way.

    Args:
      trace: Of a step.
      saved: What it saves, in order.
      factor: From the bytes in `saved` to those wanted.
    """

    def __init__(self, trace: Trace, saved: Sequence[SavedTensor], factor: float):
        made, freed = _lifetimes(trace)
        self._made: dict[int | None, list[tuple[int, int]]] = collections.defaultdict(list)
        self._freed: dict[int | None, list[tuple[int, int]]] = collections.defaultdict(list)
        start: int | None = None
        end: int | None = None
        for number, tensor in enumerate(saved):
            if tensor.op in made:
                start = made[tensor.op]
                end = freed.get(start)
            elif tensor.bytes < _LEAST_RECORDED:
                address = -1 - number  # no buffer's
                self._made[start].append((address, max(round(tensor.bytes * factor), 1)))
                self._freed[end].append((address, 0))

    def made_after(self, index: int | None) -> list[tuple[int, int]]:
        """Allocations after that event; None: at the start."""
        return self._made.get(index, [])

    def freed_before(self, index: int | None) -> list[tuple[int, int]]:
        """Releases before that event; None: at the end."""
        return self._freed.get(index, [])


def _lifetimes(trace: Trace) -> tuple[dict[str, int], dict[int, int]]:
    """(operation -> event that made its longest-lived buffer, that event -> the one that freed it)."""
    freed = trace.releases()
    made: dict[str, int] = {}
    end = len(trace.events)
    for index, event in enumerate(trace.events):
        if event.bytes > 0:
            longest = made.get(event.op)
            if longest is None or freed.get(index, end) > freed.get(longest, end):
                made[event.op] = index
    return made, freed


def _key(event: AllocationEvent, seen: collections.Counter) -> tuple[str, str, int]:
    """(operation, region, how manieth of these)."""
    seen[event.op, event.region] += 1
    return event.op, event.region, seen[event.op, event.region]


def _replayed(acts: list[tuple[int, int]], before_step: dict[int, int], base_bytes: int) -> int:
    """The highest level over the resting one in `_STEPS` steps after a warm-up, as `measure_step` has it.

    A heap takes its form in the first steps, and wastes another part of itself in each.
    """
    heap = BestFitHeap()
    heap.allocate(max(base_bytes - sum(before_step.values()), 1))
    # By size, since a step's new value of a variable is the next one's old value.
    resting = collections.defaultdict(list)
    for size in before_step.values():
        resting[size].append(heap.allocate(size))
    peaks = []
    for _ in range(_WARM_UP_STEPS + _STEPS):
        start = highest = heap.used_bytes
        alive: dict[int, tuple[int, int]] = {}
        for address, size in acts:
            if size:
                alive[address] = (size, heap.allocate(size))
                highest = max(highest, heap.used_bytes)
            elif address in alive:
                heap.release(alive.pop(address)[1])
            elif resting[before_step[address]]:
                heap.release(resting[before_step[address]].pop())
        for size, chunk in alive.values():
            resting[size].append(chunk)
        peaks.append(highest - start)
    return max(peaks[_WARM_UP_STEPS:])
