"""The command `tf-comptrain`: what works on this machine, and what a training step takes.

tf-comptrain doctor
tf-comptrain bench step --model ResNet50 --image 224 --batch 8
tf-comptrain bench batch --model ResNet50 --image 224 --limit 2GB
tf-comptrain bench codec --plot codecs.png
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import app
from absl.flags import argparse_flags

from tf_comptrain.cli import bench, bench_batch, bench_codec, bench_worker, codec_contenders, doctor


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
    _add_codec(benches)
    bench_batch.add_arguments(
        benches.add_parser("batch", help="the largest batch that trains under a limit, plain and compressed")
    )
    return parser.parse_args(argv[1:])


def _add_codec(benches: argparse._SubParsersAction) -> None:
    codec = benches.add_parser(
        "codec", help="ratio, speed and error of codecs, this library's and others', on the same arrays"
    )
    codec.add_argument(
        "--train-steps", type=_count, default=150, help="of the network; 0: none (%(default)s)"
    )
    codec.add_argument(
        "--batch", type=bench.positive, default=128, help="images of activations (%(default)s)"
    )
    codec.add_argument("--images", type=Path, help="npz with x_train, y_train to train on (generated ones)")
    codec.add_argument("--data", type=Path, nargs="+", default=[], help="npz files of fields")
    codec.add_argument(
        "--eb-sigma", type=_ratio, nargs="+", default=[0.1], help="bounds / standard deviation (0.1)"
    )
    codec.add_argument("--repeats", type=bench.positive, default=7, help="of each call (%(default)s)")
    codec.add_argument("--codecs", nargs="+", choices=list(codec_contenders.contenders()), help="(all)")
    codec.add_argument("--json", action="store_true", help="print a list of JSON objects instead of a table")
    codec.add_argument("--plot", type=Path, help="write ratio against speed to this image")
    codec.set_defaults(function=bench_codec.main)


def run(args: argparse.Namespace) -> int:
    """Runs a parsed command; returns its exit status."""
    return args.function(args)


def _ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 10:
        raise argparse.ArgumentTypeError(f"must be a number above 0, below 10. Received: {text!r}")
    return value


def _count(text: str) -> int:
    return 0 if text == "0" else bench.positive(text)
