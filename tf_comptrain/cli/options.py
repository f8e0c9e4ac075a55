"""Options that several commands have, and their types."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable
from pathlib import Path

from tf_comptrain import arguments

# As `compress_model` has them, whose modules import TensorFlow.
CODECS = ("plane", "rans", "zvc", "auto", "plane+dither", "rans+dither")
STORAGES = ("compress", "rebuild", "keep")


class SourceError(ValueError):
    """A `--model` that names no compiled model; the message says what to do."""


def positive(text: str) -> int:
    """The type of an option that counts something."""
    return _whole(text, 1)


def seed(text: str) -> int:
    """The type of an option that random numbers begin with."""
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    value = int(text) if text.isdecimal() else -1
    if value < least:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}. Received: {text!r}")
    return value


def size_in_bytes(text: str) -> int:
    """The type of an option that is a limit: 2GB -> 2000000000."""
    try:
        return arguments.size_in_bytes("size", text)
    except ValueError as error:  # whose first word argparse has its own for
        raise argparse.ArgumentTypeError(str(error).partition(" ")[2]) from None


def file_to_write(text: str) -> Path:
    """The type of an option that names a file to be made."""
    path = Path(text)
    if not path.resolve().parent.is_dir():
        raise argparse.ArgumentTypeError(f"must be in a folder that is there. Received: {text!r}")
    return path


def fraction(text: str) -> float:
    """The type of an option of at least 0, below 1."""
    return _number(text, "of at least 0, below 1", lambda value: 0 <= value < 1)


def bound_over_sigma(text: str) -> float:
    """The type of an option that is a bound in standard deviations."""
    return _number(text, "above 0, below 10", lambda value: 0 < value < 10)


def _number(text: str, rule: str, fits: Callable[[float], bool]) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan  # which fits no rule
    if not fits(value):
        raise argparse.ArgumentTypeError(f"must be a number {rule}. Received: {text!r}")
    return value


def add_model(parser: argparse.ArgumentParser, batch: str | None = None) -> None:
    """Which model, and its batch; `batch` says what that is, None: there is no such option."""
    parser.add_argument(
        "--model",
        default="ResNet50",
        help="FILE.py:FUNCTION that returns a compiled model, a .keras file, or a model of keras.applications "
        "(%(default)s)",
    )
    add_of_source(parser)
    if batch is not None:
        parser.add_argument("--batch", type=positive, default=8, help=f"{batch} (%(default)s)")


def add_of_source(parser: argparse.ArgumentParser) -> None:
    """What some models need besides their name."""
    parser.add_argument(
        "--image",
        type=positive,
        default=224,
        help="image width and height, of a model of keras.applications (%(default)s)",
    )
    parser.add_argument("--loss", help="of a .keras file that is not compiled, such as mse")


def add_compression(parser: argparse.ArgumentParser) -> None:
    """--codec and --storage, as `compress_model` has them."""
    parser.add_argument("--codec", choices=CODECS, default="plane", help="(%(default)s)")
    parser.add_argument("--storage", choices=STORAGES, help="of all layers that can (each layer's best)")


def add_jit_compile(parser: argparse.ArgumentParser) -> None:
    """Whether XLA compiles the step."""
    parser.add_argument(
        "--jit-compile", action="store_true", help="have XLA compile the step, as Keras does with one GPU"
    )


def add_to_worker(parser: argparse.ArgumentParser) -> None:
    """Model and batch, as `for_worker` passes them on."""
    parser.add_argument("--model", required=True)
    parser.add_argument("--image", type=int, required=True)
    parser.add_argument("--loss")
    parser.add_argument("--batch", type=int, required=True)


def for_worker(args: argparse.Namespace) -> list[str]:
    """A command's model and batch as arguments for a process of its own."""
    arguments = ["--model", args.model, "--image", str(args.image), "--batch", str(args.batch)]
    return [*arguments, "--loss", args.loss] if args.loss else arguments


def add_json(parser: argparse.ArgumentParser, what: str = "one JSON object") -> None:
    """Whether the result is printed for programs."""
    parser.add_argument("--json", action="store_true", help=f"print {what} instead of a table")


def add_codecs(parser: argparse.ArgumentParser, codecs: Iterable[str] = CODECS) -> None:
    """What a measurement of these codecs takes: bounds, repeats, which of them, and how it is printed."""
    help_ = "bounds / standard deviation (0.1)"
    parser.add_argument("--eb-sigma", type=bound_over_sigma, nargs="+", default=[0.1], help=help_)
    parser.add_argument("--repeats", type=positive, default=7, help="of each call (%(default)s)")
    parser.add_argument("--codecs", nargs="+", choices=list(codecs), help="(all)")
    add_json(parser, "a list of JSON objects")
