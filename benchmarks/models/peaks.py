"""Peak memory and time of a training step of nine networks: plain, with fused batch normalization, compressed.

    python benchmarks/models/peaks.py --text tinyshakespeare.txt --out peaks.jsonl

Each variant of a network lives in a child process of its own; the variants take turns, step by step.
Every network adds a line to the file; those that are there already are not measured again. The
table is printed from the file. Peaks are bytes of TensorFlow's allocator over the resting level, the
highest of all steps, the first included.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from nets import NETS
from rich.console import Console

from tf_comptrain.cli import bench, bench_worker

_HEADINGS = (
    "network, batch",
    "peak plain",
    "fused BN",
    "compressed",
    "plain / compressed (target)",
    "predicted / measured: plain, compressed",
    "saved plain / compressed",
    "step compressed / plain (limit)",
    "step compressed / fused BN",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nets", nargs="+", choices=list(NETS), default=list(NETS))
    parser.add_argument("--out", type=Path, default=Path("peaks.jsonl"))
    parser.add_argument("--text", type=Path, help="text file for the decoder (random characters)")
    parser.add_argument("--steps", type=int, default=10, help="steps of each variant after two of warm-up")
    parser.add_argument("--predict", action="store_true", help="also predict the peaks, from small batches")
    parser.add_argument("--variant", choices=bench_worker.VARIANTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.variant:
        net = NETS[options.nets[0]]
        bench_worker.serve(lambda: net.make(options.variant, net.batch, options.text))
        return 0
    failed = [name for name in options.nets if name not in measured(options.out) and not run(name, options)]
    print(table(measured(options.out)))
    return 1 if failed else 0


def measured(path: Path) -> dict[str, dict]:
    """The file's lines, by network."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {entry["net"]: entry for entry in map(json.loads, lines)}


def run(name: str, options: argparse.Namespace) -> bool:
    """Measures one network and appends its line; False where a variant failed."""
    command = [sys.executable, str(Path(__file__).resolve()), "--nets", name]
    if options.text:
        command += ["--text", str(options.text.resolve())]
    console = Console(stderr=True)
    console.print(name)
    results = bench.measure(command, options.steps, console, predict=options.predict)
    if None in results.values():
        return False
    entry = {"net": name, **{variant: found._asdict() for variant, found in results.items()}}
    with options.out.open("a") as file:
        file.write(json.dumps(entry) + "\n")
    return True


def table(entries: dict[str, dict]) -> str:
    """Of the networks in the file, in the order of `NETS`, as Markdown."""
    rows = [_HEADINGS, ("---",) * len(_HEADINGS)]
    rows += [row(name, entries[name]) for name in NETS if name in entries]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def row(name: str, entry: dict) -> tuple[str, ...]:
    plain, fused, compressed = (bench.MeasuredVariant(**entry[variant]) for variant in bench_worker.VARIANTS)
    net = NETS[name]
    return (
        f"{name}, {net.batch}",
        *(f"{found.peak_bytes / 1e6:,.0f} MB" for found in (plain, fused, compressed)),
        f"{plain.peak_bytes / compressed.peak_bytes:.1f} ({net.target})",
        ", ".join(predicted(found) for found in (plain, compressed)),
        f"{plain.saved_bytes / compressed.saved_bytes:.1f}",
        f"{bench.paired_ratio(compressed, plain):.2f} ({net.step_target})",
        f"{bench.paired_ratio(compressed, fused):.2f}",
    )


def predicted(found: bench.MeasuredVariant) -> str:
    return "" if found.predicted_bytes is None else f"{found.predicted_bytes / found.peak_bytes:.2f}"


if __name__ == "__main__":
    sys.exit(main())
