"""Does compression change what a network learns? Trains each network by each method with several seeds.

    python benchmarks/accuracy/study.py --cifar CIFAR10.npz --fashion FASHION_MNIST.npz
    python benchmarks/accuracy/study.py --report        # docs/accuracy.md and its plots, from the results

Each finished run is one line of results/PROTOCOL.jsonl, written at its end: a study that was stopped goes on
with the first run that has no line. Runs with the same network and seed have the same initial weights and
the same batches, so that methods compare in pairs. The protocol "two-core" is what two cores manage in
hours; "gpu" trains on all images until accuracy levels off.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import report

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

FOLDER = Path(__file__).resolve().parent
PLAIN = "plain"


class Task(NamedTuple):
    """One network and how long it trains.

    Attributes:
      network: A key of `networks.BUILDERS`.
      data: "cifar" or "fashion".
      train: Training images.
      test: Test images.
      epochs: Passes over them.
      batch: Images per batch.
      rate: Highest learning rate: linear warm-up over a tenth of the steps, then half a cosine to 0.
      methods: Keys of `METHODS`.
    """

    network: str
    data: str
    train: int
    test: int
    epochs: int
    batch: int
    rate: float
    methods: tuple[str, ...]


class Protocol(NamedTuple):
    """A set of tasks, and the seeds that each method is trained with."""

    tasks: tuple[Task, ...]
    seeds: tuple[int, ...]
    words: str


METHODS = ("plain", "adaptive-plane", "adaptive-rans", "group-4bit", "group-2bit", "lossless")
PROTOCOLS = {
    "two-core": Protocol(
        (
            Task("cnn", "fashion", 8_000, 5_000, 5, 64, 0.05, METHODS),
            Task("resnet14", "cifar", 5_000, 2_000, 6, 64, 0.1, METHODS),
            Task("vgg_small", "cifar", 5_000, 2_000, 6, 64, 0.05, METHODS),
        ),
        (1, 2, 3),
        "part of the images, five or six epochs: far from where accuracy levels off",
    ),
    "gpu": Protocol(
        (
            Task("resnet20", "cifar", 50_000, 10_000, 160, 128, 0.1, METHODS),
            Task("vgg", "cifar", 50_000, 10_000, 120, 128, 0.05, METHODS),
            Task("cnn", "fashion", 60_000, 10_000, 40, 128, 0.05, METHODS),
        ),
        (1, 2, 3, 4, 5),
        "all images, until accuracy levels off",
    ),
    "smoke": Protocol(  # that everything runs: a minute or two
        (Task("cnn", "fashion", 640, 500, 2, 64, 0.05, METHODS),), (1, 2), "no protocol: a test of the script"
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--protocol", choices=PROTOCOLS, default="two-core")
    parser.add_argument("--cifar", help="CIFAR-10 as .npz; see data.load")
    parser.add_argument("--fashion", help="Fashion-MNIST as .npz")
    parser.add_argument("--networks", nargs="+", help="these only")
    parser.add_argument("--methods", nargs="+", choices=METHODS, help="these only")
    parser.add_argument("--results", type=Path, default=FOLDER / "results")
    parser.add_argument("--report", action="store_true", help="write tables and plots from the results")
    parser.add_argument("--docs", type=Path, default=FOLDER.parents[1] / "docs", help="where the report goes")
    args = parser.parse_args()
    if args.report:
        results = {name: read(args.results / f"{name}.jsonl") for name in PROTOCOLS}
        report.write(results, args.docs, PROTOCOLS)
        return
    protocol = PROTOCOLS[args.protocol]
    path = args.results / f"{args.protocol}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    for task, method, seed in missing(protocol, read(path), args.networks, args.methods):
        found = run(task, method, seed, {"cifar": args.cifar, "fashion": args.fashion})
        with open(path, "a") as file:  # one line, at once: a run is there whole or not at all
            file.write(json.dumps(found) + "\n")
        print(
            f"{task.network} {method} seed {seed}: accuracy {found['accuracy']:.2%}, conv inputs "
            f"{found['conv_ratio']:.1f}, {found['wall_s']:.0f} s",
            flush=True,
        )


def read(path: Path) -> list[dict[str, Any]]:
    """The runs in a results file; an incomplete last line, of a study that was killed, is left out."""
    runs = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            runs.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return runs


def missing(
    protocol: Protocol, runs: list[dict], networks: list[str] | None, methods: list[str] | None
) -> Iterator[tuple[Task, str, int]]:
    """Seed by seed, so that a study that is stopped early has compared all methods."""
    done = {(run["network"], run["method"], run["seed"]) for run in runs}
    for seed in protocol.seeds:
        for task in protocol.tasks:
            for method in task.methods:
                wanted = (not networks or task.network in networks) and (not methods or method in methods)
                if wanted and (task.network, method, seed) not in done:
                    yield task, method, seed


def callbacks_of(method: str) -> list:
    import tf_comptrain as ct

    return [ct.AdaptiveErrorBound()] if method.startswith("adaptive") else []


def compress(model: Any, method: str) -> None:
    import group_quantization

    import tf_comptrain as ct

    codecs: dict[str, Callable[[], Any]] = {
        "adaptive-plane": lambda: "plane",
        "adaptive-rans": lambda: "rans",
        "lossless": lambda: "zvc",
        "group-4bit": lambda: group_quantization.GroupQuantization(4),
        "group-2bit": lambda: group_quantization.GroupQuantization(2),
    }
    if method == PLAIN:
        return
    report = ct.compress_model(model, codec=codecs[method]())
    if report.obstacle:
        raise SystemExit(f"{method}: the model would train as plain Keras here: {report.obstacle}.")


def compiled(task: Task, method: str, steps: int) -> Any:
    """The network, compressed as the method has it."""
    import keras
    import networks

    model = networks.BUILDERS[task.network]()
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, steps, warmup_target=task.rate, warmup_steps=max(steps // 10, 1)
    )
    model.compile(
        keras.optimizers.SGD(rate, momentum=0.9, nesterov=True, weight_decay=5e-4),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,
    )
    compress(model, method)
    return model


def memory_of(task: Task, method: str, weights: list, states: dict, x: Any, y: Any) -> dict[str, int]:
    """Peak and saved bytes of a step, in a process of its own.

    Where a model has trained and been evaluated, the allocator gives out chunks of sizes that were needed
    before, and counts the whole of them.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_memory_of, task, method, weights, states, x, y).result()


