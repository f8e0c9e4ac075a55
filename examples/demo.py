"""Trains a ResNet-20 on Fashion-MNIST twice, plain and with its activations held compressed, and compares.

    make demo                                   # or: python examples/demo.py --epochs 8 --seed 3

Writes demo_out/report.html and demo_out/demo.png.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import time
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import demo_data
import demo_report
import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from tensorflow import keras

import tf_comptrain as ct

LABELS = ("plain", "compressed")
console = Console()


class Limited(NamedTuple):
    """What one memory limit allows.

    Attributes:
      limit_bytes: The limit, of the allocator.
      largest: Largest batch that trains under it, by label.
      batch: A batch tried with both models.
      plain_error: How plain training of `batch` ended.
      compressed_loss: The loss of the compressed model's steps on it.
    """

    limit_bytes: int
    largest: dict
    batch: int
    plain_error: str
    compressed_loss: float


def resnet(blocks: int, seed: int) -> keras.Model:
    """The CIFAR ResNet of He et al. (2016), with projection shortcuts and 3 x `blocks` blocks, for 28 x 28 grey images.

    It has 6 x `blocks` + 2 layers with weights, shortcuts apart.
    """
    keras.utils.set_random_seed(seed)
    layers = keras.layers

    def convolution(x, filters, size=3, strides=1):
        x = layers.Conv2D(filters, size, strides=strides, padding="same", use_bias=False)(x)
        return layers.BatchNormalization(momentum=0.9)(x)

    x = inputs = keras.Input((28, 28, 1))
    x = layers.ReLU()(convolution(x, 16))
    for filters in (16, 32, 64):
        for block in range(blocks):
            strides = 2 if filters > 16 and block == 0 else 1
            shortcut = convolution(x, filters, 1, strides) if strides > 1 else x
            x = layers.ReLU()(convolution(x, filters, strides=strides))
            x = layers.ReLU()(layers.Add()([convolution(x, filters), shortcut]))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(10)(x), name=f"resnet{6 * blocks + 2}")


def compiled(model: keras.Model, steps: int) -> keras.Model:
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, steps, warmup_target=0.1, warmup_steps=max(steps // 8, 1)
    )
    model.compile(
        optimizer=keras.optimizers.SGD(rate, momentum=0.9, nesterov=True),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


class Bar(keras.callbacks.Callback):
    """Shows one epoch as a progress bar and notes the seconds of each step."""

    def __init__(self, progress: Progress, task):
        super().__init__()
        self.progress, self.task = progress, task
        self.steps_s: list[float] = []

    def on_train_batch_begin(self, batch, logs=None):
        ct.memory.synchronize()
        self._start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        ct.memory.synchronize()
        self.steps_s.append(time.perf_counter() - self._start)
        self.progress.update(self.task, advance=1, note=f"loss {logs['loss']:.3f}")


def train(models: dict, images: demo_data.Images, args: argparse.Namespace) -> dict:
    """Trains both models on the same batches, an epoch of one after an epoch of the other.

    Taking turns makes their step times comparable on a machine that does other work as well.
    """
    runs = {label: demo_report.Run([], [], []) for label in models}
    steps = -(-len(images.x) // args.batch)
    columns = (
        TextColumn("{task.description:<12}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} steps"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as progress:
        tasks = {
            label: progress.add_task(label, total=steps * args.epochs, note="", start=False)
            for label in models
        }
        for epoch in range(args.epochs):
            order = np.random.default_rng((args.seed, epoch)).permutation(len(images.x))
            for label, model in models.items():
                progress.start_task(tasks[label])
                bar = Bar(progress, tasks[label])
                history = model.fit(
                    images.x[order],
                    images.y[order],
                    batch_size=args.batch,
                    shuffle=False,
                    initial_epoch=epoch,
                    epochs=epoch + 1,
                    verbose=0,
                    callbacks=[bar],
                )
                _, accuracy = model.evaluate(images.x_test, images.y_test, batch_size=500, verbose=0)
                runs[label].losses.append(history.history["loss"][0])
                runs[label].accuracies.append(accuracy)
                runs[label].steps_s.extend(bar.steps_s[2:])  # the first ones trace and warm up
                progress.update(tasks[label], note=f"test accuracy {accuracy:.1%}")
    return runs


def measure(models: dict, images: demo_data.Images, batch: int) -> dict:
    """Peak and saved bytes of a training step."""
    with console.status("measuring the memory of a step"):
        return {
            label: ct.memory.measure_step(model, images.x[:batch], images.y[:batch])
            for label, model in models.items()
        }


def under_limit(models: dict, images: demo_data.Images, guesses: dict, limit_bytes: int) -> Limited:
    """Finds the largest batch of each model, then trains one that only the compressed model can."""
    largest = {}
    with ct.memory.limit(limit_bytes):
        for label, model in models.items():
            with console.status(f"looking for the largest batch, {label}"):
                largest[label] = largest_batch(model, images, guesses[label])
            console.print(f"  {label}: the largest batch that trains is {largest[label]}")
        batch = 2 * largest["plain"]
        error, _ = attempt(models["plain"], images, batch)
        console.print(f"  batch {batch}, plain:      {error or 'trains'}", highlight=False)
        failure, loss = attempt(models["compressed"], images, batch)
        console.print(
            f"  batch {batch}, compressed: {failure or f'trains, loss {loss:.3f}'}", highlight=False
        )
    if not error or failure:
        raise SystemExit(f"Batch {batch} was to stop plain training only. Run again with another --limit-mb.")
    return Limited(limit_bytes, largest, batch, error, loss)


def largest_batch(model: keras.Model, images: demo_data.Images, guess: int) -> int:
    """Bisects, from a guess, to about 3%."""
    fits, fails, batch = 0, None, guess
    while fails is None or fails - fits > max(2, fails // 32):
        error, _ = attempt(model, images, batch)
        if error:
            fails = batch
        else:
            fits = batch
        if fails is None:
            batch = fits + fits // 8 + 1
        elif fits:
            batch = (fits + fails) // 2
        else:
            batch = fails - fails // 8 - 1
    return fits


def attempt(model: keras.Model, images: demo_data.Images, batch: int) -> tuple[str, float]:
    """(how it ran out of memory or "", loss) of two training steps with a batch."""
    x, y = (np.resize(a, (2 * batch, *a.shape[1:])) for a in (images.x, images.y))
    try:
        history = model.fit(x, y, batch_size=batch, shuffle=False, verbose=0)
    except tf.errors.ResourceExhaustedError as error:
        message = re.search(r"memory limit of .*? are in use", error.message, re.DOTALL)
        return f"ResourceExhaustedError: {message[0] if message else error.message[:200]}", 0.0
    return "", history.history["loss"][0]


def main() -> None:
    args = parse()
    started = time.perf_counter()
    tf.config.set_visible_devices([], "GPU")  # the figures are those of the CPU's allocator
    images = demo_data.load(args.out, args.train, args.test, args.offline)
    steps = args.epochs * -(-len(images.x) // args.batch)
    models = {label: compiled(resnet(args.blocks, args.seed), steps) for label in LABELS}
    bound = None if args.error_bound is None else ct.ErrorBound(args.error_bound)
    report = ct.compress_model(models["compressed"], codec=args.codec, error_bound=bound)
    console.print(
        f"{demo_report.network(args)}, {models['plain'].count_params():,} weights; {len(images.x):,} training and "
        f"{len(images.x_test):,} test images ({images.source}); the same seed and batches for both."
    )

    runs = train(models, images, args)
    memory = measure(models, images, args.measure_batch)
    runs = {
        label: run._replace(memory=memory[label], step_s=statistics.median(run.steps_s))
        for label, run in runs.items()
    }
    console.print(demo_report.table(runs, args.batch, args.measure_batch))
    console.print(demo_report.certainty(runs["plain"], len(images.x_test)), "Many seeds: docs/accuracy.md.")

    limit_bytes = round(args.limit_mb * 1e6)
    console.print(f"Under one memory limit, {args.limit_mb:g} MB:")
    guesses = {
        label: max(round(0.9 * limit_bytes * args.measure_batch / run.memory.peak_bytes), 1)
        for label, run in runs.items()
    }
    limited = under_limit(models, images, guesses, limit_bytes)
    console.print(
        f"  {limited.largest['compressed'] / limited.largest['plain']:.1f} times the batch in the same memory"
    )

    page = demo_report.write(args, runs, limited, report, images)
    console.print(f"Wrote {page} and {page.with_name('demo.png')} in {time.perf_counter() - started:.0f} s.")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64, help="images a training batch (%(default)s)")
    parser.add_argument("--train", type=int, default=8000, help="training images (%(default)s)")
    parser.add_argument("--test", type=int, default=10000, help="test images, at most (%(default)s)")
    parser.add_argument(
        "--blocks", type=int, default=3, help="residual blocks a stage: 3 make a ResNet-20 (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--codec", default="plane", help="plane (the default), rans, zvc or auto")
    parser.add_argument(
        "--error-bound",
        type=float,
        help="largest error / standard deviation of every stored tensor (compress_model's own bounds)",
    )
    parser.add_argument(
        "--measure-batch", type=int, default=256, help="batch whose memory is compared (%(default)s)"
    )
    parser.add_argument(
        "--limit-mb", type=float, default=256, help="memory limit of the second part (%(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("demo_out"), help="folder for the report (%(default)s)"
    )
    parser.add_argument("--offline", action="store_true", help="use the shipped images, download nothing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
