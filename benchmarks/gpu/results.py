"""The results: one file, a JSON object a line, each added as soon as it is known."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

Result = dict[str, Any]


class Results:
    """What has been measured, by name; of several lines with one name the last counts.

    Args:
      path: The file; made with the first result. A line that was cut off when its writer was killed is passed over.
    """

    def __init__(self, path: Path):
        self.path = path
        self._found: dict[str, Result] = {}
        self._writing = threading.Lock()
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                result = json.loads(line)
                self._found[result.pop("name")] = result
            except (ValueError, KeyError, AttributeError, TypeError):
                continue

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def __getitem__(self, name: str) -> Result:
        return self._found[name]

    def get(self, name: str) -> Result:
        """An empty one where it has not been measured."""
        return self._found.get(name, {})

    def named(self, *prefixes: str) -> dict[str, Result]:
        """Those whose names begin so, in the order of the file."""
        return {name: result for name, result in self._found.items() if name.startswith(prefixes)}

    def add(self, name: str, result: Result) -> None:
        """Writes a line, which outlasts the process and the machine's next moment."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._writing, self.path.open("ab+") as file:
            self._found[name] = result
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read() != b"\n":
                    file.write(b"\n")  # after a line that was cut off
            file.write(json.dumps({"name": name, **result}).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def forget(self, *prefixes: str) -> None:
        """Names that begin so are measured anew; their lines stay until then."""
        for name in self.named(*prefixes):
            del self._found[name]
