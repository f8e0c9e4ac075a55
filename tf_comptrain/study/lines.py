"""A file of JSON lines that is only added to, which may have been cut off in its last line by a kill."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def read(path: Path) -> list[Any]:
    """The records of a file, none where there is no file; a line that was cut off is left out."""
    records = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records


def append(path: Path, record: Any) -> None:
    """Adds a record, whole or not at all, behind whatever the file ends with."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(record).encode() + b"\n"
    with open(path, "ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # a line that was cut off: this one is not to be lost with it
                line = b"\n" + line
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
