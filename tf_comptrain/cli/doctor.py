"""`tf-comptrain doctor`: what is installed, what works here, what does not and why.

A child process looks: TensorFlow writes to the terminal while it is imported, and a TensorFlow or an op
library that does not fit may end the process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from tf_comptrain.processes import name_of_signal
from tf_comptrain.render import text

# The backend comes first: it says what is wrong with a TensorFlow that does not serve.
_CODE = "from tf_comptrain import backend; from tf_comptrain.cli import examination; examination.main()"
_EXAMINATION = (sys.executable, "-c", _CODE)
_LAST_LINES = 12  # of what a child that was ended by a signal wrote: TensorFlow says why it aborts


class Finding(NamedTuple):
    """One line of the report.

    Attributes:
      about: What was looked at.
      found: What was found.
      ok: True: works; False: broken; None: neither, a fact or something that is not active.
    """

    about: str
    found: str
    ok: bool | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of `main`."""
    parser.add_argument("--verbose", action="store_true", help="let TensorFlow write its log to the terminal")
    parser.set_defaults(function=main)


def main(args: argparse.Namespace) -> int:
    """Prints the findings; returns 1 when something is broken."""
    findings = []
    with Console(stderr=True).status("importing TensorFlow") as status:
        for finding in examined(_EXAMINATION, args.verbose):
            findings.append(finding)
            status.update(f"looked at: {finding.about}")
    table = text.table_of("", ("", "what", "found"))
    marks = {True: Text("ok", "green"), False: Text("broken", "red"), None: Text("")}
    for finding in findings:
        table.add_row(marks[finding.ok], finding.about, finding.found)
    text.show(table)
    return 1 if any(finding.ok is False for finding in findings) else 0


def examined(command: Sequence[str], verbose: bool = False) -> Iterator[Finding]:
    """What a child finds, as it finds it; in the end why it did not come to its end, where it did not.

    Args:
      command: That starts it; it prints a JSON object for each finding.
      verbose: Whether its log stays on the terminal.
    """
    with tempfile.TemporaryFile("w+") as log:
        errors = None if verbose else log
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as child:
            for line in child.stdout or ():
                finding = _finding(line)
                if finding is not None:
                    yield finding
        if child.returncode:
            log.seek(0)
            yield Finding("examination", _ending(child.returncode, log.read().strip().splitlines()), ok=False)


def _finding(line: str) -> Finding | None:
    """None for a line that others print there."""
    try:
        return Finding(**json.loads(line))
    except (TypeError, ValueError):
        return None


def _ending(status: int, log: Sequence[str]) -> str:
    """Why a child ended: the last line of a Python exception, or a signal and what was written before."""
    if status > 0:
        last = log[-1] if log else f"it ended with status {status}"
        return last.removeprefix("ImportError: ").removeprefix("ModuleNotFoundError: ")
    return "\n".join((f"the process was ended by {name_of_signal(-status)}", *log[-_LAST_LINES:]))
