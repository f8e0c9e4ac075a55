"""Which way a nucleus recoiled, from its track's points in 3-D, by a PointNet: what the same memory gives.

python examples/hep/recoils.py                                           # generated tracks
python examples/hep/recoils.py --data tpc3d_recoils.npz --epochs 12      # see detectors.read_points

The network is trained plain and compressed. Beside it a smaller one is trained plain, on fewer points, whose step takes
about what the compressed one does.
"""

from __future__ import annotations

import argparse
import copy
import sys
from pathlib import Path

import detectors
from classify import scores
from rich.console import Console
from tensorflow import keras

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import comparison

import tf_comptrain as ct

layers = keras.layers


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help=".npz (generated tracks)")
    parser.add_argument("--train", type=int, default=6500, help="tracks to train with (%(default)s)")
    parser.add_argument("--test", type=int, default=1500, help="generated tracks to test with (%(default)s)")
    parser.add_argument("--points", type=int, default=256, help="of a track, at most (%(default)s)")
    parser.add_argument("--width", type=int, default=32, help="channels of the first layer (%(default)s)")
    parser.add_argument("--small-points", type=int, default=128, help="of the smaller network (%(default)s)")
    parser.add_argument("--small-width", type=int, default=24, help="of the smaller network (%(default)s)")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64)
    args = comparison.arguments(parser, "recoils_out")
    console = Console(width=None if sys.stdout.isatty() else 160)
    small = copy.copy(args)
    small.points, small.width, small.arms = args.small_points, args.small_width, [comparison.PLAIN]
    for sizes in (args, small):  # what a run is told by
        del sizes.small_points, sizes.small_width
    found = []
    for sizes in (args, small):
        app = application(sizes)
        found.append(comparison.compare(app, sizes, console))
        x, y = app.data[1]
        skewed = scores(detectors.skewness(x), y)["AUC"]
        title = f"{sizes.points} points, width {sizes.width}; skewness of the charge alone: AUC {skewed:.3f}"
        console.print(comparison.table(app, found[-1], title))
    for arm, runs in found[0].items():
        for name in runs[0].scores[-1]:
            gain, low, high = comparison.changes(name, runs, found[1][comparison.PLAIN])
            console.print(f"{arm}, beyond the smaller network, {name}: {gain:+.4f} [{low:+.4f}, {high:+.4f}]")


def application(args: argparse.Namespace) -> comparison.Application:
    if args.data is None:
        events = detectors.generated_points(args.train, args.test, args.points)
    else:
        events = detectors.read_points(args.data, args.train, args.points)
    steps = args.epochs * len(events.x) // args.batch

    def build(recompute: bool) -> keras.Model:
        return compiled(pointnet(args.points, args.width, recompute), steps)

    data = (events.x, events.y), (events.x_test, events.y_test)
    evaluate = comparison.on_predictions(scores, data[1], args.batch)
    return comparison.Application(build, data, evaluate, True, args.epochs, args.batch)


def pointnet(points: int, width: int, recompute: bool = False) -> keras.Model:
    """[tracks, points, 5] -> logit: layers that all points share, and the largest and the mean of all points.

    Args:
      points: Of a track; the last of their five numbers is 0 where there is none.
      width: Channels of the first three layers; the others have 2 and 4 times as many.
      recompute: Hold the input of the shared layers alone, and run them again in the backward pass.

    Reference:
      Qi et al., PointNet: deep learning on point sets for 3D classification and segmentation (CVPR 2017).
    """
    inputs = keras.Input((points, 5))
    there = inputs[..., 4:]
    shared = keras.Sequential(
        [
            layer
            for filters in (width, width, width, 2 * width, 4 * width)
            for layer in (
                layers.Conv1D(filters, 1, use_bias=False),
                layers.BatchNormalization(momentum=0.9),
                layers.ReLU(),
            )
        ]
    )
    x = (ct.Recompute(shared) if recompute else shared)(inputs[..., :4]) * there
    x = layers.Concatenate()([layers.GlobalMaxPooling1D()(x), layers.GlobalAveragePooling1D()(x)])
    x = layers.Dropout(0.3)(layers.Dense(2 * width, activation="relu")(x))
    return keras.Model(inputs, layers.Dense(1)(x), name="pointnet")


def compiled(model: keras.Model, steps: int) -> keras.Model:
    """Ready to be trained for so many steps."""
    rate = keras.optimizers.schedules.CosineDecay(2e-3, steps)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss, jit_compile=False)
    return model


if __name__ == "__main__":
    main()
