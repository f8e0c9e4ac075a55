"""Ratio, speed and error of this library's codecs and of others on the same arrays, in one run:

    python benchmarks/codec/compare.py --train-steps 300 --data fields.npz --plot codecs.png

Speeds are taken in two child processes: one pinned to one core, with TensorFlow's threads set to one,
where time is the processor's; and one on all cores, where it is the clock's.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import arrays as arrays_of
import contenders
import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tf_comptrain.cli.options import add_codecs, positive

KINDS = {"relu": "ReLU outputs", "dense": "batch normalization outputs", "field": "smooth fields"}
_SPEEDS = ("compress_gb_s", "decompress_gb_s")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parses the arguments; argparse exits with status 2 on bad ones."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--train-steps", type=_count, default=150, help="of the network; 0: none (%(default)s)"
    )
    parser.add_argument("--batch", type=positive, default=128, help="images of activations (%(default)s)")
    parser.add_argument("--images", type=Path, help="npz with x_train, y_train to train on (generated ones)")
    parser.add_argument("--data", type=Path, nargs="+", default=[], help="npz files of fields")
    add_codecs(parser, contenders.contenders())
    parser.add_argument("--plot", type=Path, help="write ratio against speed to this image")
    return parser.parse_args(argv)


def main(args: argparse.Namespace) -> int:
    """Measures, prints and plots; returns 1 when a measurement failed, 2 for files that do not serve."""
    console = Console(stderr=True)
    try:
        arrays = _arrays(args, console)
    except (OSError, ValueError) as error:
        console.print(str(error), style="red", markup=False)
        return 2
    known = contenders.contenders()
    chosen = {name: known[name] for name in args.codecs or known}
    missing = {name: c.package for name, c in chosen.items() if not c.installed}
    for name, package in missing.items():
        console.print(f"{name}: not installed (pip install {package}, or tf_comptrain[bench])", markup=False)
    rows = measure(arrays, [name for name in chosen if name not in missing], args, console)
    if args.json:
        print(json.dumps(rows, indent=1))
    else:
        Console(width=None if os.isatty(1) else 140).print(table(rows))
    if args.plot:
        plot(rows, args.plot)
    return 1 if any(row["ratio"] is None for row in rows) else 0


def _arrays(args: argparse.Namespace, console: Console) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    if args.train_steps:
        with console.status("training a small network"):
            arrays.update(arrays_of.activations(args.train_steps, args.batch, args.images))
    for path in args.data:
        arrays.update(arrays_of.fields(path))
    if not arrays:
        raise ValueError("`--train-steps` 0 needs `--data`: there is nothing to compress.")
    return arrays


def measure(
    arrays: dict[str, np.ndarray], codecs: list[str], args: argparse.Namespace, console: Console
) -> list[dict[str, Any]]:
    """One row for each codec and array; null where a measurement failed or does not apply."""
    known = contenders.contenders()
    sigmas = {name: float(np.std(x, dtype=np.float64)) for name, x in arrays.items()}
    bounds = {name: [ratio * sigma for ratio in args.eb_sigma] for name, sigma in sigmas.items()}
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder, Progress(console=console) as progress:
        file = Path(folder) / "arrays.npz"
        contents: dict[str, Any] = {**arrays, **{f"{name}@eb": ebs for name, ebs in bounds.items()}}
        np.savez(file, **contents)
        threaded = [name for name in codecs if known[name].threads]
        calls = sum(1 if known[name].lossless else len(args.eb_sigma) for name in [*codecs, *threaded])
        task = progress.add_task("measuring", total=len(arrays) * calls)
        one = _run_worker(file, 1, codecs, args.repeats, lambda: progress.advance(task))
        every = _run_worker(file, cores, threaded, args.repeats, lambda: progress.advance(task))
    rows = []
    for data in arrays:
        for codec in codecs:
            for eb in [0.0] if known[codec].lossless else bounds[data]:
                found = one.get((codec, data, eb)) or {}
                found_all = every.get((codec, data, eb)) or {}
                row: dict[str, Any] = {"codec": codec, "data": data, "eb": eb, "ratio": found.get("ratio")}
                row.update({speed: found.get(speed) for speed in _SPEEDS})
                row.update({f"{speed}_all": found_all.get(speed) for speed in _SPEEDS})
                row.update({name: found.get(name) for name in ("max_error", "zeros_kept")})
                rows.append(row)
    return rows


def _run_worker(file: Path, threads: int, codecs: list[str], repeats: int, advance: Any) -> dict:
    """What the worker says of each codec and array; what it never came to is left out."""
    if not codecs:
        return {}
    command = [
        sys.executable,
        str(Path(__file__).with_name("worker.py")),
        "--arrays",
        str(file),
        "--threads",
        str(threads),
    ]
    command += ["--threads", str(threads), "--repeats", str(repeats), "--codecs", *codecs]
    environment = dict(os.environ, CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS=str(threads))
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    parent = str(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [parent, environment.get("PYTHONPATH")]))
    found = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            answer = json.loads(line)
            found[answer["codec"], answer["data"], answer["eb"]] = answer["result"]
            advance()
    return found


def table(rows: list[dict[str, Any]]) -> Table:
    """Rows as a table, one section for each array."""
    shown = Table(
        title="codecs: GB of float32 a second",
        caption="One core: time on the processor. All cores: by the clock; empty where a codec has no threads.",
    )
    for heading in ("data", "codec"):
        shown.add_column(heading)
    for heading in ("bound", "ratio", "compress", "decompress", "all cores", "", "max error", "zeros kept"):
        shown.add_column(heading, justify="right")
    for number, row in enumerate(rows):
        last = number + 1 == len(rows) or rows[number + 1]["data"] != row["data"]
        first = number == 0 or rows[number - 1]["data"] != row["data"]
        speeds = [row[f"{speed}{cores}"] for cores in ("", "_all") for speed in _SPEEDS]
        kept = row["zeros_kept"]
        shown.add_row(
            row["data"] if first else "",
            row["codec"],
            f"{row['eb']:.3g}",
            "failed" if row["ratio"] is None else f"{row['ratio']:.2f}",
            *("" if speed is None else f"{speed:.2f}" for speed in speeds),
            "" if row["max_error"] is None else f"{row['max_error']:.3g}",
            "" if kept is None else f"{kept:.1%}",
            end_section=last,
        )
    return shown


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Ratio against speed on one core: geometric means over the arrays of each kind, at the first bound."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    first: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        if row["ratio"] is not None:
            first.setdefault((row["codec"], row["data"]), row)
    kinds = [kind for kind in KINDS if any(row["data"].startswith(kind + "/") for row in rows)]
    codecs = list(dict.fromkeys(row["codec"] for row in rows))
    colors = dict(zip(codecs, pyplot.get_cmap("tab20").colors * 2))
    figure, axes = pyplot.subplots(
        2, len(kinds), figsize=(4.6 * len(kinds), 7.5), squeeze=False, sharex="col", sharey=True
    )
    for column, kind in enumerate(kinds):
        for line, speed in enumerate(_SPEEDS):
            axis = axes[line][column]
            for codec in codecs:
                here = [r for (c, data), r in first.items() if c == codec and data.startswith(kind + "/")]
                if here:
                    x, y = _mean([r["ratio"] for r in here]), _mean([r[speed] for r in here])
                    own = codec.split()[0] in contenders.OWN
                    marker = {"marker": "D", "edgecolors": "black"} if own else {"marker": "o"}
                    axis.scatter(x, y, color=colors[codec], label=codec, s=45, zorder=3, **marker)
            axis.set(xscale="log", yscale="log")
            for each in (axis.xaxis, axis.yaxis):
                each.set_major_formatter(ticker.FuncFormatter(lambda v, _: f"{v:g}"))
            axis.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
            axis.xaxis.set_minor_formatter(ticker.NullFormatter())
            axis.grid(alpha=0.3)
        axes[0][column].set_title(KINDS[kind])
        axes[1][column].set_xlabel("ratio to float32")
    axes[0][0].set_ylabel("compress, GB/s of one core")
    axes[1][0].set_ylabel("decompress, GB/s of one core")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    figure.set_layout_engine("constrained")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def _count(text: str) -> int:
    return 0 if text == "0" else positive(text)


if __name__ == "__main__":
    sys.exit(main(parse(sys.argv[1:])))
