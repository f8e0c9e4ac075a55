"""Predicted against measured gradient errors of every layer, at every collecting step of a training.

    python benchmarks/accuracy/law.py CIFAR10.npz [--codec plane]
    python benchmarks/accuracy/law.py CIFAR10.npz --epochs 2 --fixed 0.5      # what one bound for all gives

Trains a ResNet-14 with `AdaptiveErrorBound(check_data=...)`. For each collecting step: how many of the
gradients (kernel; gamma and input of batch normalizations) have an error within 25% of the prediction.
With `--fixed` every bound of a convolution or dense layer is that multiple of the standard deviation, and
nothing is checked before the end.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import data
import keras
import networks
from meter import Meter

import tf_comptrain as ct


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cifar", help="CIFAR-10 as .npz; see data.load")
    parser.add_argument("--codec", default="plane")
    parser.add_argument("--fixed", type=float, help="bound / standard deviation")
    parser.add_argument("--images", type=int, default=2560)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--interval", type=int, default=40)
    parser.add_argument("--check-batch", type=int, default=64)
    args = parser.parse_args()
    images = data.load(args.cifar, args.images, args.check_batch)
    keras.utils.set_random_seed(1)
    model = networks.BUILDERS["resnet14"]()
    batches = data.Batches(images, 64, seed=1)
    steps = args.epochs * len(batches)
    rate = keras.optimizers.schedules.CosineDecay(0.0, steps, warmup_target=0.1, warmup_steps=steps // 10)
    model.compile(
        keras.optimizers.SGD(rate, momentum=0.9, nesterov=True, weight_decay=5e-4),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    ct.compress_model(model, codec=args.codec)
    check, meter = (data.scaled(images.x_test), images.y_test), Meter(64)
    if args.fixed is None:
        bounds = ct.AdaptiveErrorBound(interval=args.interval, check_data=check)
    else:
        bounds = ct.AdaptiveErrorBound(interval=args.interval, warmup=0, limits=(args.fixed, args.fixed))
    history = model.fit(batches, epochs=args.epochs, verbose=0, callbacks=[bounds, meter]).history
    by_step: dict[int, list[ct.LawCheck]] = {}
    for step, found in bounds.checks:
        by_step.setdefault(step, []).append(found)
    if args.fixed is not None:
        by_step[steps] = ct.check_error_law(model, *check)
    for step, checks in by_step.items():
        for gradient in ("kernel", "gamma", "input"):
            ratios = [(c.ratio, c.holds, c.bound_over_sigma) for c in checks if c.gradient == gradient]
            values = [ratio for ratio, _, _ in ratios]
            print(
                f"step {step}, {gradient}: {sum(holds for _, holds, _ in ratios)} of {len(ratios)} within 25%, "
                f"measured / predicted {min(values):.2f}-{max(values):.2f}, bound / sigma "
                f"{min(b for *_, b in ratios):.2f}-{max(b for *_, b in ratios):.2f}"
            )
    ratios_text = ", ".join(f"{ratio:.1f}" for ratio in meter.epochs)
    print(f"conv inputs {meter.ratio():.1f} (epochs {ratios_text}), loss {history['loss'][-1]:.3f}")


if __name__ == "__main__":
    main()
