"""Training under a memory limit: plain at the batch it manages, adaptive from there on.

    python benchmarks/accuracy/limit.py --fashion FASHION_MNIST.npz --text tinyshakespeare.txt

The limit is what plain training needs at its batch, measured. The adaptive run begins at the same batch,
and `AdaptiveTraining(memory=limit)` does the rest: bounds, batch and learning rate, all defaults. Both see
the same number of samples under the same schedule: a linear warm-up over a tenth of the steps, then half a
cosine to 0. The weights that are tested are the mean of those after each of the last three epochs. Each
training has a process of its own, and is one line of results/limit.jsonl; those that are there are not run
again. `--report` prints the table of them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import data
import keras
import networks
import numpy as np
import tensorflow as tf
from sequential import interval
from training import Averaged, set_threads

import tf_comptrain as ct

PLAIN, ADAPTIVE = "plain", "adaptive"
RESULTS = Path(__file__).resolve().parent / "results" / "limit.jsonl"
_CONTEXT = 64  # characters of a passage
_AVERAGED = 3


class Task(NamedTuple):
    """What is trained.

    Attributes:
      network: A key of `networks.BUILDERS`.
      samples: An epoch; of a text, passages.
      epochs: Of the training.
      batch: Samples a step, to begin with.
      rate: Highest learning rate, at that batch.
    """

    network: str
    samples: int
    epochs: int
    batch: int
    rate: float

    @property
    def is_text(self) -> bool:
        return self.network == "decoder"


TASKS = {
    "cnn": Task("cnn3-grey", 12_000, 16, 64, 0.05),
    "resnet20": Task("resnet20-grey", 6_000, 16, 32, 0.025),
    "decoder": Task("decoder", 4_800, 8, 16, 2e-3),
}


def compiled(task: Task, seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    model = networks.BUILDERS[task.network]()
    steps = task.epochs * (task.samples // task.batch)
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, steps, warmup_target=task.rate, warmup_steps=steps // 10
    )
    if task.is_text:
        optimizer = keras.optimizers.AdamW(rate, weight_decay=0.01, clipnorm=1.0)
    else:
        optimizer = keras.optimizers.SGD(rate, momentum=0.9, nesterov=True, weight_decay=5e-4)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
    return model


def samples(task: Task, path: str) -> tuple[tf.data.Dataset, tuple[np.ndarray, np.ndarray]]:
    """Single samples in a new order each epoch, and what is tested."""
    if task.is_text:
        text = data.load_text(path)
        starts = tf.data.Dataset.range(len(text.training) - _CONTEXT - 1)
        drawn = starts.shuffle(len(text.training)).take(task.samples)
        return drawn.map(lambda start: _passage(start, text.training)), text.validation(_CONTEXT)
    images, x_test, y_test = data.load_apart(path, task.samples)
    x, y = data.scaled(images.x), images.y

    def sample(row):
        image, label = tf.numpy_function(lambda row: (x[row], y[row]), [row], (tf.float32, tf.int64))
        return tf.ensure_shape(image, x.shape[1:]), tf.ensure_shape(label, ())

    # By number, so that the images stay out of the allocator, as they would with a GPU.
    rows = tf.data.Dataset.range(len(x)).shuffle(len(x))
    return rows.map(sample), (data.scaled(x_test), y_test)


def _passage(start: tf.Tensor, characters: np.ndarray) -> tuple[tf.Tensor, tf.Tensor]:
    taken = tf.numpy_function(lambda at: characters[at : at + _CONTEXT + 1], [start], tf.int32)
    taken = tf.ensure_shape(taken, (_CONTEXT + 1,))
    return taken[:-1], taken[1:]


def run(task: Task, path: str, method: str, seed: int, limit: int, threads: int) -> dict[str, Any]:
    """One training, in a fresh process: the allocator's heap keeps the form it once had."""
    set_threads(threads)
    model = compiled(task, seed)
    rows, test = samples(task, path)
    steering = None
    if method == ADAPTIVE:
        ct.compress_model(model)
        steering = ct.AdaptiveTraining(limit, verbose=0)
    batches = ct.elastic_batch(rows, task.batch, drop_remainder=True)
    memory, averaged = ct.MemoryLogger(), Averaged(task.epochs, _AVERAGED)
    callbacks = [memory, averaged] if steering is None else [steering, memory, averaged]
    history = model.fit(batches, epochs=task.epochs, verbose=0, callbacks=callbacks).history
    averaged.put()
    found = model.evaluate(*test, batch_size=500, verbose=0, return_dict=True)
    decisions = [] if steering is None else steering.batch.decisions
    return {
        "accuracy": round(100 * found["accuracy"], 4),
        "test_loss": round(found["loss"], 6),
        "loss": [round(loss, 5) for loss in history["loss"]],
        "batches": [int(size) for size in history.get("batch_size", [task.batch] * task.epochs)],
        "peak_bytes": [record.peak_bytes for record in memory.records],
        "decisions": [f"epoch {d.epoch + 1}: {d.action}, batch {d.batch}: {d.reason}" for d in decisions],
    }


