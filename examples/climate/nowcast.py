"""Rain in ten minutes, from four radar images, by a U-Net: plain, compressed, recomputed and offloaded training.

python examples/climate/nowcast.py
python examples/climate/nowcast.py --limit-tile 256      # tiles within the memory of a plain step of 256 pixels
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
import unet
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import comparison

import tf_comptrain as ct

_STEP = 64  # of the tiles that are tried
_LARGEST = 4  # times the tile of the limit


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tile", type=int, default=96, help="pixels to train with (%(default)s)")
    parser.add_argument("--width", type=int, default=8, help="channels at full resolution (%(default)s)")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument(
        "--count", type=int, help="tiles to train with, and to test with at most; all of them"
    )
    parser.add_argument(
        "--data", type=Path, default=unet.SHIPPED, help="npz with train and test (the shipped part)"
    )
    parser.add_argument("--limit-tile", type=int, help="do not train: see above")
    args = comparison.arguments(parser, "climate_out")
    console = Console(width=None if sys.stdout.isatty() else 180)
    if args.limit_tile:
        console.print(tiles(args.limit_tile, args.width, console))
        return
    app = application(args)
    persistence = unet.scores(app.data[1][0][..., -1:], app.data[1][1])
    runs = comparison.compare(app, args, console)
    words = ", ".join(f"{name} {value:.3f}" for name, value in persistence.items())
    console.print(comparison.table(app, runs, f"rain in ten minutes; persistence: {words}"))
    console.print(str(pictures(app, args)))


def application(args: argparse.Namespace) -> comparison.Application:
    def build(recompute: bool):
        return unet.compiled(unet.unet(args.tile, args.width, recompute=recompute))

    train, test = unet.load(args.tile, args.data)
    data = tuple((x[: args.count], y[: args.count]) for x, y in (train, test))
    evaluate = comparison.on_predictions(unet.scores, data[1], args.batch)
    return comparison.Application(build, data, evaluate, False, args.epochs, args.batch)


def tiles(limit_tile: int, width: int, console: Console) -> Table:
    """The largest tile of each arm whose step, of one sample, peaks no higher than plain Keras' at `limit_tile`."""
    limit = peak("plain", limit_tile, width)
    shown = Table(title=f"tiles within {limit / 1e6:.1f} MB, the peak of a plain step of {limit_tile} pixels")
    for heading in ("", "largest tile", "its peak", "pixels / plain"):
        shown.add_column(heading, justify="right" if heading else "left")
    for arm in ("plain", "recompute", "compressed", "compressed, rebuild"):
        with console.status(f"largest tile, {arm}"):
            tile, its_peak = largest(arm, limit, limit_tile, width)
        shown.add_row(arm, f"{tile}", f"{its_peak / 1e6:.1f} MB", f"{(tile / limit_tile) ** 2:.2f}")
    return shown


def largest(arm: str, limit: int, least: int, width: int) -> tuple[int, int]:
    """(tile, its peak), by halving between the plain one and four times that."""
    fits, too_large = (least, peak(arm, least, width)), _LARGEST * least + _STEP
    while too_large - fits[0] > _STEP:
        tile = (fits[0] + too_large) // 2 // _STEP * _STEP
        found = peak(arm, tile, width)
        if found <= limit:
            fits = tile, found
        else:
            too_large = tile
    return fits


def peak(arm: str, tile: int, width: int) -> int:
    """Bytes of a step of one sample over the resting level."""
    model = unet.compiled(unet.unet(tile, width, recompute=arm == "recompute"))
    if arm.startswith("compressed"):
        ct.compress_model(model, storage="rebuild" if arm.endswith("rebuild") else None)
    x, y = tf.random.stateless_normal((1, tile, tile, unet.FRAMES), (0, 1)), tf.zeros((1, tile, tile, 1))
    return ct.memory.measure_step(model, x, y, steps=1).peak_bytes


def pictures(app: comparison.Application, args: argparse.Namespace) -> Path | str:
    """Writes what is forecast of the wettest tile by each arm beside the last image and the truth."""
    try:
        from matplotlib import pyplot
    except ImportError:
        return "No pictures: pip install tf_comptrain[plots]."
    x, y = app.data[1]
    wettest = int(y.mean((1, 2, 3)).argmax())
    shown = {"last image": x[wettest, ..., -1], "ten minutes later": y[wettest, ..., 0]}
    for arm in args.arms:
        model = comparison.model_of(app, arm, args)
        shown[arm] = model.predict(x[wettest : wettest + 1], verbose=0)[0, ..., 0]
    figure, axes = pyplot.subplots(1, len(shown), figsize=(2.3 * len(shown), 2.7), layout="constrained")
    for axis, (name, logs) in zip(axes, shown.items()):
        image = axis.imshow(np.expm1(np.maximum(logs, 0)), cmap="turbo", vmin=0, vmax=12)
        axis.set_title(name, fontsize=9)
        axis.set_axis_off()
    figure.colorbar(image, ax=axes, label="mm/h", shrink=0.8)
    file = args.out / "forecasts.png"
    figure.savefig(file, dpi=130)
    return file


if __name__ == "__main__":
    main()
