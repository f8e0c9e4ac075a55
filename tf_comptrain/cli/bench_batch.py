"""`tf-comptrain bench batch`: the largest batch that trains under a memory limit, plain and compressed."""

from __future__ import annotations

import argparse
import functools
import json
from typing import TYPE_CHECKING

from rich.console import Console

from tf_comptrain.cli import options
from tf_comptrain.render import text
from tf_comptrain.render.units import format_bytes

if TYPE_CHECKING:
    from tf_comptrain.memory import MaxBatch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of `main`."""
    options.add_model(parser)
    parser.add_argument(
        "--limit",
        type=options.size_in_bytes,
        help="bytes, such as 2GB or 500MB (the device's memory; 90%% of what is free)",
    )
    parser.add_argument(
        "--max-batch", type=options.positive, default=65536, help="the largest tried (%(default)s)"
    )
    parser.add_argument(
        "--tolerance",
        type=options.fraction,
        default=0.02,
        help="stop this close to a batch that fails (%(default)s)",
    )
    options.add_compression(parser)
    options.add_json(parser)
    parser.set_defaults(function=main)


def main(args: argparse.Namespace) -> int:
    """Searches and prints; returns 1 when a trial failed for another reason than memory."""
    from tf_comptrain.cli import bench_worker, model_source  # imports TensorFlow
    from tf_comptrain.memory import TrialError, find_max_batch_size

    model_source.check(args.model)
    console = Console(stderr=True)
    source = (args.model, args.image, args.loss)
    compression = {"codec": args.codec, "storage": args.storage}
    results = {}
    for variant in ("plain", "compressed"):
        try:
            results[variant] = find_max_batch_size(
                functools.partial(bench_worker.build, *source, variant, **compression),
                args.limit,
                max_batch=args.max_batch,
                compress=False,  # the build does it
                make_batch=functools.partial(bench_worker.batch, *source),
                tolerance=args.tolerance,
                progress=functools.partial(console.print, f"{variant}:", markup=False),
            )
        except TrialError as error:
            console.print(f"{variant}: {error}", style="red", markup=False)
            return 1
    if args.json:
        print(json.dumps({name: found._asdict() for name, found in results.items()}, indent=1))
    else:
        _show(model_source.title(args.model, args.image), results)
    return 0


def _show(name: str, results: dict[str, MaxBatch]) -> None:
    plain, compressed = results["plain"], results["compressed"]
    limit = format_bytes(plain.limit_bytes) if plain.limit_bytes else "the device's memory"
    title = f"{name}: largest batch in {limit}"
    numbers = ("largest batch", "predicted", "trials")
    table = text.table_of(title, ("", *numbers), numbers)
    for variant, found in results.items():
        predicted = "" if found.predicted is None else str(found.predicted)
        table.add_row(
            variant, str(found.batch) if found.batch else "none fits", predicted, str(len(found.trials))
        )
    text.show(table, *[f"compressed / plain: {compressed.batch / plain.batch:.1f}"] if plain.batch else ())