def _memory_of(task: Task, method: str, weights: list, states: dict, x: Any, y: Any) -> dict[str, int]:
    import tf_comptrain as ct
    from tf_comptrain.compression.instrumentation import instrumentation, is_compressed

    model = compiled(task, method, 1)
    model.set_weights(weights)
    if is_compressed(model):
        instrumentation(model).held.table.put(states)
    found = ct.memory.measure_step(model, x, y)
    return {
        "peak_bytes": found.peak_bytes,
        "saved_bytes": found.saved_bytes,
        "saved_plain_bytes": found.saved_plain_bytes,
    }


def run(task: Task, method: str, seed: int, paths: dict[str, str | None]) -> dict[str, Any]:
    """Trains one network once; the record of it."""
    import data
    import keras
    from meter import Meter

    from tf_comptrain.compression.instrumentation import instrumentation, is_compressed

    path = paths[task.data]
    if path is None:
        raise SystemExit(f"--{task.data} FILE.npz is needed for {task.network}.")
    images = data.load(path, task.train, task.test)
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    batches = data.Batches(images, task.batch, seed)
    model = compiled(task, method, task.epochs * len(batches))
    callbacks, meter = callbacks_of(method), Meter(task.batch)
    start = time.perf_counter()
    history = model.fit(
        batches,
        epochs=task.epochs,
        validation_data=(data.scaled(images.x_test), images.y_test),
        validation_batch_size=500,
        callbacks=[*callbacks, meter],
        verbose=0,
    ).history
    wall_s = time.perf_counter() - start
    memory: dict[str, int | None] = dict.fromkeys(("peak_bytes", "saved_bytes", "saved_plain_bytes"))
    if seed == 1:
        states = instrumentation(model).held.table.values() if is_compressed(model) else {}
        memory.update(memory_of(task, method, model.get_weights(), states, *batches[0]))
    return {
        "network": task.network,
        "method": method,
        "seed": seed,
        "task": task._replace(methods=())._asdict(),
        "accuracy": history["val_accuracy"][-1],
        "val_accuracy": [round(v, 5) for v in history["val_accuracy"]],
        "val_loss": [round(v, 5) for v in history["val_loss"]],
        "loss": [round(v, 5) for v in history["loss"]],
        "conv_ratio": round(meter.ratio(), 3),
        "conv_ratio_epochs": [round(v, 3) for v in meter.epochs],
        "step_s": round(statistics.median(meter.steps_s), 5),
        "cpu_s": round(statistics.median(meter.steps_cpu_s), 5),
        **memory,
        "bounds": _bounds(callbacks),
        "wall_s": round(wall_s, 1),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }


def _bounds(callbacks: list) -> list[dict[str, float]]:
    """Per collecting step: bound / sigma over the layers, and how much of the target the limits left."""
    by_step: dict[int, list] = {}
    for update in callbacks[0].updates if callbacks else ():
        by_step.setdefault(update.step, []).append(update)
    return [
        {
            "step": step,
            "mean": round(_geometric([u.bound_over_sigma for u in updates]), 4),
            "smallest": round(min(u.bound_over_sigma for u in updates), 4),
            "largest": round(max(u.bound_over_sigma for u in updates), 4),
            "error_over_target": round(_geometric([u.predicted_sigma / u.target_sigma for u in updates]), 4),
        }
        for step, updates in by_step.items()
    ]


def _geometric(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


if __name__ == "__main__":
    main()
