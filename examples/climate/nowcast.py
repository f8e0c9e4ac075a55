"""Where it will rain in ten minutes, from four radar images, by a U-Net: four ways of training it.

python examples/climate/nowcast.py
python examples/climate/nowcast.py --limit-mb 2000      # the largest fields that a step of each way takes within that
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import radar
import tensorflow as tf
import unet
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import comparison

import tf_comptrain as ct

_STEP = 64  # of the fields that are tried, in pixels
_PART = 8  # of the training's tiles, which cuts are found with


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tile", type=int, default=128, help="pixels to train with (%(default)s)")
    parser.add_argument("--width", type=int, default=12, help="channels at full resolution (%(default)s)")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--count", type=int, help="tiles to train with, and fields to test with; all of them")
    parser.add_argument(
        "--data", type=Path, default=radar.SHIPPED, help="npz with train and test (the shipped part)"
    )
    parser.add_argument("--limit-mb", type=float, help="of memory; do not train: see above")
    args = comparison.arguments(parser, "climate_out")
    console = Console(width=None if sys.stdout.isatty() else 180)
    if args.limit_mb:
        console.print(largest_fields(args, console))
        return
    train, test = (radar.load(args.data, part) for part in ("train", "test"))
    app = application(args, train, test)
    runs = comparison.compare(app, args, console)
    without = baselines(test, args.count)
    (args.out / "baselines.json").write_text(json.dumps(without))
    words = "; ".join(
        f"{name}: {', '.join(map('{:.3f}'.format, found.values()))}" for name, found in without.items()
    )
    console.print(comparison.table(app, runs, f"rain in ten minutes; {words}"))
    console.print(str(pictures(app, args, test)))


def application(args: argparse.Namespace, train: radar.Fields, test: radar.Fields) -> comparison.Application:
    x, y = (part[: args.count] for part in radar.tiles(train, args.tile))
    whole = test.seen[: args.count], radar.exceeds(test.coming[: args.count])

    def build(recompute: bool):
        return unet.compiled(
            unet.unet(None, args.width, recompute=recompute), args.epochs * len(x) // args.batch
        )

    def evaluate(model) -> dict[str, float]:
        """Of whole fields, with cuts that the training's tiles have found."""
        cuts = radar.best_cuts(model.predict(x[::_PART], args.batch, verbose=0), y[::_PART])
        return radar.scores(logits(model, whole[0]) >= cuts, whole[1])

    return comparison.Application(build, ((x, y), whole), evaluate, True, args.epochs, args.batch)


def logits(model, seen: np.ndarray) -> np.ndarray:
    """Of fields, one after the other."""
    return np.concatenate([model.predict_on_batch(field[None].astype(np.float32)) for field in seen])


def baselines(test: radar.Fields, count: int | None) -> dict[str, dict[str, float]]:
    """What the last image, and that moved on, score as forecasts."""
    truth = radar.exceeds(test.coming[:count])
    forecasts = {"persistence": test.last, "advection": test.seen[..., -1]}
    return {name: radar.scores(radar.exceeds(field[:count]), truth) for name, field in forecasts.items()}


def largest_fields(args: argparse.Namespace, console: Console) -> Table:
    """The largest square field whose step, of one sample, peaks within a limit, for each arm.

    Each is a line of args.out/fields.jsonl; what is there is not looked for again.
    """
    file, setting = args.out / "fields.jsonl", {"limit_mb": args.limit_mb, "width": args.width}
    args.out.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    found = {line["arm"]: line for line in lines if setting.items() <= line.items()}
    shown = Table(title=f"fields within {args.limit_mb:g} MB")
    for heading in ("", "pixels a side", "its peak", "pixels / plain"):
        shown.add_column(heading, justify="right" if heading else "left")
    for arm in ("plain", "recompute", "compressed", "compressed, rebuild"):
        if arm not in found:
            with console.status(f"largest field, {arm}"), file.open("a") as log:
                side, its_peak = largest(arm, args.limit_mb * 1e6, args.width)
                found[arm] = {"arm": arm, **setting, "side": side, "peak_bytes": its_peak}
                print(json.dumps(found[arm]), file=log, flush=True)
        side, its_peak = found[arm]["side"], found[arm]["peak_bytes"]
        more = (side / found["plain"]["side"]) ** 2
        shown.add_row(arm, f"{side}", f"{its_peak / 1e6:.0f} MB", f"{more:.2f}")
    return shown


