"""One training step of one batch size in a child process: its memory, or how it ended."""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import signal
import tempfile
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.compression.model import compress_model
from tf_comptrain.memory import counters, remedies
from tf_comptrain.memory.analysis import analysis_of_step
from tf_comptrain.memory.batches import batch_of, random_batch
from tf_comptrain.memory.counters import device
from tf_comptrain.memory.memory_limit import limit, refuse_above
from tf_comptrain.processes import name_of_signal

OK = "ok"
OUT_OF_MEMORY = "out of memory"
_FAILED = "failed"
# How an allocator that cannot give ends a process: a crash inside a kernel, the system's
# out-of-memory killer, std::bad_alloc.
_FATAL_SIGNALS = (signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT)
_STEPS = 2

Build = str | Callable[[], keras.Model]
Compression = bool | str | Callable[[keras.Model], Any]


class Trial(NamedTuple):
    """One batch size tried.

    Attributes:
      batch: Samples.
      outcome: "ok" or "out of memory".
      total_bytes: The allocator's peak in all, weights and batch included; 0 where the step failed
        or this TensorFlow build does not count. Under XLA and a limit by the compiler's plan.
      detail: How a step that failed ended.
    """

    batch: int
    outcome: str
    total_bytes: int
    detail: str = ""


class TrialError(RuntimeError):
    """The child process failed for another reason than memory."""


class Job(NamedTuple):
    """What a child process is to do, in a form that reaches it."""

    build: Build
    batch: int
    compress: Compression
    limit_bytes: int | None
    make_batch: str | Callable[[keras.Model, int], tuple] | None


def run_trial(job: Job, timeout_s: float | None = None) -> Trial:
    """Runs `job` in a child process of its own.

    A step that raises ResourceExhaustedError, and a process that SIGSEGV, SIGKILL or SIGABRT ends,
    are out of memory.

    Raises:
      TrialError: Anything else went wrong; the message ends with the child's.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.NamedTemporaryFile("r", suffix=".log", errors="replace") as messages:
        child = context.Process(target=_child, args=(job, sender, messages.name), daemon=True)
        child.start()
        sender.close()
        answer: Any = (_FAILED, 0, "interrupted")
        try:
            answer = (
                receiver.recv() if receiver.poll(timeout_s) else (_FAILED, 0, f"no answer in {timeout_s} s")
            )
        except EOFError:
            answer = None
        finally:
            if answer is None:
                child.join()
            elif answer[0] == _FAILED:
                child.kill()
            child.join()
            receiver.close()
        said = "".join(messages.readlines()[-15:])
    if answer is None:
        status = child.exitcode or 0
        name = name_of_signal(-status) if status < 0 else f"status {status}"
        if -status not in _FATAL_SIGNALS:
            raise TrialError(
                f"{said}\nThe trial of batch {job.batch} ended with {name} (its messages are above). A script needs "
                'the call below `if __name__ == "__main__":`, since the child imports the script.'
            )
        answer = (OUT_OF_MEMORY, 0, f"the process was ended by {name}")
    outcome, total_bytes, detail = answer
    if outcome == _FAILED:
        raise TrialError(f"{said}\nThe trial of batch {job.batch} failed: {detail}")
    return Trial(job.batch, outcome, total_bytes, detail)


def _child(job: Job, sender: Any, messages: str) -> None:
    log = os.open(messages, os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        sender.send(_try(job))
    except Exception as error:  # whatever the user's function raises is for the parent to show
        traceback.print_exc()
        sender.send(
            (_FAILED, 0, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
        )
    finally:
        sender.close()


def _try(job: Job) -> tuple[str, int, str]:
    if job.limit_bytes is not None:
        _limit_gpu(job.limit_bytes)
    model = resolve(job.build)()
    if not (isinstance(model, keras.Model) and _keras.is_compiled(model)):
        raise ValueError(f"`build` must return a compiled keras.Model. Received: {model!r}.")
    if job.compress is True:
        compress_model(model)
    elif job.compress:
        resolve(job.compress)(model)
    make_batch = random_batch if job.make_batch is None else resolve(job.make_batch)
    on_cpu = not device().startswith("GPU")
    x, y = batch_of(model, *make_batch(model, job.batch))
    _keras.build_for_step(model, x, y)
    gc.collect()
    counters.reset_peak()
    in_use = counters.bytes_in_use()
    if job.limit_bytes is not None and job.limit_bytes <= in_use:
        return OUT_OF_MEMORY, 0, f"weights and batch alone take {in_use} bytes"
    try:
        if job.limit_bytes is not None and _keras.jit_compile(model):
            return OK, refuse_above(job.limit_bytes, analysis_of_step(model, x, y), model, (x, y)), ""
        if on_cpu and job.limit_bytes is not None:
            with limit(job.limit_bytes), remedies.answered():
                _steps(model, x, y)
        else:
            _steps(model, x, y)
    except tf.errors.ResourceExhaustedError as error:
        return OUT_OF_MEMORY, 0, _reason(error)
    total = counters.peak_bytes()
    if job.limit_bytes is not None and total > job.limit_bytes:
        # Between the last check of the limit and the end of the step.
        return OUT_OF_MEMORY, total, f"the step's peak was {total} bytes"
    return OK, total, ""


def _reason(error: tf.errors.ResourceExhaustedError) -> str:
    """The line of an error's message that says what there was not enough of."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "limit" in line or "OOM" in line), lines[0] if lines else "")


def _steps(model: keras.Model, x: Any, y: Any) -> None:
    step = _keras.train_step_runner(model, x, y)
    for _ in range(_STEPS):
        step()


def _limit_gpu(limit_bytes: int) -> None:
    """A GPU's allocator can be given less than the device has."""
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.set_logical_device_configuration(
            gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=limit_bytes // 2**20)]
        )


def resolve(function: Any) -> Callable:
    """The function that "module:function" names; a function itself."""
    if not isinstance(function, str):
        return function
    module, _, name = function.partition(":")
    if not name:
        raise ValueError(f"A function is named as 'module:function'. Received: {function!r}.")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found
