"""Real peak and step time of planned steps against memory limits, from everything kept down to the smallest.

    python benchmarks/planner/limits.py --out limits.jsonl

Each network is measured and planned in a process of its own. Limits are evenly spaced between the peak with everything
kept and the smallest, with everything held as streams and bits or offloaded, 3% above the latter at the least. A plan
is then trained by
`fit`: the peak is the highest of 12 steps, the first included, the statistics reset at each; the time is that of the
fastest of steps 3 to 12. Beside the plans, each in a process of its own: everything compressed, and blocks of about the
square root of the number of layers computed again by ct.Recompute and by keras.remat; a plan's images/s are set beside
those of the fastest of them that keeps within its limit. Every measurement adds a line to the file; those that are
there already are not made again.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median

import tensorflow as tf
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.memory import counters
from tf_comptrain.memory.batches import random_batch
from tf_comptrain.model_planning import trials
from tf_comptrain.model_planning.offload_of_plan import offload_of_plan

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))
from workers import in_blocks

layers = keras.layers
_STEPS = 12
_WARM_UP = 2
WAYS = ("compressed", "recompute", "remat")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("limits.jsonl"))
    parser.add_argument("--nets", nargs="+", choices=list(NETS), default=list(NETS))
    parser.add_argument("--limits", type=int, default=15, help="of each network")
    parser.add_argument("--size", type=int, default=64, help="pixels of an image")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--budget", type=float, default=5.0, help="seconds of each search")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker == "plans":
        measure(options.nets[0], options)
        return
    if options.worker:
        measure_way(options.worker, options.nets[0], options)
        return
    for net in options.nets:
        missing = [way for way in WAYS if way not in of_ways(net, options)]
        if len(of_net(net, options)) < options.limits:
            missing.append("plans")
        for worker in missing:
            arguments = ["--worker", worker, "--nets", net]
            subprocess.run([sys.executable, __file__, *sys.argv[1:], *arguments], check=False)
    print(table(options), summary(options), sep="\n\n")


def entries(key: list, options: argparse.Namespace) -> list[dict]:
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    return [entry for entry in map(json.loads, lines) if entry["key"] == key]


def of_net(net: str, options: argparse.Namespace) -> list[dict]:
    """The file's lines of a network's plans at these sizes, by falling limit."""
    found = entries([net, options.size, options.batch, options.limits], options)
    return sorted(found, key=lambda entry: entry["number"])


def of_ways(net: str, options: argparse.Namespace) -> dict[str, dict]:
    """By way: the file's line of a network at these sizes."""
    return {entry["way"]: entry for entry in entries([net, options.size, options.batch], options)}


def measure_way(way: str, net: str, options: argparse.Namespace) -> None:
    """A network trained in a way that no plan is made for."""
    keras.utils.set_random_seed(0)
    model = NETS[net](options.size)
    if way == "compressed":
        ct.compress_model(model)
    else:
        model = _compiled(model.input, in_blocks(model, way).output, f"{net}_{way}")
    peak, seconds = fitted(model, options.batch)
    entry = {"key": [net, options.size, options.batch], "way": way, "peak": peak, "step_s": seconds}
    with options.out.open("a") as file:
        file.write(json.dumps(entry) + "\n")


def measure(net: str, options: argparse.Namespace) -> None:
    """All limits of a network that are not in the file."""
    done = {entry["number"] for entry in of_net(net, options)}
    keras.utils.set_random_seed(0)
    model = NETS[net](options.size)
    ct.compress_model(model)
    prepared = trials.prepare(model, options.batch, None, offload_of_plan(True, "plane"))
    counters.reserve(prepared.ends()[1])  # as a plan does with its limit
    prepared = trials.prepare(model, options.batch, None, offload_of_plan(True, "plane"))
    smallest, _ = trials.search(model, prepared, 1, seed=0, budget_s=options.budget, runs=trials.RUNS)
    low, high = smallest.smallest_bytes, prepared.ends()[1]
    for number in range(options.limits):
        if number in done:
            continue
        limit = (
            int(high - number / (options.limits - 1) * (high - 1.03 * low)) if options.limits > 1 else high
        )
        start = time.perf_counter()
        plan, prepared = trials.search(
            model, prepared, limit, seed=0, budget_s=options.budget, runs=trials.RUNS
        )
        planning_s = time.perf_counter() - start
        entry = {
            "key": [net, options.size, options.batch, options.limits],
            "number": number,
            "limit": limit,
            "resting": prepared.graph.resting_bytes,
            "feasible": plan.feasible,
            "predicted_peak": plan.peak_bytes,
            "predicted_s": plan.step_s,
            "gap": plan.gap,
            "planning_s": planning_s,
            "choices": Counter(row.choice.partition(":")[0] for row in plan.rows),
        }
        ct.restore_model(model)
        if plan.feasible:
            plan.apply(model)
            peak, seconds = fitted(model, options.batch)
            entry.update(peak=peak, step_s=seconds)
            ct.restore_model(model)
        ct.compress_model(model)
        with options.out.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def fitted(model: keras.Model, batch: int) -> tuple[int, float]:
    """(highest peak of the first steps of `fit`, seconds of the fastest)."""
    data = tf.data.Dataset.from_tensors(random_batch(model, batch)).repeat(_STEPS)
    meter = _Meter()
    gc.collect()
    ct.memory.synchronize()
    tf.config.experimental.reset_memory_stats("CPU:0")
    model.fit(data, verbose=0, shuffle=False, callbacks=[meter])
    return max(meter.peaks), min(meter.seconds[_WARM_UP:])