def largest(arm: str, limit: float, width: int) -> tuple[int, int]:
    """(side, its peak): a small field says about where it is, since a step takes about as much of each pixel."""
    side = 4 * _STEP
    side = max(int(side * (limit / peak(arm, side, width)) ** 0.5) // _STEP, 1) * _STEP
    found = peak(arm, side, width)
    while found > limit and side > _STEP:
        side -= _STEP
        found = peak(arm, side, width)
    while (more := peak(arm, side + _STEP, width)) <= limit:
        side, found = side + _STEP, more
    return side, found


def peak(arm: str, side: int, width: int) -> int:
    """Bytes of a step of one sample over the resting level."""
    model = unet.compiled(unet.unet(side, width, recompute=arm == "recompute"), steps=1)
    if arm.startswith("compressed"):
        ct.compress_model(model, storage="rebuild" if arm.endswith("rebuild") else None)
    x = tf.random.stateless_normal((1, side, side, radar.FRAMES), (0, 1))
    y = tf.zeros((1, side, side, len(radar.THRESHOLDS)))
    return ct.memory.measure_step(model, x, y, steps=1).peak_bytes


def pictures(app: comparison.Application, args: argparse.Namespace, test: radar.Fields) -> Path | str:
    """Writes a forecast of the wettest field: rain seen and to come, and by each arm how likely 4 mm/h are."""
    try:
        from matplotlib import pyplot
    except ImportError:
        return "No pictures: pip install tf_comptrain[plots]."
    wettest = int(test.coming[: args.count].astype(np.float32).mean((1, 2)).argmax())
    rain = {
        "seen": test.last[wettest],
        "ten minutes later": test.coming[wettest],
        "advection": test.seen[wettest, ..., -1],
    }
    likely = {}
    for arm in args.arms[:3]:
        made = logits(comparison.model_of(app, arm, args), test.seen[wettest : wettest + 1])
        likely[arm] = 1 / (1 + np.exp(-made[0, ..., 1]))
    height, width = test.last.shape[1:]
    figure, axes = pyplot.subplots(
        2, 3, figsize=(11, 1 + 7 * height / width), layout="constrained", sharex=True, sharey=True
    )
    edges, names = _edges(test)
    for axis, (name, logs) in zip(axes[0], rain.items()):
        shown = axis.imshow(
            np.where(logs > 0.1, np.expm1(logs.astype(np.float32)), np.nan),
            cmap="turbo", norm="log", vmin=0.5, vmax=64, extent=edges, aspect="auto",
        )  # fmt: skip
        axis.set_title(name, fontsize=10)
    figure.colorbar(shown, ax=axes[0], label="rain, mm/h", ticks=[0.5, 1, 2, 4, 8, 16, 32, 64], format="%g")
    for axis, (arm, probability) in zip(axes[1], likely.items()):
        chances = axis.imshow(probability, cmap="Blues", vmin=0, vmax=1, extent=edges, aspect="auto")
        axis.contour(test.coming[wettest] >= np.log1p(radar.THRESHOLDS[1]), [0.5], colors="k", linewidths=0.4,
                     extent=edges, origin="upper")  # fmt: skip
        axis.set_title(f"U-Net, {arm}", fontsize=10)
    for axis in axes[1][len(likely) :]:
        axis.set_axis_off()
    figure.colorbar(chances, ax=axes[1], label="probability of 4 mm/h")
    figure.supxlabel(names[0], fontsize=9)
    figure.supylabel(names[1], fontsize=9)
    when = f"seen {_clock(test.times[wettest])}; " if test.times else ""
    figure.suptitle(f"{when}black: where 4 mm/h came", fontsize=10)
    file = args.out / "forecasts.png"
    figure.savefig(file, dpi=110)
    pyplot.close(figure)
    return file


def _edges(test: radar.Fields) -> tuple[tuple[float, float, float, float], tuple[str, str]]:
    """(left, right, bottom, top) of the region, and names of the axes."""
    height, width = test.last.shape[1:]
    if test.latitude is None or test.longitude is None:
        return (0, 0.01 * width, 0, 0.01 * height), ("degrees east", "degrees north")
    across, down = test.longitude[[0, -1]], test.latitude[[-1, 0]]
    return (*map(float, across), *map(float, down)), ("degrees east", "degrees north")


def _clock(time: str) -> str:
    """ "20190610-001000" as people write it."""
    return f"{time[:4]}-{time[4:6]}-{time[6:8]} {time[9:11]}:{time[11:13]} UTC"


if __name__ == "__main__":
    main()
