"""The command `tf-comptrain`: what works on this machine, and what a training step takes.

tf-comptrain doctor
tf-comptrain bench step --model ResNet50 --image 224 --batch 8
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from absl import app
from absl.flags import argparse_flags

from tf_comptrain.cli import bench, doctor


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
    step.add_argument("--image", type=_positive, default=224, help="image width and height (%(default)s)")
    step.add_argument("--batch", type=_positive, default=8, help="images a batch (%(default)s)")
    step.add_argument(
        "--steps", type=_positive, default=5, help="measured steps of each variant (%(default)s)"
    )
    step.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    step.set_defaults(function=bench.main)
    return parser.parse_args(argv[1:])


def run(args: argparse.Namespace) -> int:
    """Runs a parsed command; returns its exit status."""
    return args.function(args)


def _positive(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1. Received: {text!r}")
    return value