def in_own_process(*arguments: Any) -> dict[str, Any]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(run, arguments)


Found = dict[tuple[int, str], dict[str, Any]]


def read(path: Path, name: str) -> Found:
    """The runs of a task as it is now, by seed and method."""
    records = map(json.loads, path.read_text().splitlines() if path.exists() else ())
    setting = json.loads(json.dumps(TASKS[name]._asdict()))
    return {(r["seed"], r["method"]): r for r in records if (r["task"], r["setting"]) == (name, setting)}


def table(path: Path) -> Iterator[str]:
    """Lines of Markdown."""
    yield "| task | pairs | plain, % | adaptive less plain | 95% interval | batch, first and last | over the limit |"
    yield "|---|---|---|---|---|---|---|"
    for name, task in TASKS.items():
        found = read(path, name)
        seeds = [seed for seed, method in sorted(found) if method == ADAPTIVE]
        if len(seeds) < 2:
            continue
        plain, adaptive = ([found[seed, method] for seed in seeds] for method in (PLAIN, ADAPTIVE))
        changes = [a["accuracy"] - p["accuracy"] for a, p in zip(adaptive, plain)]
        last = sorted(run["batches"][-1] for run in adaptive)
        over = sum(max(a["peak_bytes"]) > max(p["peak_bytes"]) for a, p in zip(adaptive, plain))
        change, half = interval(changes)
        mean = np.mean([run["accuracy"] for run in plain])
        yield (
            f"| {name} | {len(seeds)} | {mean:.2f} | {change:+.2f} | [{change - half:+.2f}, {change + half:+.2f}] "
            f"| {task.batch}, {last[0]} to {last[-1]} | {over} of {len(seeds)} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fashion", help="Fashion-MNIST as .npz; see data.load")
    parser.add_argument("--text", help="tinyshakespeare, or another text")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=10, help="pairs of each task")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true", help="print the table of the results alone")
    args = parser.parse_args()
    for name in () if args.report else args.tasks:
        task, path = TASKS[name], args.text if TASKS[name].is_text else args.fashion
        if path is None:
            parser.error(f"{name} needs {'--text' if task.is_text else '--fashion'}.")
        done = read(args.results, name)
        for seed in range(1, args.seeds + 1):
            for method in (PLAIN, ADAPTIVE):
                if (seed, method) in done:
                    continue
                limit = max(done[seed, PLAIN]["peak_bytes"]) if method == ADAPTIVE else 0
                found = in_own_process(task, path, method, seed, limit, args.threads)
                record = {"task": name, "setting": task._asdict(), "seed": seed, "method": method, **found}
                done[seed, method] = record
                with open(args.results, "a") as file:
                    file.write(json.dumps(record) + "\n")
                print(f"{name} {method} seed {seed}: {found['accuracy']:.2f}, {found['batches']}", flush=True)
    print("\n".join(table(args.results)))


if __name__ == "__main__":
    main()
