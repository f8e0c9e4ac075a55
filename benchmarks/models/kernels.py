"""Steps with the one-pass kernels of GELU, layer normalization and dropout beside those with their formulas under XLA.

    python benchmarks/models/kernels.py --out kernels.jsonl

Both steps are compressed and live in one process, one kernel exchanged at a time for its formula and the formula's
gradient, each a `tf.function(jit_compile=True)` of what the kernel reads; they take turns. What each step holds for its
backward pass is measured too: a kernel is one operation, which the pass over the traced step knows and can make again,
and a compiled formula is one that it has to take as it is.
Every pair of network and kernel adds a line to the file; those that are there already are not measured again. The
table is printed from the file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import tensorflow as tf
from nets import NETS

from tf_comptrain import _keras, memory, native

VARIANTS = ("kernel", "formula")
_PHILOX = 1
_WARM_UP_STEPS = 2


def compiled(formula: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """A formula of tensors that XLA compiles, forward and backward: only its arguments are held in between."""

    def gradient(dy: tf.Tensor, *tensors: tf.Tensor) -> list[tf.Tensor | None]:
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            y = formula(*tensors)
        return tape.gradient(y, tensors, dy)

    forward, backward = (tf.function(f, jit_compile=True) for f in (formula, gradient))

    @tf.custom_gradient
    def call(*tensors: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], list[tf.Tensor | None]]]:
        return forward(*tensors), lambda dy: backward(dy, *tensors)

    return call


def gelu(x: tf.Tensor) -> tf.Tensor:
    return compiled(lambda x: tf.nn.gelu(x, approximate=False))(x)


def layer_norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float) -> tuple[tf.Tensor, None]:
    def formula(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
        mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + epsilon) * gamma + beta

    return compiled(formula)(x, gamma, beta), None


def dropout(
    x: tf.Tensor, key: tf.Tensor, counter: tf.Tensor, rate: float, scale: float
) -> tuple[tf.Tensor, None]:
    def formula(x: tf.Tensor) -> tf.Tensor:
        drawn = tf.raw_ops.StatelessRandomUniformV2(shape=x.shape, key=key, counter=counter, alg=_PHILOX)
        return tf.where(drawn >= rate, x * scale, 0.0)

    return compiled(formula)(x), None


FORMULAS: dict[str, Callable[..., Any]] = {"gelu": gelu, "layer_norm": layer_norm, "dropout": dropout}
CASES = [
    ("ViT-S/16", "gelu"),
    ("ViT-S/16", "layer_norm"),
    *(("decoder", kernel) for kernel in FORMULAS),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("kernels.jsonl"))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=15, help="measured pairs of steps")
    options = parser.parse_args()
    for case in CASES:
        if case not in measured(options.out):
            held = {variant: held_bytes(*case, options.batch, variant) for variant in VARIANTS}
            entry = {
                "net": case[0],
                "op": case[1],
                "held_bytes": held,
                **measure(*case, options.batch, options.pairs),
            }
            with options.out.open("a") as file:
                file.write(json.dumps(entry) + "\n")
    print(table(measured(options.out)))
    return 0


def measured(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The file's lines, by network and kernel."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {(entry["net"], entry["op"]): entry for entry in map(json.loads, lines)}


def using(op: str, variant: str) -> contextlib.AbstractContextManager[Any]:
    """Steps that are traced inside have the kernel of an op, or its formula."""
    if variant == "kernel":
        return contextlib.nullcontext()
    return mock.patch.object(native.ops(), f"comptrain_{op}", FORMULAS[op])


def held_bytes(net: str, op: str, batch: int, variant: str) -> int:
    """What a step holds for its backward pass at most, by the allocator."""
    with using(op, variant):
        return memory.measure_step(*NETS[net].make("compressed", batch, None)).saved_bytes


def measure(net: str, op: str, batch: int, pairs: int) -> dict[str, Any]:
    """Seconds of `pairs` steps with the kernel of an op, and with its formula; and what the process ran in them."""
    steps = {}
    for variant in VARIANTS:
        with using(op, variant):
            steps[variant] = step(net, batch)
    seconds: dict[str, list[tuple[float, float]]] = {variant: [] for variant in steps}
    for i in range(pairs):
        for variant in sorted(steps, reverse=bool(i % 2)):
            start_s, start_cpu_s = time.perf_counter(), time.process_time()
            steps[variant]()
            seconds[variant].append((time.perf_counter() - start_s, time.process_time() - start_cpu_s))
    return {"batch": batch, **seconds}


def step(net: str, batch: int) -> Callable[[], Any]:
    """A step of the compressed network, traced and warm."""
    model, x, y = NETS[net].make("compressed", batch, None)
    run = _keras.train_step_runner(model, x, y)
    for _ in range(_WARM_UP_STEPS):
        run()
    return run


def table(entries: dict[tuple[str, str], dict[str, Any]]) -> str:
    """Of the cases in the file, in the order of `CASES`, as Markdown."""
    rows = [
        "| network, batch | kernel | step with it | with its formula | formula / kernel (quartiles) | in CPU time "
        "| held with it | with its formula |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in CASES:
        if case not in entries:
            continue
        entry = entries[case]
        kernel_s, formula_s = (statistics.median(wall for wall, _ in entry[v]) for v in ("kernel", "formula"))
        cells = [f"{case[0]}, {entry['batch']}", case[1], f"{kernel_s:.2f} s", f"{formula_s:.2f} s"]
        for clock in range(2):
            ratios = [b[clock] / a[clock] for a, b in zip(entry["kernel"], entry["formula"])]
            low, middle, high = statistics.quantiles(ratios, n=4)
            cells.append(f"{middle:.2f} ({low:.2f} to {high:.2f})")
        cells += [f"{entry['held_bytes'][variant] / 1e6:.1f} MB" for variant in VARIANTS]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
