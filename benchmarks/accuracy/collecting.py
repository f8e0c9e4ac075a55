"""What AdaptiveErrorBound costs: CPU time of a step without it, with it, and of a collecting step.

    python benchmarks/accuracy/collecting.py [--network resnet14] [--batch 64]

Two equal models, with and without the statistics in their train step, take turns on the same batch. The
cost of the callback is what its train step takes more on all steps, plus what a collecting step takes more
still, with the update of the bounds, over the interval.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import networks
import numpy as np

import tf_comptrain as ct
from tf_comptrain import _keras


def compressed(network: str) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = networks.BUILDERS[network]()
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    ct.compress_model(model)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", choices=networks.BUILDERS, default="resnet14")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=40)
    args = parser.parse_args()
    random = np.random.default_rng(0)
    models = {"without": compressed(args.network), "with": compressed(args.network)}
    shape = models["with"].input_shape[1:]
    x = random.normal(size=(args.batch, *shape)).astype("float32")
    y = random.integers(0, 10, args.batch)
    callback = ct.AdaptiveErrorBound(interval=10**9, warmup=0)
    callback.set_model(models["with"])
    callback.on_train_begin()
    callback.on_epoch_begin(0)
    steps = {name: _keras.train_step_runner(model, x, y) for name, model in models.items()}

    def collecting() -> None:
        callback._next = 0
        callback.on_train_batch_begin(0)
        steps["with"]()
        callback.on_train_batch_end(0)

    runs = {"without": steps["without"], "with": steps["with"], "collecting": collecting}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(args.repeats + 3):
        for name, run in runs.items():
            start = time.process_time()
            run()
            if repeat >= 3:
                seconds[name].append(time.process_time() - start)
    interval = ct.AdaptiveErrorBound().interval
    pairs = zip(seconds["without"], seconds["with"], seconds["collecting"])
    costs = [100 * ((w - p) + (c - w) / interval) / p for p, w, c in pairs]
    mean = statistics.fmean(costs)
    half = 1.96 * statistics.stdev(costs) / len(costs) ** 0.5
    medians = {name: round(1e3 * statistics.median(values), 2) for name, values in seconds.items()}
    print(f"median CPU ms: {medians}")
    print(
        f"cost at the default interval of {interval} steps: {mean:+.2f}% [{mean - half:+.2f}, {mean + half:+.2f}]"
    )


if __name__ == "__main__":
    main()
