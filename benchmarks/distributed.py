"""What it costs that workers train together: two processes of one thread against one process of two threads.

python benchmarks/distributed.py --out FOLDER

The same global batch and network, plain and compressed, in turns, on one machine: so only overhead shows. Each turn is
a line of FOLDER/turns.jsonl, and what is there is not measured again; the table is of all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from accuracy.networks import resnet
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.distribute import launching

WAYS = ("plain", "compressed")
WORKERS = (1, 2)
_FIRST = 4  # steps that trace and warm up


class Clock(keras.callbacks.Callback):
    """Wall-clock and processor seconds from one step to the next."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.wall: list[float] = []
        self.processor: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.wall.append(time.perf_counter())
        self.processor.append(time.process_time())

    def seconds(self) -> dict[str, float]:
        """Of a step: the median by the wall clock, the mean of the processor's."""
        wall, processor = np.diff(self.wall[_FIRST:]), np.diff(self.processor[_FIRST:])
        return {"wall_s": float(np.median(wall)), "processor_s": float(np.mean(processor))}


def train(args: argparse.Namespace) -> None:
    """What a worker runs: some steps on random images."""

    def build() -> keras.Model:
        if args.network == "resnet50":
            model = keras.applications.ResNet50(
                weights=None, input_shape=(64, 64, 3), classes=10, classifier_activation=None
            )
        else:
            model = resnet(20)
        if args.way == "compressed":
            ct.compress_model(model)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss, jit_compile=False)
        return model

    random = np.random.default_rng(0)
    size = 64 if args.network == "resnet50" else 32
    count = args.batch * args.steps
    images = random.random((count, size, size, 3), np.float32)
    clock = Clock()
    ct.distribute.fit(
        build, images, random.integers(0, 10, count), batch_size=args.batch, snapshot_every=10**6,
        callbacks=[clock], verbose=0,
    )  # fmt: skip
    number = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    (args.out / f"worker{number}.json").write_text(json.dumps(clock.seconds()))


def measure(args: argparse.Namespace, way: str, workers: int) -> dict[str, float]:
    """One turn, in processes of its own."""
    command = [sys.executable, __file__, "--way", way, "--out", str(args.out), "--network", args.network]
    command += ["--batch", str(args.batch), "--steps", str(args.steps)]
    with (args.out / "log.txt").open("a") as log:
        addresses = launching.free_addresses(workers)
        status = launching.launch(command, addresses, range(workers), out=log)
    if status:
        raise SystemExit(f"a worker failed with status {status}: see {args.out / 'log.txt'}")
    found = [json.loads((args.out / f"worker{k}.json").read_text()) for k in range(workers)]
    return {
        "wall_s": max(one["wall_s"] for one in found),
        "processor_s": sum(one["processor_s"] for one in found),
    }


def table(turns: list[dict]) -> str:
    """Seconds a step of one process and of two, and images a second of two over those of one."""
    lines = [
        "| network | batch | way | turns | one process | two processes | two / one | processor time, one / two |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    for network, batch, way in sorted({(t["network"], t["batch"], t["way"]) for t in turns}):
        found = [t for t in turns if (t["network"], t["batch"], t["way"]) == (network, batch, way)]
        wall = [statistics.median(t["wall_s"] for t in found if t["workers"] == n) for n in WORKERS]
        spent = [statistics.median(t["processor_s"] for t in found if t["workers"] == n) for n in WORKERS]
        count = len(found) // len(WORKERS)
        lines.append(
            f"| {network} | {batch} | {way} | {count} | {wall[0]:.3f} s | {wall[1]:.3f} s | {wall[0] / wall[1]:.2f} | "
            f"{spent[0] / spent[1]:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--network", choices=("resnet20", "resnet50"), default="resnet20", help="(%(default)s)"
    )
    parser.add_argument(
        "--batch", type=int, default=128, help="images a step, over all workers (%(default)s)"
    )
    parser.add_argument("--steps", type=int, default=24, help="of a turn (%(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="of each (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("distributed_bench"), help="folder (%(default)s)")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)  # a worker
    args = parser.parse_args()
    if args.way:
        train(args)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "turns.jsonl"
    turns = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for turn in range(args.turns):
        for way in WAYS:
            for workers in WORKERS:
                case = {
                    "network": args.network,
                    "batch": args.batch,
                    "way": way,
                    "workers": workers,
                    "turn": turn,
                }
                if any(case.items() <= found.items() for found in turns):
                    continue
                turns.append({**case, **measure(args, way, workers)})
                with path.open("a") as file:
                    file.write(json.dumps(turns[-1]) + "\n")
                print(turns[-1], flush=True)
    print(table(turns))


if __name__ == "__main__":
    main()
