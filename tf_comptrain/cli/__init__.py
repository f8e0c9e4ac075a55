"""The command `tf-comptrain`: what works on this machine, and what a training step takes.

tf-comptrain doctor
tf-comptrain bench step --model ResNet50 --image 224 --batch 8
tf-comptrain bench batch --model ResNet50 --image 224 --limit 2GB
tf-comptrain bench codec
tf-comptrain plan --model ResNet50 --image 224 --batch 8 --memory 1GB
tf-comptrain calibrate
tf-comptrain study FILE.py
tf-comptrain launch -n 4 train.py
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from absl import app
from absl.flags import argparse_flags

from tf_comptrain.cli import bench, bench_batch, bench_codec, bench_worker, doctor, launch, plan, study


def main() -> None:
    """Entry point of the console script; exits with the command's status."""
    app.run(run, flags_parser=parse, argv=sys.argv)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parses a command line, the program's name first; argparse exits with status 2 on a bad one."""
    parser = argparse_flags.ArgumentParser(prog="tf-comptrain", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    check = commands.add_parser("doctor", help="versions, op library, devices; what is active and why not")
    check.set_defaults(function=lambda args: doctor.main())

    benches = commands.add_parser("bench", help="measure").add_subparsers(
        dest="bench", required=True, metavar="WHAT"
    )
    step = benches.add_parser(
        "step", help="peak memory, time and saved bytes of one training step, plain and compressed"
    )
    step.add_argument("--model", default="ResNet50", help="a model of keras.applications (%(default)s)")
    step.add_argument(
        "--image", type=bench.positive, default=224, help="image width and height (%(default)s)"
    )
    step.add_argument("--batch", type=bench.positive, default=8, help="images a batch (%(default)s)")
    step.add_argument(
        "--steps", type=bench.positive, default=5, help="measured steps of each variant (%(default)s)"
    )
    bench_worker.add_compression_arguments(step)
    step.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    step.set_defaults(function=bench.main)
    bench_codec.add_arguments(
        benches.add_parser("codec", help="ratio, speed and error of this library's codecs on the same arrays")
    )
    bench_batch.add_arguments(
        benches.add_parser("batch", help="the largest batch that trains under a limit, plain and compressed")
    )
    plan.add_arguments(
        commands.add_parser("plan", help="how a training step fits into a memory limit in the least time")
    )
    plan.add_calibrate_arguments(
        commands.add_parser("calibrate", help="what codecs and memory take on this machine")
    )
    study.add_arguments(
        commands.add_parser(
            "study", help="what compression does to a network of your own: table, report, policy"
        )
    )
    launch.add_arguments(commands.add_parser("launch", help="train by several processes: ct.distribute.fit"))
    return parser.parse_args(argv[1:])


def run(args: argparse.Namespace) -> int:
    """Runs a parsed command; returns its exit status."""
    return args.function(args)
