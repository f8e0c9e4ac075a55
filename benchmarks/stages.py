"""Peak memory of each device of a model on several; each is a process, whose allocator is the device's alone.

python benchmarks/stages.py --out FOLDER --network chain --devices 4
python benchmarks/stages.py --out FOLDER --network resnet20 --limit 100MB      # which ways train within it

Each way is a line of FOLDER/ways.jsonl, and what is there is not measured again; the table is of all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from accuracy.networks import decoder, resnet
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain import native
from tf_comptrain.distribute import launching

layers = keras.layers
MB = 1e6
STEPS = 4  # of which the peak is taken, after as many that trace and warm up
# By name: split of the one stage, or "stages"; microbatches; storage.
WAYS = {
    "data parallel": ("batch", 1, "keep"),
    "data parallel, stream": ("batch", 1, "stream"),
    "rows": ("rows", 1, "keep"),
    "rows, stream": ("rows", 1, "stream"),
    "stages, whole batch": ("stages", 1, "keep"),
    "stages, microbatches": ("stages", 8, "keep"),
    "stages, microbatches, stream": ("stages", 8, "stream"),
    "plan": ("", 0, ""),  # for the limit, by ct.plan
}


def chain() -> keras.Model:
    """16 convolutions of 64 x 64 x 16 values."""
    parts = [layers.Conv2D(16, 3, padding="same", activation="relu") for _ in range(16)]
    last = [layers.GlobalAveragePooling2D(), layers.Dense(10)]
    return keras.Sequential([keras.Input((64, 64, 16)), *parts, *last])


NETWORKS = {
    "chain": chain,
    "resnet20": lambda: resnet(20),
    "resnet50": lambda: keras.applications.ResNet50(
        weights=None, input_shape=(64, 64, 3), classes=10, classifier_activation=None
    ),
    "decoder": lambda: decoder(128, 8, 128, 0.0),
}


def batch_for(model: keras.Model, count: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    shape = (count, *model.input_shape[1:])
    if tf.as_dtype(model.inputs[0].dtype).is_integer:
        return random.integers(0, 64, shape), random.integers(0, 64, shape)
    return random.random(shape, np.float32), random.integers(0, 10, count)


def stages_of(model: keras.Model, count: int, split: str) -> list[ct.distribute.Stage]:
    """Consecutive layers of about equal outputs on each device; or all on all, but by rows what has no rows."""
    found = [layer for layer in model.layers if not isinstance(layer, layers.InputLayer)]
    everywhere = tuple(range(count))
    if split == "batch":
        return [ct.distribute.Stage(tuple(layer.name for layer in found), everywhere)]
    if split == "rows":
        images = [layer.name for layer in found if len(layer.output.shape) == 4]
        others = [layer.name for layer in found if layer.name not in images]
        return [
            ct.distribute.Stage(tuple(images), everywhere, "rows"),
            ct.distribute.Stage(tuple(others), (0,)),
        ]
    sizes = np.cumsum([np.prod(layer.output.shape[1:]) for layer in found])
    numbers = np.minimum((sizes - 1) * count // sizes[-1], count - 1).astype(int)
    named = [tuple(layer.name for layer, k in zip(found, numbers) if k == number) for number in everywhere]
    return [ct.distribute.Stage(names, (number,)) for number, names in enumerate(named) if names]


def serve(addresses: Sequence[str], number: int) -> None:
    """A device: says what it takes whenever a line comes in."""
    native.ops()
    cluster = tf.train.ClusterSpec({"worker": list(addresses)})
    server = tf.distribute.Server(cluster, job_name="worker", task_index=number)
    print("ready", server.target, flush=True)
    for line in sys.stdin:
        print(json.dumps(tf.config.experimental.get_memory_info("CPU:0")), flush=True)
        if line.strip() == "reset":
            tf.config.experimental.reset_memory_stats("CPU:0")


class Devices:
    """The processes of the devices."""

    def __init__(self, addresses: Sequence[str]):
        command = [sys.executable, __file__, "--serve", ",".join(addresses)]
        self._workers = [
            subprocess.Popen(
                [*command, "--number", str(number)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for number in range(len(addresses))
        ]
        for worker in self._workers:
            if "ready" not in self._line(worker):
                raise SystemExit("a device did not start")

    @staticmethod
    def _line(worker: subprocess.Popen) -> str:
        assert worker.stdout is not None
        return worker.stdout.readline()

    def ask(self, what: str) -> list[dict[str, int]]:
        """current and peak of each, in bytes; "reset" begins the peaks anew."""
        for worker in self._workers:
            assert worker.stdin is not None
            worker.stdin.write(f"{what}\n")
            worker.stdin.flush()
        return [json.loads(self._line(worker)) for worker in self._workers]

    def end(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait()


@contextlib.contextmanager
def devices(count: int) -> Iterator[tuple[Devices, list[str]]]:
    addresses = launching.free_addresses(count)
    found = Devices(addresses)
    try:
        tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec({"worker": addresses}))
        yield found, [f"/job:worker/replica:0/task:{number}/device:CPU:0" for number in range(count)]
    finally:
        found.end()


def measure(args: argparse.Namespace, way: str) -> dict[str, Any]:
    """One way, in a process of its own."""
    with devices(args.devices) as (processes, names):
        return train(args, way, processes, names)


def train(args: argparse.Namespace, way: str, processes: Devices, names: Sequence[str]) -> dict[str, Any]:
    """A few steps of a way, and the peaks of its devices."""
    split, microbatches, storage = WAYS[way]
    keras.utils.set_random_seed(0)
    model = NETWORKS[args.network]()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss)
    planned: dict[str, Any] = {}
    if way == "plan":
        plan = ct.plan(model, args.batch, args.limit or None, devices=args.devices)
        plan.apply(model, names)
        (args.out / f"{args.network}-{args.batch}-{args.limit}.json").write_text(plan.to_json())
        peaks = [0.0] * args.devices
        for stage, row in zip(plan.stages, plan.rows):
            for device in stage.devices:
                peaks[device] = row.peak_bytes / MB
        planned = {"microbatches": plan.microbatches, "planned_mb": peaks}
    else:
        ct.compress_model(model, **({"storage": "keep"} if storage == "keep" else {}))
        ct.distribute.place(model, stages_of(model, args.devices, split), microbatches, names)
    data = tf.data.Dataset.from_tensors(batch_for(model, args.batch)).repeat(STEPS)
    limit = ct.memory.limit(args.limit) if args.limit else contextlib.nullcontext()
    try:
        with limit:
            history = [model.fit(data, verbose=0).history["loss"][0]]
            processes.ask("reset")
            history += [model.fit(data, verbose=0).history["loss"][0]]
    except tf.errors.ResourceExhaustedError as error:
        found = [line for line in error.message.splitlines() if "limit" in line]
        return {**planned, "failed": (found or [error.message])[0][:200]}
    return {**planned, "loss": history, "peak_mb": [one["peak"] / MB for one in processes.ask("peak")]}


def table(lines: Sequence[dict]) -> str:
    found = ["| network, batch | way | limit | peak of each device, MB | loss |", "|---|---|---|---|---|"]
    for line in lines:
        peaks = " ".join(f"{peak:.0f}" for peak in line.get("peak_mb", ())) or "over the limit"
        loss = " -> ".join(f"{one:.3f}" for one in line.get("loss", ()))
        cells = (f"{line['network']}, {line['batch']}", line["way"], line["limit"] or "none", peaks, loss)
        found.append(f"| {' | '.join(cells)} |")
    return "\n".join(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", choices=NETWORKS, default="chain", help="(%(default)s)")
    parser.add_argument("--devices", type=int, default=4, help="(%(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="samples a step (%(default)s)")
    parser.add_argument("--limit", default="", help='of each device, such as "100MB"; default: none')
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="default: all")
    parser.add_argument("--out", type=Path, default=Path("stages_bench"), help="folder (%(default)s)")
    parser.add_argument("--serve", help=argparse.SUPPRESS)  # a device
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve.split(","), args.number)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "ways.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    case = {"network": args.network, "devices": args.devices, "batch": args.batch, "limit": args.limit}
    done = [line["way"] for line in lines if case.items() <= line.items()]
    # Each way begins with empty devices: what a model has on those of another process outlives it.
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(1, maxtasksperchild=1) as pool, path.open("a") as file:
        for way in args.ways:
            has_rows = args.network != "decoder"
            if way in done or (WAYS[way][0] == "rows" and not has_rows):
                continue
            lines.append({**case, "way": way, **pool.apply(measure, (args, way))})
            print(json.dumps(lines[-1]), file=file, flush=True)
    print(table(lines))


if __name__ == "__main__":
    main()
