"""The command `tf-comptrain`: what works on this machine, and what a training step takes.

tf-comptrain doctor
tf-comptrain estimate train.py:build --batch 64
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
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from absl import app
from absl.flags import argparse_flags

from tf_comptrain.cli.options import SourceError

# Command -> (module, what it does); of one with more of them the commands below it.
_COMMANDS = {
    "doctor": ("doctor", "versions, op library, devices; what is active and why not"),
    "estimate": ("estimate", "what your model's training takes: plain, compressed, and by other ways"),
    "bench": ("", "measure"),
    "plan": ("plan", "how a training step fits into a memory limit in the least time"),
    "calibrate": ("calibrate", "what codecs and memory take on this machine"),
    "study": ("study", "what compression does to a network of your own: table, report, policy"),
    "launch": ("launch", "train by several processes: ct.distribute.fit"),
}
_BENCHES = {
    "step": ("bench", "peak memory, time and saved bytes of one training step, plain and compressed"),
    "codec": ("bench_codec", "ratio, speed and error of this library's codecs on the same arrays"),
    "batch": ("bench_batch", "the largest batch that trains under a limit, plain and compressed"),
}
# Commands that run without TensorFlow, or find out by themselves what is wrong with it.
_NEED_NONE = ("", "doctor", "launch")


class _CommandParser(argparse_flags.ArgumentParser):
    """A command's parser, whose module is imported when the command is given: most of them import TensorFlow."""

    def __init__(self, *args: Any, module: str = "", **options: Any):
        super().__init__(*args, **options)
        self._module = module

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._module:
            module, self._module = self._module, ""
            if module not in _NEED_NONE:
                self._require_tensorflow()
            importlib.import_module(f"{__name__}.{module}").add_arguments(self)
        return super().parse_known_args(args, namespace)

    def _require_tensorflow(self) -> None:
        """Ends the program with one sentence where there is none that serves."""
        try:
            importlib.import_module("tf_comptrain.backend")
        except ImportError as error:
            self.exit(2, f"{error}\n")


def main() -> None:
    """Entry point of the console script; exits with the command's status."""
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # see memory/counters.py
    app.run(run, flags_parser=parse, argv=sys.argv)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parses a command line, the program's name first; argparse exits with status 2 on a bad one."""
    parser = _CommandParser(prog="tf-comptrain", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, words) in _COMMANDS.items():
        command = commands.add_parser(name, help=words, module=module)
        if name == "bench":
            benches = command.add_subparsers(dest="bench", required=True, metavar="WHAT")
            for below, (its_module, its_words) in _BENCHES.items():
                benches.add_parser(below, help=its_words, module=its_module)
    return parser.parse_args(argv[1:])


def run(args: argparse.Namespace) -> int:
    """Runs a parsed command; returns its exit status, 2 where there is no such model."""
    try:
        return args.function(args)
    except SourceError as error:
        print(error, file=sys.stderr)
        return 2
    except RuntimeError as error:
        native = sys.modules.get("tf_comptrain.native")  # which imports TensorFlow
        if native is None or not isinstance(error, native.LibraryError):
            raise
        print(error, file=sys.stderr)
        return 1
