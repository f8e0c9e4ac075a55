"""What a traced step carries to the next, for any number of places in it: the rows of one variable."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from tf_comptrain import _keras
from tf_comptrain.storage import variable

CAPACITY = 2048  # rows of a table
_BLOCK = 64  # rows that a step takes apart at once: a slice for each row has three constants of its own
FULL = f"the model holds {CAPACITY} tensors already"


class StateTable:
    """Numbers for each of a model's places, by name, in one variable: a step reads and writes it once.

    Rows outlive the traces that name them: those that a restored training brings (`adopt`) wait for their places.

    Args:
      name: Of the variable.
      width: Numbers of a row.

    Attributes:
      variable: float32 [rows, width]; a row of zeros begins anew.
    """

    def __init__(self, name: str, width: int):
        self.variable = variable(np.zeros((CAPACITY, width), np.float32), name)
        self.names: list[str] = []  # of the rows
        self._waiting: set[str] = set()

    @property
    def used(self) -> int:
        """Rows that are taken."""
        return len(self.names)

    def is_full_for(self, name: str, claimed: int = 0) -> bool:
        """Whether there is no row for a place, nor room for one beside as many more."""
        return self.used + claimed >= CAPACITY and name not in self.names

    def row(self, name: str) -> StateRow:
        """The row of a place: that of its name, the one that was adopted for it, or the next that is not taken."""
        if name in self.names and name not in self._waiting:
            return StateRow(self, self.names.index(name))
        found = _alike(name, self.names, self._waiting)
        if found is None:
            self.names.append(name)
            return StateRow(self, self.used - 1)
        self._waiting.discard(self.names[found])
        self.names[found] = name
        return StateRow(self, found)

    def adopt(self, names: Sequence[str]) -> list[int]:
        """The rows for places of another process, of which each gets its own where a trace has made it, or makes it."""
        rows: list[int] = []
        free = set(self.names)
        for name in names:
            found = _alike(name, self.names, free)
            if found is None:
                found = self.used
                self.names.append(name)
                self._waiting.add(name)
            free.discard(self.names[found])
            rows.append(found)
        return rows

    def values(self) -> dict[str, list[float]]:
        """The rows that are taken, by name."""
        return dict(zip(self.names, _keras.mean_of_replicas(self.variable).tolist()))

    def put(self, values: dict[str, list[float]]) -> None:
        """Writes rows, by name; those of places that are still to be made too."""
        self.write(dict(zip(self.adopt(list(values)), values.values())))

    def write(self, rows: Mapping[int, Sequence[float]]) -> None:
        """Sets rows, by their numbers, in every replica: also while one of them is traced."""
        for part in _keras.parts_of(self.variable):
            table = part.numpy()
            for row, numbers in rows.items():
                table[row] = numbers
            part.assign(table)


class StateRow:
    """A place's row: what is read and written between steps."""

    def __init__(self, table: StateTable, index: int):
        self.table = table
        self.index = index

    def numpy(self) -> np.ndarray:
        return _keras.mean_of_replicas(self.table.variable)[self.index].copy()

    def assign(self, values: Sequence[float]) -> None:
        self.table.write({self.index: values})


class TableInStep:
    """A table as one traced step reads and writes it.

    Args:
      table: The table.
      on_host: Whether rows are read and made in the host's memory: a variable on a GPU is then copied once each way,
        and not row by row.
    """

    def __init__(self, table: StateTable, on_host: bool = False):
        self.table = table
        self._on_host = on_host
        self._before: tf.Tensor | None = None
        self._rows: dict[int, list[tf.Tensor]] = {}  # by number of their block
        self._new: dict[int, tf.Tensor] = {}

    def read(self, row: int) -> tf.Tensor:
        """A row as it was before the step."""
        if self._before is None:  # once: what a second gradient of the step holds begins with the same states
            self._before = tf.convert_to_tensor(self.table.variable)
        block, place = divmod(row, _BLOCK)
        if block not in self._rows:
            with self._device():
                self._rows[block] = tf.unstack(self._before[block * _BLOCK : (block + 1) * _BLOCK])
        return self._rows[block][place]

    def now(self, row: int) -> tf.Tensor:
        """A row as the step has set it."""
        return self._new[row]

    def set(self, row: int, values: tf.Tensor) -> None:
        self._new[row] = values

    def write(self) -> None:
        """Assigns all rows that were set so far."""
        if self._before is None:
            return
        with self._device():
            states = self._after(self._before, sorted(self._new))
        states.set_shape(self.table.variable.shape)
        self.table.variable.assign(states)

    def _device(self) -> contextlib.AbstractContextManager:
        return tf.device("CPU:0") if self._on_host else contextlib.nullcontext()

    def _after(self, before: tf.Tensor, rows: list[int]) -> tf.Tensor:
        """The table as it was, with those rows as the step has set them."""
        new = tf.stack([self._new[row] for row in rows])
        if rows == list(range(rows[0], rows[-1] + 1)):  # a copy where a scatter would be slower
            return tf.concat([before[: rows[0]], new, before[rows[-1] + 1 :]], 0)
        return tf.tensor_scatter_nd_update(before, [[row] for row in rows], new)


def _alike(name: str, names: Sequence[str], among: set[str]) -> int | None:
    """Where in `names` a name is, or else the first that differs in numbers alone; only those `among`."""
    if name in among:
        return names.index(name)
    like = _keras.unnumbered(name) if among else ""
    return next(
        (k for k, other in enumerate(names) if other in among and _keras.unnumbered(other) == like), None
    )
