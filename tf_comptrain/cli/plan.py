"""`tf-comptrain plan`: how a model's training step fits into a limit."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from tf_comptrain.cli import options
from tf_comptrain.render.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from tf_comptrain.model_planning.model_plan import ModelPlan
    from tf_comptrain.planner import DevicePlan, Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of `main`."""
    options.add_model(parser, batch="images a step")
    parser.add_argument(
        "--memory",
        type=options.size_in_bytes,
        help="bytes of a device, such as 2GB or 500MB; with --devices what the machine has where it is left out",
    )
    parser.add_argument(
        "--devices",
        type=options.positive,
        default=1,
        help="plan stages and splits over so many (%(default)s)",
    )
    options.add_jit_compile(parser)
    parser.add_argument("--hardware", type=Path, help="JSON of a machine that is not here")
    parser.add_argument("--seed", type=options.seed, default=0, help="of the search (%(default)s)")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of each search (%(default)s)")
    options.add_json(parser)
    parser.add_argument(
        "--out", type=options.file_to_write, help="file for the plan's JSON, which ModelPlan.from_json reads"
    )
    parser.set_defaults(function=main)


def main(args: argparse.Namespace) -> int:
    """Prints the plan; returns 1 where none fits, 2 for arguments that do not do."""
    from tf_comptrain import model_planning  # imports TensorFlow
    from tf_comptrain.cli import bench_worker

    console = Console(stderr=True)
    model = bench_worker.build(args.model, args.image, args.loss, jit_compile=args.jit_compile)
    with console.status("compiling steps" if args.jit_compile else "measuring steps, planning") as status:

        def show(progress: Progress) -> None:
            status.update(f"planning: {_standing(progress)} (Ctrl-C keeps the best so far)")

        try:
            plan = model_planning.plan(
                model,
                args.batch,
                args.memory,
                args.hardware,
                args.seed,
                args.budget,
                devices=args.devices,
                progress=show,
            )
        except (OSError, ValueError) as error:
            print(error, file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("Interrupted before there is a plan.", file=sys.stderr)
            return 130
    if args.out is not None:
        args.out.write_text(plan.to_json())
    print(json.dumps(summary(plan), indent=1) if args.json else plan)
    return 0 if plan.feasible else 1


def _standing(progress: Progress) -> str:
    if progress.step_s is not None:
        return f"step {format_seconds(progress.step_s)}, bound {format_seconds(progress.bound_s)}"
    if progress.peak_bytes is not None:  # of a step that XLA compiled and that did not run
        return f"{format_bytes(progress.peak_bytes)} in {progress.elapsed_s:.0f} s"
    return "none yet"


def summary(plan: ModelPlan | DevicePlan) -> dict:
    """What --json prints."""
    from tf_comptrain.model_planning.model_plan import ModelPlan

    if not isinstance(plan, ModelPlan):
        return {"peak_bytes": plan.peak_bytes, **json.loads(plan._replace(events=()).to_json())}
    fields = ("peak_bytes", "step_s", "bound_s", "gap", "feasible", "smallest_bytes")
    layers = {row.tensor: row._asdict() for row in plan.rows}
    for row in layers.values():
        del row["tensor"]
    return {**{name: getattr(plan, name) for name in fields}, "layers": layers}
