"""Predicted against measured gradient errors of every layer, at every collecting step of a training.

    python benchmarks/accuracy/law.py CIFAR10.npz [--codec plane]

Trains a ResNet-14 with `AdaptiveErrorBound(check_data=...)`. For each collecting step: how many of the
gradients (kernel; gamma and input of batch normalizations) have an error within 25% of the prediction,
before and after dither is switched on where it was not.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import data
import keras
import networks

import tf_comptrain as ct


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cifar", help="CIFAR-10 as .npz; see data.load")
    parser.add_argument("--codec", default="plane")
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--interval", type=int, default=40)
    parser.add_argument("--check-batch", type=int, default=64)
    args = parser.parse_args()
    images = data.load(args.cifar, args.images, args.check_batch)
    keras.utils.set_random_seed(1)
    model = networks.BUILDERS["resnet14"]()
    batches = data.Batches(images, 64, seed=1)
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    ct.compress_model(model, codec=args.codec)
    check = (data.scaled(images.x_test), images.y_test)
    bounds = ct.AdaptiveErrorBound(interval=args.interval, check_data=check)
    model.fit(batches, epochs=args.epochs, verbose=0, callbacks=[bounds])
    by_step: dict[int, list[ct.LawCheck]] = {}
    for step, found in bounds.checks:
        by_step.setdefault(step, []).append(found)
    dithered = 0
    for step, checks in by_step.items():
        for gradient in ("kernel", "gamma", "input"):
            ratios = [(c.ratio, c.holds, c.bound_over_sigma) for c in checks if c.gradient == gradient]
            values = [ratio for ratio, _, _ in ratios]
            print(
                f"step {step}, {gradient}: {sum(holds for _, holds, _ in ratios)} of {len(ratios)} within 25%, "
                f"measured / predicted {min(values):.2f}-{max(values):.2f}, bound / sigma "
                f"{min(b for *_, b in ratios):.2f}-{max(b for *_, b in ratios):.2f}"
            )
        before, dithered = dithered, sum(since <= step for since in bounds.dithered.values())
        if dithered > before:
            print(f"step {step}: dither switched on for {dithered - before} more tensors, {dithered} in all")


if __name__ == "__main__":
    main()
