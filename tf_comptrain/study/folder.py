"""The folder of a study: study.json, what it is of; cells.jsonl, a line for each cell that is finished."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from tf_comptrain.study import lines
from tf_comptrain.study.grid import Candidate, Cell

_STUDY, _CELLS, _STAGES = "study.json", "cells.jsonl", "stages"


class Folder:
    """A study's folder.

    Args:
      path: Of the folder; it is made when something is written.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)

    def arguments(self) -> dict[str, Any]:
        """What the study is of, as `begin` was given it.

        Raises:
          ValueError: There is no study in the folder.
        """
        problem: Any = None
        try:
            found = json.loads((self.path / _STUDY).read_text())
            if isinstance(found, dict) and isinstance(found.get("identity"), dict):
                return found
            problem = f"{_STUDY} is no object with an `identity`"
        except (OSError, ValueError, RecursionError) as error:
            problem = error
        raise ValueError(
            "`folder` must be one that tf_comptrain.impact_study has written. "
            f"Received: {str(self.path)!r} ({problem})."
        )

    def begin(self, identity: dict[str, Any], grid: dict[str, Any]) -> None:
        """Takes the folder for a study, or goes on with the one that is in it.

        Args:
          identity: What all of its cells depend on.
          grid: Which cells there are to be: it may differ from that of the study so far.

        Raises:
          ValueError: Another study is in the folder.
        """
        if (self.path / _STUDY).exists():
            there = self.arguments()["identity"]
            names = dict.fromkeys((*identity, *there))
            other = next((name for name in names if there.get(name) != _plain(identity.get(name))), None)
            if other is not None:
                raise ValueError(
                    f"`folder` has another study, of another `{other}`: {str(there.get(other))[:80]} there, "
                    f"{str(identity.get(other))[:80]} here. Pass another folder, or delete {str(self.path)!r}."
                )
        elif (self.path / _CELLS).exists():
            raise ValueError(
                f"`folder` has a {_CELLS}, and no {_STUDY} that says of what. Received: {str(self.path)!r}."
            )
        self.path.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"identity": identity, "grid": grid}, indent=1)
        _replace(self.path / _STUDY, lambda file: file.write(text.encode()))

    def cells(self) -> dict[Cell, dict[str, Any]]:
        """By cell: {"rows": [...], "seconds": ...}."""
        return {_cell(record["cell"]): record for record in lines.read(self.path / _CELLS)}

    def append(self, cell: Cell, rows: list[dict[str, Any]], seconds: float) -> None:
        """Adds a cell."""
        lines.append(self.path / _CELLS, {"cell": cell, "rows": rows, "seconds": seconds})

    def weights(self, network: str, stage: str, seed: int) -> list[np.ndarray] | None:
        """Of a network at a stage of its plain training; None where there are none, or a file that is damaged."""
        path = self._weights(network, stage, seed)
        try:
            with np.load(path, allow_pickle=False) as file:
                return [file[f"{number}"] for number in range(len(file.files))]
        except FileNotFoundError:
            return None
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
            logging.warning("%s is damaged (%s): its training is done again.", path, error)
            return None

    def put_weights(self, network: str, stage: str, seed: int, weights: list[np.ndarray]) -> None:
        path = self._weights(network, stage, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {f"{number}": array for number, array in enumerate(weights)}
        _replace(path, lambda file: np.savez(file, **arrays))

    def _weights(self, network: str, stage: str, seed: int) -> Path:
        return self.path / _STAGES / f"{network}-{stage}-{seed}.npz"


def _cell(fields: list) -> Cell:
    kind, network, setting, *rest = fields
    return Cell(kind, network, Candidate(*setting), *rest)


def _plain(value: Any) -> Any:
    """As JSON brings it back."""
    return json.loads(json.dumps(value))


def _replace(path: Path, write: Callable[[Any], Any]) -> None:
    """Writes a file, whole or not at all."""
    new = path.with_name(f"{path.name}.new")
    with open(new, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
