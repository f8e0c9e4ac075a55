"""The measurements of `compare.py` with a given number of threads, in a process of their own.

TensorFlow fixes its threads when it starts, and a process pinned to one core cannot borrow another.
Prints one JSON object a line for each codec and array.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

_LONG_S = 2.0  # calls this slow are timed three times only


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--arrays", required=True, help="npz; NAME and, for its bounds, NAME@eb")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--codecs", nargs="+", required=True)
    args = parser.parse_args()

    # Results go to the real stdout; whatever else prints goes to stderr.
    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    if args.threads == 1:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    import tensorflow as tf
    from contenders import contenders

    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    chosen = contenders()
    with np.load(args.arrays, allow_pickle=False) as file:
        for data in (name for name in file.files if not name.endswith("@eb")):
            x, bounds = file[data], file[f"{data}@eb"].tolist()
            for codec in args.codecs:
                for eb in [0.0] if chosen[codec].lossless else bounds:
                    try:
                        row = measure(chosen[codec].make(x, eb, args.threads), x, args.threads, args.repeats)
                    except Exception as error:  # one library's failure is not the end of the comparison
                        print(f"{codec} on {data}: {type(error).__name__}: {error}", file=sys.stderr)
                        row = None
                    print(json.dumps({"codec": codec, "data": data, "eb": eb, "result": row}), file=results)


def measure(calls: Any, x: np.ndarray, threads: int, repeats: int) -> dict[str, float | None]:
    """Median speeds, in GB of float32 a second; of time on the processor with one thread, else by the clock."""
    clock = time.process_time if threads == 1 else time.perf_counter
    stream, compress_s = _timed(calls.compress, clock, repeats)
    decoded, decompress_s = _timed(lambda: calls.decompress(stream), clock, repeats)
    x_hat = calls.values(decoded).reshape(x.shape)
    zeros = x == 0
    return {
        "ratio": x.nbytes / calls.size(stream),
        "compress_gb_s": x.nbytes / 1e9 / compress_s,
        "decompress_gb_s": x.nbytes / 1e9 / decompress_s,
        "max_error": float(np.max(np.abs(x.astype(np.float64) - x_hat))),
        "zeros_kept": float(np.mean(x_hat[zeros] == 0)) if zeros.any() else None,
    }


def _timed(call: Callable[[], Any], clock: Callable[[], float], repeats: int) -> tuple[Any, float]:
    from tf_comptrain import memory

    seconds: list[float] = []
    result = call()  # warms up
    while len(seconds) < repeats and not (len(seconds) >= 3 and sum(seconds) > _LONG_S):
        memory.synchronize()
        start = clock()
        result = call()
        memory.synchronize()
        seconds.append(max(clock() - start, 1e-9))
    return result, statistics.median(seconds)


if __name__ == "__main__":
    main()
