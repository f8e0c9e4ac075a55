"""What AdaptiveErrorBound's shared budget saves: bytes of the tensors it steers, at the same error of all gradients.

    python benchmarks/accuracy/budget.py --cifar CIFAR10.npz --text tinyshakespeare.txt

Each network trains for some steps; then, its weights as they are, the callback sets the bounds once with the same
relative error for every gradient, once with what `theory.shared_tolerance` gives each. Errors are measured
(`check_error_law`, on the batch that the bounds are made for): root mean square over the weights' gradients.
"""

from __future__ import annotations

import argparse
import os
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import data
import keras
import networks
import numpy as np

import tf_comptrain as ct

_NETWORKS = ("resnet20", "vgg_small", "decoder")
_WIDE = (1e-4, 100.0)


class Found(NamedTuple):
    """With one way of sharing.

    Attributes:
      stream_bytes: Of all tensors that are steered.
      errors: Measured error of each gradient, root mean square over its elements.
      targets: What each was meant to be.
    """

    stream_bytes: float
    errors: dict[str, float]
    targets: dict[str, float]


class Alike(ct.AdaptiveErrorBound):
    """With the same relative error for every gradient."""

    def _tolerances(self, usable):
        return [self.tolerance] * len(usable)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cifar", required=True, help="CIFAR-10 as .npz; see data.load")
    parser.add_argument("--text", required=True, help="text file for the decoder")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100, help="of training before")
    parser.add_argument("--tolerances", type=float, nargs="+", default=[0.05, 0.2])
    args = parser.parse_args()
    print(
        "| network | tolerance | limits, sigma | MB alike | error alike | MB shared | error shared | shared / alike |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name in _NETWORKS:
        x, y = samples(name, args)
        model = trained(name, x, y, args.batch)
        batch = (x[: args.batch], y[: args.batch])
        for tolerance in args.tolerances:
            for limits in (_WIDE, (0.01, 0.5)):
                alike, shared = (
                    steered(model, batch, kind, tolerance, limits) for kind in (Alike, ct.AdaptiveErrorBound)
                )
                gradients = {layer: target / tolerance for layer, target in alike.targets.items()}
                cells = [name, f"{tolerance}", f"{limits[0]:g}-{limits[1]:g}"]
                for way in (alike, shared):
                    cells += [f"{way.stream_bytes / 1e6:.2f}", f"{error(way, gradients):.3f}"]
                cells.append(f"{shared.stream_bytes / alike.stream_bytes:.3f}")
                print(f"| {' | '.join(cells)} |", flush=True)


def samples(name: str, args: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    count = args.batch * args.steps
    if name == "decoder":
        context = networks.BUILDERS[name]().input_shape[1]
        text = data.load_text(args.text).training
        starts = np.random.default_rng(1).integers(len(text) - context - 1, size=count)
        passages = text[starts[:, None] + np.arange(context + 1)]
        return passages[:, :-1], passages[:, 1:]
    images = data.load(args.cifar, count, 1)
    return data.scaled(images.x), images.y


def trained(name: str, x: np.ndarray, y: np.ndarray, batch: int) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = networks.BUILDERS[name]()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.02, momentum=0.9), loss, jit_compile=False)
    ct.compress_model(model)
    model.fit(x, y, batch_size=batch, epochs=1, verbose=0)
    model.compile(keras.optimizers.SGD(0.0), loss, jit_compile=False)
    return model


def error(found: Found, gradients: dict[str, float]) -> float:
    """Root mean square of the relative errors."""
    return float(np.sqrt(np.mean([(found.errors[name] / gradients[name]) ** 2 for name in gradients])))


def steered(model: keras.Model, batch, kind: type, tolerance: float, limits: tuple[float, float]) -> Found:
    bounds = kind(interval=1, warmup=0, smoothing=0.0, tolerance=tolerance, limits=limits)
    x, y = (np.concatenate([part] * 3) for part in batch)
    model.fit(x, y, batch_size=len(batch[0]), shuffle=False, verbose=0, callbacks=[bounds])
    last = {update.layer: update for update in bounds.updates}
    streams = {name.split(" -> ")[0]: update.stream_bytes for name, update in last.items()}
    checks = [check for check in ct.check_error_law(model, *batch) if check.gradient != "input"]
    errors = {check.layer: check.measured_sigma for check in checks if check.layer in last}
    targets = {name: last[name].target_sigma for name in errors}
    return Found(sum(streams.values()), errors, targets)


if __name__ == "__main__":
    main()
