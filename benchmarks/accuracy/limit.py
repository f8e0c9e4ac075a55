"""Training under a memory limit: plain at the batch it manages, adaptive from there on.

    python benchmarks/accuracy/limit.py CIFAR10.npz [--network resnet20] [--batch 32] [--seeds 1 2 3]

The limit is what the plain network needs at that batch, measured. The adaptive run is given the limit and
begins at the same batch: bounds by `AdaptiveErrorBound`, batch and learning rate by `AdaptiveBatchSize`, all
defaults. The control is plain training at four times the batch, under no limit: what it loses, the batch costs
and not the compression. All see the same number of images under the same schedule: SGD with momentum, a highest
rate of 0.1 per 128 images (He et al.), warm-up over a tenth of the steps, then half a cosine to 0. Each training
has a process of its own, and is one line of results/limit.jsonl; those that are there are not run again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import data
import keras
import networks
import numpy as np
import tensorflow as tf

import tf_comptrain as ct

METHODS = ("plain", "control", "adaptive")
RESULTS = Path(__file__).resolve().parent / "results" / "limit.jsonl"


class Seconds(keras.callbacks.Callback):
    """CPU seconds of the training steps of each epoch."""

    def on_train_begin(self, logs=None):
        self.epochs: list[float] = []

    def on_epoch_begin(self, epoch, logs=None):
        self.sum = 0.0

    def on_train_batch_begin(self, batch, logs=None):
        self.start = time.process_time()

    def on_train_batch_end(self, batch, logs=None):
        self.sum += time.process_time() - self.start

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(self.sum)


def compiled(args: argparse.Namespace, batch: int, seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    model = networks.BUILDERS[args.network]()
    steps = args.epochs * (args.images // batch)
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, steps, warmup_target=0.1 * batch / 128, warmup_steps=steps // 10
    )
    model.compile(
        keras.optimizers.SGD(rate, momentum=0.9, nesterov=True, weight_decay=5e-4),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,
    )
    return model


def run(args: argparse.Namespace, method: str, seed: int, limit: int) -> dict[str, Any]:
    """One training, in a process that has done nothing else: the allocator's heap keeps the form it once had."""
    images = data.load(args.cifar, args.images, 2000)
    batch = 4 * args.batch if method == "control" else args.batch
    model = compiled(args, batch, seed)
    tuner, steering = None, []
    if method == "adaptive":
        ct.compress_model(model, codec=args.codec)
        tuner = ct.AdaptiveBatchSize(limit_bytes=limit, verbose=0)
        steering = [ct.AdaptiveErrorBound(), tuner]
    # By number, so that the images stay out of the allocator, as they would with a GPU.
    x, y = data.scaled(images.x), images.y

    def sample(row):
        image, label = tf.numpy_function(lambda row: (x[row], y[row]), [row], (tf.float32, tf.int64))
        return tf.ensure_shape(image, x.shape[1:]), tf.ensure_shape(label, ())

    rows = tf.data.Dataset.range(len(x)).shuffle(len(x))
    batches = ct.elastic_batch(rows.map(sample), batch, drop_remainder=True)
    seconds, memory = Seconds(), ct.MemoryLogger()
    history = model.fit(
        batches, epochs=args.epochs, verbose=0, callbacks=[*steering, memory, seconds]
    ).history
    x_test, y_test = data.scaled(images.x_test), images.y_test
    _, accuracy = model.evaluate(x_test, y_test, batch_size=args.batch, verbose=0)
    decisions = [] if tuner is None else tuner.decisions
    return {
        "accuracy": round(accuracy, 5),
        "loss": [round(loss, 5) for loss in history["loss"]],
        "batches": [int(size) for size in history.get("batch_size", [batch] * args.epochs)],
        "peak_bytes": [record.peak_bytes for record in memory.records],
        "cpu_s": [round(s, 3) for s in seconds.epochs],
        "decisions": [f"epoch {d.epoch + 1}: {d.action}, batch {d.batch}: {d.reason}" for d in decisions],
    }


def in_own_process(*arguments) -> dict[str, Any]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(run, arguments)


def told(seed: int, found: dict[str, dict[str, Any]]) -> str:
    plain, control, adaptive = (found[method] for method in METHODS)
    first, last = plain["batches"][0], adaptive["batches"][-1]
    return (
        f"seed {seed}, limit {max(plain['peak_bytes']) / 1e6:.1f} MB: plain batch {first}, accuracy "
        f"{plain['accuracy']:.2%}; control batch {control['batches'][0]}, peak "
        f"{max(control['peak_bytes']) / 1e6:.1f} MB, accuracy {control['accuracy']:.2%}; adaptive batches "
        f"{adaptive['batches']}, ends at {last / first:.2f} b, peak "
        f"{max(adaptive['peak_bytes']) / 1e6:.1f} MB, accuracy {adaptive['accuracy']:.2%}; images per CPU second "
        f"{plain['cpu_s'][-1] / adaptive['cpu_s'][-1]:.2f} times plain's in the last epoch, "
        f"{sum(plain['cpu_s'][1:]) / sum(adaptive['cpu_s'][1:]):.2f} times after the first"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cifar", help="CIFAR-10 as .npz; see data.load")
    parser.add_argument("--network", choices=networks.BUILDERS, default="resnet20")
    parser.add_argument("--codec", default="plane")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--methods", choices=METHODS, nargs="+", default=METHODS)
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    lines = args.results.read_text().splitlines() if args.results.exists() else []
    task = {name: getattr(args, name) for name in ("network", "batch", "images", "epochs", "codec")}
    done = {(r["seed"], r["method"]): r for r in map(json.loads, lines) if r["task"] == task}
    for seed in args.seeds:
        for method in args.methods:
            if (seed, method) not in done:
                limit = max(done[seed, "plain"]["peak_bytes"]) if method == "adaptive" else 0
                found = in_own_process(args, method, seed, limit)
                done[seed, method] = {"task": task, "seed": seed, "method": method, **found}
                with open(args.results, "a") as file:
                    file.write(json.dumps(done[seed, method]) + "\n")
        trained = {method: done[seed, method] for method in METHODS if (seed, method) in done}
        if len(trained) == len(METHODS):
            print(told(seed, trained), flush=True)
    for method in METHODS:
        values = [100 * record["accuracy"] for (_, which), record in done.items() if which == method]
        if values:
            spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
            print(f"{method}: accuracy {np.mean(values):.2f}{spread}, {len(values)} seeds")


if __name__ == "__main__":
    main()
