"""`tf-comptrain bench batch`: the largest batch that trains under a memory limit, plain and compressed."""

from __future__ import annotations

import argparse
import functools
import json
import sys

from rich.console import Console
from rich.table import Table

from tf_comptrain import arguments
from tf_comptrain.cli import bench, bench_worker
from tf_comptrain.compression.report import format_bytes
from tf_comptrain.memory import MaxBatch, TrialError, find_max_batch_size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="ResNet50", help="a model of keras.applications (%(default)s)")
    parser.add_argument(
        "--image", type=bench.positive, default=224, help="image width and height (%(default)s)"
    )
    parser.add_argument(
        "--limit",
        type=parse_bytes,
        help="bytes, such as 2GB or 500MB (the device's memory; 90%% of what is free)",
    )
    parser.add_argument(
        "--max-batch", type=bench.positive, default=65536, help="the largest tried (%(default)s)"
    )
    parser.add_argument(
        "--tolerance",
        type=_tolerance,
        default=0.02,
        help="stop this close to a batch that fails (%(default)s)",
    )
    bench_worker.add_compression_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.set_defaults(function=main)


def parse_bytes(text: str) -> int:
    """2GB -> 2000000000"""
    try:
        return arguments.size_in_bytes("--limit", text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _tolerance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, below 1. Received: {text!r}")
    return value


def main(args: argparse.Namespace) -> int:
    """Searches and prints; returns 1 when a trial failed for another reason than memory."""
    refusal = bench.unknown_model(args.model)
    if refusal:
        print(refusal, file=sys.stderr)
        return 2
    console = Console(stderr=True)
    options = {"codec": args.codec, "storage": args.storage}
    results = {}
    for variant in ("plain", "compressed"):
        try:
            results[variant] = find_max_batch_size(
                functools.partial(bench_worker.build, args.model, args.image, variant, **options),
                args.limit,
                max_batch=args.max_batch,
                compress=False,  # the build does it
                tolerance=args.tolerance,
                progress=functools.partial(console.print, f"{variant}:", markup=False),
            )
        except TrialError as error:
            console.print(f"{variant}: {error}", style="red", markup=False)
            return 1
    if args.json:
        print(json.dumps({name: found._asdict() for name, found in results.items()}, indent=1))
    else:
        Console().print(_table(args, results))
    return 0


def _table(args: argparse.Namespace, results: dict[str, MaxBatch]) -> Table:
    plain, compressed = results["plain"], results["compressed"]
    limit = format_bytes(plain.limit_bytes) if plain.limit_bytes else "the device's memory"
    table = Table(
        title=f"{args.model}, {args.image} x {args.image} px: largest batch in {limit}",
        caption=f"compressed / plain: {compressed.batch / plain.batch:.1f}" if plain.batch else None,
        caption_style="",
    )
    for heading in ("", "largest batch", "predicted", "trials"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, found in results.items():
        predicted = "" if found.predicted is None else str(found.predicted)
        table.add_row(
            name, str(found.batch) if found.batch else "none fits", predicted, str(len(found.trials))
        )
    return table
