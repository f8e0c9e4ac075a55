"""The largest batch that fits: predicted from two small steps, then confirmed."""

from __future__ import annotations

import dataclasses
import os
import pickle
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import arguments
from tf_comptrain.memory.trial import OK, OUT_OF_MEMORY, Build, Compression, Job, Trial, run_trial
from tf_comptrain.render.units import format_bytes

_FIRST_BATCH = 4
# Small steps go on up to this part of the limit: below, what does not grow with the batch rules, and
# the peak lies elsewhere in the step.
_SMALL = 0.25
_NEAR_SMALL = 0.15
_GROWN = 1.3  # what the batch adds then shows
_BACK_OFF = 0.93  # of a predicted batch that did not fit
_USABLE = 0.9  # of a machine's free memory: other processes live there too


class PeakLine(NamedTuple):
    """A straight line for the allocator's peak, weights and batch included.

    total_bytes(batch) = constant_bytes + batch * sample_bytes
    """

    constant_bytes: float
    sample_bytes: float

    @classmethod
    def through(cls, a: Trial, b: Trial) -> PeakLine:
        slope = (b.total_bytes - a.total_bytes) / (b.batch - a.batch)
        return cls(a.total_bytes - slope * a.batch, slope)

    def total_bytes(self, batch: int) -> int:
        return round(self.constant_bytes + batch * self.sample_bytes)

    def largest_batch(self, limit_bytes: int) -> int | None:
        """None where the peak does not grow with the batch."""
        if self.sample_bytes <= 0:
            return None
        return int((limit_bytes - self.constant_bytes) // self.sample_bytes)


class MaxBatch(NamedTuple):
    """Result of `find_max_batch_size`.

    Attributes:
      batch: The largest batch that ran; 0 where not even the smallest did.
      predicted: What the two small batches predicted; None where they could not be measured.
      limit_bytes: The limit, or the device's memory.
      line: The prediction; None where there was none.
      trials: All that ran, in their order.
    """

    batch: int
    predicted: int | None
    limit_bytes: int | None
    line: PeakLine | None
    trials: tuple[Trial, ...]


def find_max_batch_size(
    build: Build,
    limit_bytes: float | str | None = None,
    start: int = 1,
    max_batch: int = 65536,
    compress: Compression = True,
    make_batch: str | Callable[[keras.Model, int], tuple] | None = None,
    tolerance: float = 0.02,
    timeout_s: float | None = None,
    progress: Callable[[str], Any] | None = print,
) -> MaxBatch:
    """Finds the largest batch whose training step fits into a memory limit or the device's memory.

    Small batches are measured, up to about a quarter of the limit; the straight line through the last
    two predicts the largest that fits,

        batch = (limit - constant) / bytes per sample,

    and trials around the prediction confirm it: after each one that fits the line goes through the
    two largest, after one that does not smaller ones. Operations
    do not run in the same order each time, so neither is the peak the same. Each trial runs two training steps in
    a child process, so that neither a failed step nor a crash inside a kernel touches this one.

    Under XLA and a limit no step runs: a trial compiles the step and reads the compiler's plan, see `memory_analysis`.

    Args:
      build: A function without arguments that returns a compiled model: one that a child process can
        import (of a module, not a lambda, nor of a notebook), a `functools.partial` of one, or
        "module:function". In a script, call this below `if __name__ == "__main__":`, for the child
        imports the script too.
      limit_bytes: Bytes of the device allocator in all (see `memory.limit`), also as text, "2GB". None: the
        device's memory; on a CPU, 90% of what the system has free now.
      start: The smallest batch of interest.
      max_batch: The largest of interest.
      compress: True: `compress_model(model)` first. False: the model as built. A function of the model,
        importable like `build`: whatever it does to it.
      make_batch: (model, batch size) -> (x, y), importable like `build`; y is None for a train step that takes
        none. None: random data of the model's input shapes.
      tolerance: Stops when the smallest batch known to fail is at most this fraction above the
        largest known to fit. 0: exact.
      timeout_s: For one trial.
      progress: Receives a line for each trial; None: silent.

    Returns:
      A `MaxBatch`.

    Raises:
      ValueError: An argument out of range, or a function that a child process cannot import.
      TrialError: A trial failed for another reason than memory.

    Examples:
      >>> ct.find_max_batch_size("my_project.models:resnet", limit_bytes="2GB").batch
    """
    _check_functions(build=build, compress=compress, make_batch=make_batch)
    start = arguments.whole("start", start)
    max_batch = arguments.whole("max_batch", max_batch, least=start, remedy="Or lower `start`.")
    tolerance = arguments.real("tolerance", tolerance, least=0, below=1)
    given = None if limit_bytes is None else arguments.size_in_bytes("limit_bytes", limit_bytes)
    limit = device_memory() if given is None else given
    # A GPU without a limit ends by itself.
    enforced = given if tf.config.list_physical_devices("GPU") else limit

    def attempt(batch: int) -> Trial:
        job = Job(build, batch, compress, enforced, make_batch)
        return run_trial(job, timeout_s)

    return _BatchSearch(attempt, limit, start, max_batch, tolerance, progress).run()


@dataclasses.dataclass
class _BatchSearch:
    """Brackets the largest batch between one that fits and one that does not."""

    attempt: Callable[[int], Trial]
    limit_bytes: int | None
    start: int
    max_batch: int
    tolerance: float
    progress: Callable[[str], Any] | None

    def __post_init__(self) -> None:
        self._fits = self.start - 1
        self._fails = self.max_batch + 1
        self._trials: list[Trial] = []

    def run(self) -> MaxBatch:
        self._measure_small()
        line = self._line()
        predicted = self._predicted(line)
        if predicted is not None:
            predicted = min(max(predicted, 0), self.max_batch)
            self._say(f"predicted: {predicted}")
        while self._fails - self._fits > self._gap():
            self._try(*self._next())
        batch = self._fits if self._fits >= self.start else 0
        return MaxBatch(batch, predicted, self.limit_bytes, line, tuple(self._trials))

    def _measure_small(self) -> None:
        """Two measured batches, the larger of about `_SMALL` of the limit."""
        batch = min(max(self.start, _FIRST_BATCH), self.max_batch)
        while self._fits < batch < self._fails:
            self._try(batch, "small")
            last = self._trials[-1]
            if last.outcome != OK:
                batch = (self._fits + self._fails) // 2
            elif not last.total_bytes or not self.limit_bytes:
                batch = 2 * last.batch if len(self._trials) == 1 else 0
            else:
                part = last.total_bytes / self.limit_bytes
                grown = last.total_bytes >= _GROWN * self._trials[0].total_bytes > 0
                if grown and part >= _NEAR_SMALL or part >= 1 / 2:
                    return
                # Safe: bytes do not grow faster than the batch.
                batch = min(int(last.batch * max(2.0, _SMALL / part)), self.max_batch)

    def _gap(self) -> int:
        return max(1, int(self.tolerance * self._fits))

    def _next(self) -> tuple[int, str]:
        """The batch to try, inside the bracket: the predicted one, or its middle."""
        fits, fails, gap = self._fits, self._fails, self._gap()
        outcomes = [trial.outcome for trial in self._trials[-2:]]
        predicted = self._predicted(self._line())
        if predicted is None and fails > self.max_batch:
            return min(2 * max(fits, 1), self.max_batch), "doubled"
        if predicted is not None and predicted < fails:
            if predicted > fits or outcomes[-1:] == [OK]:
                # At the least just above what fits, where a failure confirms the end.
                return min(max(predicted, fits + gap), fails - 1), "predicted"
        elif outcomes == [OK, OUT_OF_MEMORY] and int(_BACK_OFF * fails) > fits:
            return int(_BACK_OFF * fails), "a little less"
        middle = round((max(fits, 1) * fails) ** 0.5) if fails > 8 * fits else (fits + fails) // 2
        return min(max(middle, fits + 1), fails - 1), "middle"

    def _predicted(self, line: PeakLine | None) -> int | None:
        if line is None or self.limit_bytes is None:
            return None
        return line.largest_batch(self.limit_bytes)

    def _line(self) -> PeakLine | None:
        """Through the two largest batches that were measured."""
        measured = sorted({t.batch: t for t in self._trials if t.outcome == OK and t.total_bytes}.items())
        if len(measured) < 2:
            return None
        return PeakLine.through(measured[-2][1], measured[-1][1])

    def _try(self, batch: int, why: str) -> None:
        trial = self.attempt(batch)
        self._trials.append(trial)
        if trial.outcome == OK:
            self._fits = max(self._fits, batch)
        else:
            self._fails = min(self._fails, batch)
        used = f", {format_bytes(trial.total_bytes)}" if trial.total_bytes else ""
        detail = f" ({trial.detail})" if trial.detail else ""
        self._say(f"batch {batch} ({why}): {trial.outcome}{used}{detail}")

    def _say(self, line: str) -> None:
        if self.progress is not None:
            self.progress(line)


def device_memory() -> int | None:
    """Bytes that a step can have: 90% of what the system has free, None on a GPU, whose own end tells."""
    if tf.config.list_physical_devices("GPU"):
        return None
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        with open("/proc/meminfo") as file:
            fields = dict(line.split(":") for line in file)
        free = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        pass  # not to be read: free pages, without the caches that would give way
    try:
        with open("/sys/fs/cgroup/memory.max") as maximum, open("/sys/fs/cgroup/memory.current") as used:
            free = min(free, int(maximum.read()) - int(used.read()))
    except (OSError, ValueError):
        pass  # no limit on this group of processes
    return int(_USABLE * free)


def _check_functions(**functions: Any) -> None:
    for name, function in functions.items():
        if isinstance(function, str):
            if not all(function.partition(":")):
                raise ValueError(
                    f"`{name}` must name a function as 'module:function'. Received: {function!r}."
                )
            continue
        if isinstance(function, keras.Model):
            raise ValueError(
                f"`{name}` must be a function that returns a model, since each trial makes its own. Received the model "
                f"{function.name!r}."
            )
        if getattr(function, "__module__", "") == "__main__" and not hasattr(
            sys.modules["__main__"], "__file__"
        ):
            raise ValueError(
                f"`{name}` must be a function that a child process can import. Received: {function!r}, of a notebook "
                "or console: write it to a file (in a notebook: %%writefile models.py) and pass 'models:function'."
            )
        try:
            pickle.dumps(function)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                f"`{name}` must be a function that a child process can import: of a module, not a lambda or "
                f"local function. Received: {function!r} ({error})."
            ) from error
