"""Plans below the smallest step of the whole batch: its peak and seconds in microbatches.

    python benchmarks/planner/microbatches.py

Each network is planned for shares of the peak with everything held, each in a process of its own, and
trained by `fit` as in limits.py. Each measurement adds a line to results/microbatches.jsonl; those that are
there are not made again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from limits import NETS, fitted
from tensorflow import keras

import tf_comptrain as ct

RESULTS = Path(__file__).resolve().parent / "results" / "microbatches.jsonl"
SHARES = (0.85, 0.7, 0.5)
ORDER = ("decoder", "unet", "ResNet50", "VGG16", "DenseNet121")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nets", nargs="+", choices=list(NETS), default=ORDER)
    parser.add_argument("--size", type=int, default=64, help="pixels of an image")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--worker", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.out.parent.mkdir(exist_ok=True)
    if args.worker is not None:
        measure(args.nets[0], args.worker, args)
        return
    for net in args.nets:
        for share in (0.0, *SHARES):
            if (net, share) not in read(args):
                worker = ["--worker", str(share), "--nets", net]
                subprocess.run([sys.executable, __file__, *sys.argv[1:], *worker], check=False)
    print(table(args))


def read(args: argparse.Namespace) -> dict[tuple[str, float], dict]:
    """The file's lines at these sizes, by network and share; 0: everything held, the whole batch."""
    lines = args.out.read_text().splitlines() if args.out.exists() else []
    entries = map(json.loads, lines)
    return {(e["net"], e["share"]): e for e in entries if (e["size"], e["batch"]) == (args.size, args.batch)}


def measure(net: str, share: float, args: argparse.Namespace) -> None:
    keras.utils.set_random_seed(0)
    model = NETS[net](args.size)
    entry = {"net": net, "share": share, "size": args.size, "batch": args.batch}
    if share == 0.0:
        ct.compress_model(model)
    else:
        limit = int(share * read(args)[net, 0.0]["peak"])
        plan = ct.plan(model, args.batch, limit, microbatches=True)
        entry.update(
            limit=limit, feasible=plan.feasible, microbatches=plan.microbatches, planned=plan.peak_bytes
        )
        if plan.feasible:
            plan.apply(model)
    if share == 0.0 or entry["feasible"]:
        entry["peak"], entry["step_s"] = fitted(model, args.batch)
    with args.out.open("a") as file:
        file.write(json.dumps(entry) + "\n")


def table(args: argparse.Namespace) -> str:
    """Markdown."""
    lines = [
        "| network | limit | microbatches | planned peak | peak of 12 steps | of the limit | step / whole |",
        "|---|---|---|---|---|---|---|",
    ]
    found = read(args)
    for net in args.nets:
        whole = found.get((net, 0.0))
        for share in SHARES:
            entry = found.get((net, share))
            if whole is None or entry is None:
                continue
            head = f"| {net} | {entry['limit'] / 1e6:.1f} MB ({share:.2f} of {whole['peak'] / 1e6:.1f}) "
            if not entry["feasible"]:
                lines.append(f"{head}| none found | | | | |")
                continue
            lines.append(
                f"{head}| {entry['microbatches']} | {entry['planned'] / 1e6:.1f} MB | {entry['peak'] / 1e6:.1f} MB "
                f"| {100 * entry['peak'] / entry['limit']:.1f}% | {entry['step_s'] / whole['step_s']:.2f} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
