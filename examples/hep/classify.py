"""Jets and tracks told apart by convolutional networks: plain, compressed, recomputed and offloaded training.

python examples/hep/classify.py                                # a calorimeter's images, generated
python examples/hep/classify.py --kind tracks                  # 3-D images of tracks, generated
python examples/hep/classify.py --data events.h5               # in the layout of NERSC's HEP-CNN
python examples/hep/classify.py --data jet_images.npz          # see detectors.read_jets; read_tracks with --kind tracks
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import detectors
import numpy as np
from rich.console import Console
from scipy import stats
from tensorflow import keras

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import comparison

import tf_comptrain as ct

layers = keras.layers

_EFFICIENCY = 0.5  # of the signal, at which the background's rejection is given


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--kind", choices=["calorimeter", "tracks"], default="calorimeter", help="(%(default)s)"
    )
    parser.add_argument("--data", type=Path, help=".h5 or .npz (generated events)")
    parser.add_argument("--train", type=int, default=1536, help="events to train with (%(default)s)")
    parser.add_argument("--test", type=int, default=1000, help="generated events to test with (%(default)s)")
    parser.add_argument(
        "--width", type=int, default=8, help="channels of the first convolution (%(default)s)"
    )
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32)
    args = comparison.arguments(parser, "hep_out")
    console = Console(width=None if sys.stdout.isatty() else 160)
    app = application(args)
    runs = comparison.compare(app, args, console)
    console.print(comparison.table(app, runs, args.kind))
    console.print(str(pictures(app, args)))


def application(args: argparse.Namespace) -> comparison.Application:
    events = load(args.kind, args.data, args.train, args.test)
    data = (events.x, events.y), (events.x_test, events.y_test)

    def build(recompute: bool) -> keras.Model:
        return compiled(classifier(events.x.shape[1:], args.width, recompute))

    evaluate = comparison.on_predictions(scores, data[1], args.batch)
    return comparison.Application(build, data, evaluate, True, args.epochs, args.batch)


def load(kind: str, file: Path | None, train: int, test: int) -> detectors.Events:
    """The events of a file, or generated ones."""
    if file is None:
        return detectors.generated(kind, train, test)
    if file.suffix in (".h5", ".hdf5"):
        return detectors.read_hdf5(file)
    read = {"calorimeter": detectors.read_jets, "tracks": detectors.read_tracks}[kind]
    return read(file, train)


def classifier(shape: tuple[int, ...], width: int, recompute: bool = False) -> keras.Model:
    """Three blocks of two convolutions, in two or three dimensions, each then halved: [events, *shape] -> logit."""
    kinds = {3: (layers.Conv2D, layers.MaxPooling2D), 4: (layers.Conv3D, layers.MaxPooling3D)}
    convolution, pooling = kinds[len(shape)]
    x = inputs = keras.Input(shape)
    for level in range(3):
        block = keras.Sequential(
            [
                layer
                for _ in range(2)
                for layer in (
                    convolution(width << level, 3, padding="same", use_bias=False),
                    layers.BatchNormalization(momentum=0.9),
                    layers.ReLU(),
                )
            ]
        )
        x = pooling()((ct.Recompute(block) if recompute else block)(x))
    x = layers.Flatten()(x)
    return keras.Model(inputs, layers.Dense(1)(x), name="classifier")


def compiled(model: keras.Model) -> keras.Model:
    steps = keras.optimizers.schedules.CosineDecay(2e-3, 200, alpha=0.05)
    model.compile(
        keras.optimizers.Adam(steps), keras.losses.BinaryCrossentropy(from_logits=True), jit_compile=False
    )
    return model


def scores(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Accuracy, area under the curve, and background events for each that passes where half of the signal does."""
    logits = logits.reshape(-1)
    signal, background = logits[labels == 1], logits[labels == 0]
    ranks = stats.rankdata(np.concatenate([signal, background]))[: len(signal)]
    area = (ranks.sum() - len(signal) * (len(signal) + 1) / 2) / (len(signal) * len(background))
    passed = max(int((background >= np.quantile(signal, 1 - _EFFICIENCY)).sum()), 1)
    return {
        "accuracy, %": 100 * float(np.mean((logits > 0) == (labels == 1))),
        "AUC": float(area),
        "rejection": len(background) / passed,
    }


def pictures(app: comparison.Application, args: argparse.Namespace) -> Path | str:
    """Writes events of both kinds, with the probability that two ways of training give them to be signal."""
    try:
        from matplotlib import pyplot
    except ImportError:
        return "No pictures: pip install tf_comptrain[plots]."
    x, y = app.data[1]
    arms = args.arms[:2]
    chosen = [*np.flatnonzero(y == 1)[:3], *np.flatnonzero(y == 0)[:3]]
    models = {arm: comparison.model_of(app, arm, args) for arm in arms}
    logits = {arm: model.predict(x[chosen], verbose=0)[:, 0] for arm, model in models.items()}
    figure, axes = pyplot.subplots(1, len(chosen), figsize=(2.1 * len(chosen), 2.7), layout="constrained")
    for number, (axis, event) in enumerate(zip(axes, chosen)):
        image = x[event, ..., 0]
        axis.imshow(image if image.ndim == 2 else image.sum(0).T, cmap="viridis")
        of_arms = ", ".join(f"{1 / (1 + np.exp(-values[number])):.2f}" for values in logits.values())
        axis.set_title(f"{'signal' if y[event] else 'background'}\n{of_arms}", fontsize=9)
        axis.set_axis_off()
    figure.suptitle(f"probability of signal: {', '.join(arms)}", fontsize=9)
    file = args.out / f"{args.kind}.png"
    figure.savefig(file, dpi=130)
    return file


if __name__ == "__main__":
    main()
