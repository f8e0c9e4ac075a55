"""One way to train a model, measured in a process of its own; see `estimate`.

Prints a JSON object: {"failed": why}, with "is_source_error" where the model cannot be made, or

{"line": [[batch, total_bytes], ...], "total_bytes": ..., "resting_bytes": ..., "step_s": ...,
 "room_bytes": ...}

where "line" is what two batches take, and the others are of the batch that was asked for, null where it did
not run.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras, memory, model_planning
from tf_comptrain.cli import model_source, options
from tf_comptrain.cli.estimate import ACCUMULATED, COMPRESSED, MIXED, PLANNED, REMAT, WAYS
from tf_comptrain.cli.model_source import Loaded
from tf_comptrain.memory import counters
from tf_comptrain.memory.analysis import analysis_of_step
from tf_comptrain.memory.max_batch import device_memory

PARTS = 4  # of a batch whose gradients are accumulated
_STEPS = 12  # the executor orders operations anew in each, so that the highest shows late
_ENOUGH_S = 12.0  # of timed steps
_NOT_RUN: dict[str, Any] = {"total_bytes": None, "resting_bytes": None, "step_s": None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_to_worker(parser)
    parser.add_argument("--way", choices=WAYS, required=True)
    parser.add_argument("--xla", action="store_true")
    parser.add_argument("--limit", type=int, default=0, help="of a planned model")
    args = parser.parse_args()
    # The answer goes to the real stdout; whatever else prints goes to stderr.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        found = _measured(args)
    except options.SourceError as error:
        found = {"failed": str(error), "is_source_error": True}
    except (ValueError, TypeError, RuntimeError, tf.errors.OpError) as error:
        print(error, file=sys.stderr)
        found = {"failed": _reason(error)}
    print(json.dumps(found), file=answers)


def _reason(error: Exception) -> str:
    """The first line of a message that says what is wrong; Keras puts one before it, and colours."""
    lines = [re.sub(r"\x1b\[\d+m", "", line).strip() for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith("Exception encountered when calling")]
    return said[0][:200] if said else repr(error)


def _measured(args: argparse.Namespace) -> dict[str, Any]:
    parts = PARTS if args.way == ACCUMULATED else 1
    if args.batch % parts:
        return {"failed": f"a batch of {args.batch} cannot be made of {parts} equal parts"}
    with _made_in(args.way):
        loaded = model_source.load(args.model, args.image, args.loss)
    model = loaded.model
    _keras.set_jit_compile(model, args.xla)
    if args.way == ACCUMULATED:
        if not hasattr(model.optimizer, "gradient_accumulation_steps"):
            return {"failed": "the optimizer accumulates no gradients"}
        model.optimizer.gradient_accumulation_steps = parts
    if args.way == PLANNED:
        model_planning.compress_model(model, memory=args.limit, batch_size=args.batch)
    elif args.way == COMPRESSED:
        model_planning.compress_model(model)
    batch, room = args.batch // parts, device_memory()
    found = _under_xla(loaded, batch, parts, room) if args.xla else _on_executor(loaded, batch, parts, room)
    found["line"] = [(size * parts, total) for size, total in found["line"]]
    if found["step_s"] is not None:
        found["step_s"] *= parts
    return {**found, "room_bytes": room}


def _on_executor(loaded: Loaded, batch: int, parts: int, room: int | None) -> dict[str, Any]:
    """A batch that may not fit is not run: smaller ones say what it would take."""
    line: list[tuple[int, int]] = []
    for half in (batch // 2, batch // 4):
        if half:
            line.insert(0, (half, _run(loaded, half, parts, timed=False)["total_bytes"]))
        if not half or room is None or _most(loaded, line[-1], batch) <= room:
            found = _run(loaded, batch, parts)
            return {"line": [*line, (batch, found["total_bytes"])], **found}
    return {"line": line, **_NOT_RUN}


def _under_xla(loaded: Loaded, batch: int, parts: int, room: int | None) -> dict[str, Any]:
    """The compiler plans a step's memory; the allocator may round it up, so the line goes through plans."""
    x, y = loaded.batch(1)
    _keras.build_for_step(loaded.model, x, y)
    sizes = [size for size in (batch // 2, batch) if size]
    line = [(size, analysis_of_step(loaded.model, x, y, size).total_bytes) for size in sizes]
    runs = room is None or line[-1][1] <= room
    return {"line": line, **(_run(loaded, batch, parts) if runs else _NOT_RUN)}


@contextlib.contextmanager
def _made_in(way: str) -> Iterator[None]:
    """How a model is built so that it trains that way."""
    if way == REMAT:
        with keras.RematScope(mode="full"):
            yield
    elif way == MIXED:
        keras.config.set_dtype_policy(_mixed_policy())
        yield
    else:
        yield


def _mixed_policy() -> str:
    """bfloat16 where the device computes in it; that keeps float32's range and needs no loss scaling."""
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return "mixed_bfloat16"
    capability = tf.config.experimental.get_device_details(gpus[0]).get("compute_capability", (0, 0))
    return "mixed_bfloat16" if capability >= (8, 0) else "mixed_float16"


def _most(loaded: Loaded, point: tuple[int, int], batch: int) -> int:
    """At most what a larger batch takes than that of a point: all but the weights grows with it."""
    small, total_bytes = point
    weights = _keras.bytes_of(*loaded.model.weights)
    return weights + (total_bytes - weights) * batch // small


def _run(loaded: Loaded, batch: int, parts: int, timed: bool = True) -> dict[str, Any]:
    """Trains the first steps: the allocator's highest, what is in use after them, and seconds a step."""
    x, y = loaded.batch(batch)
    step = _keras.train_step_runner(loaded.model, x, y)
    gc.collect()
    counters.reset_peak()
    for _ in range(parts):
        step()
    seconds: list[float] = []
    while timed and len(seconds) < _STEPS and sum(seconds) < _ENOUGH_S:
        memory.synchronize()
        start = time.perf_counter()
        step()
        memory.synchronize()
        seconds.append(time.perf_counter() - start)
    return {
        "total_bytes": counters.peak_bytes(),
        "resting_bytes": counters.bytes_in_use(),
        "step_s": statistics.median(seconds) if timed else None,
    }


if __name__ == "__main__":
    main()