class _Meter(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.peaks: list[int] = []
        self.seconds: list[float] = []
        self._start = 0.0

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        self._start = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self.seconds.append(time.perf_counter() - self._start)
        self.peaks.append(tf.config.experimental.get_memory_info("CPU:0")["peak"])
        tf.config.experimental.reset_memory_stats("CPU:0")


def table(options: argparse.Namespace) -> str:
    """Markdown."""
    lines = [
        "| network | limit | peak of 12 steps | of the limit | step, predicted | measured | "
        "kept / streams / rebuilt | images/s of the best other way | planning |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for net in options.nets:
        for entry in of_net(net, options):
            choices = entry["choices"]
            counts = " / ".join(str(choices.get(kind, 0)) for kind in ("keep", "stream", "rebuild"))
            head = f"| {net} | {entry['limit'] / 1e6:.1f} MB "
            if not entry["feasible"]:
                lines.append(f"{head}| none found | | | | | | {entry['planning_s']:.0f} s |")
                continue
            lines.append(
                f"{head}| {entry['peak'] / 1e6:.1f} MB | {100 * entry['peak'] / entry['limit']:.1f}% "
                f"| {1e3 * entry['predicted_s']:.0f} ms | {1e3 * entry['step_s']:.0f} ms | {counts} "
                f"| {beside(entry, of_ways(net, options))} | {entry['planning_s']:.0f} s |"
            )
        for way, entry in of_ways(net, options).items():
            lines.append(
                f"| {net} | {way} | {entry['peak'] / 1e6:.1f} MB | | | {1e3 * entry['step_s']:.0f} ms | | | |"
            )
    return "\n".join(lines)


def summary(options: argparse.Namespace) -> str:
    """Markdown: a line for each network."""
    lines = [
        "| network | limits | within | highest | within, and at most 5% under | steps within 10% of predicted "
        "| predicted / measured | images/s over the best other way |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for net in options.nets:
        found = [entry for entry in of_net(net, options) if entry["feasible"]]
        if not found:
            continue
        used = [entry["peak"] / entry["limit"] for entry in found]
        times = [entry["predicted_s"] / entry["step_s"] for entry in found]
        rates = [rate for entry in found if (rate := best_other(entry, of_ways(net, options))[0])]
        limits = f"{found[0]['limit'] / 1e6:.1f} to {found[-1]['limit'] / 1e6:.1f} MB"
        lines.append(
            f"| {net} | {limits} | {sum(use <= 1 for use in used)} of {len(used)} | {100 * max(used):.1f}% "
            f"| {sum(0.95 <= use <= 1 for use in used)} | {sum(abs(time - 1) <= 0.1 for time in times)} "
            f"| {median(times):.2f} | {median(rates):.2f} ({min(rates):.2f} to {max(rates):.2f}) |"
        )
    return "\n".join(lines)


def best_other(entry: dict, ways: dict[str, dict]) -> tuple[float | None, str]:
    """A plan's images/s over those of the fastest other way within its limit, and which that is."""
    fitting = [(other["step_s"], way) for way, other in ways.items() if other["peak"] <= entry["limit"]]
    if not fitting:
        return None, "none fits"
    seconds, way = min(fitting)
    return seconds / entry["step_s"], way


def beside(entry: dict, ways: dict[str, dict]) -> str:
    rate, way = best_other(entry, ways)
    return way if rate is None else f"{rate:.2f} ({way})"


def _compiled(inputs: keras.KerasTensor, outputs: keras.KerasTensor, name: str) -> keras.Model:
    model = keras.Model(inputs, outputs, name=name)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=False)
    return model


def _application(name: str) -> Callable[[int], keras.Model]:
    def build(size: int) -> keras.Model:
        base = getattr(keras.applications, name)(weights=None, include_top=False, input_shape=(size, size, 3))
        x = layers.GlobalAveragePooling2D()(base.output)
        return _compiled(base.input, layers.Dense(10)(x), name.lower())

    return build


def _unet(size: int) -> keras.Model:
    inputs = x = keras.Input((size, size, 3))
    skips = []

    def two(x: keras.KerasTensor, filters: int) -> keras.KerasTensor:
        for _ in range(2):
            x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization()(x))
        return x

    for level in range(4):
        x = two(x, 16 * 2**level)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = two(x, 256)
    for level in reversed(range(4)):
        x = layers.Conv2DTranspose(16 * 2**level, 2, strides=2)(x)
        x = two(layers.Concatenate()([skips[level], x]), 16 * 2**level)
    return _compiled(inputs, layers.Conv2D(4, 1)(x), "unet")


def _decoder(size: int, width: int = 128, depth: int = 3) -> keras.Model:
    """Of twice as many characters as an image has pixels in a row."""
    inputs = keras.Input((2 * size,), dtype="int32")
    x = layers.Embedding(65, width)(inputs)
    for _ in range(depth):
        h = layers.LayerNormalization()(x)
        attention = layers.MultiHeadAttention(4, width // 4, flash_attention=False)
        x = layers.Add()([x, attention(h, h, use_causal_mask=True)])
        h = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(width)(h)])
    return _compiled(inputs, layers.Dense(65)(x), "decoder")


NETS = {
    "ResNet50": _application("ResNet50"),
    "VGG16": _application("VGG16"),
    "DenseNet121": _application("DenseNet121"),
    "unet": _unet,
    "decoder": _decoder,
}


if __name__ == "__main__":
    main()
