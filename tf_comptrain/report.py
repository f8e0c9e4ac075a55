"""What `compress_model` did: each layer, how its tensors are held, and why some are not."""

from __future__ import annotations

import io
import json
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text


class Row(NamedTuple):
    """One saved tensor, or one layer that saves none.

    Attributes:
      layer: Name of the layer, or operation of a functional graph, with its path inside nested models.
      layer_class: Its class.
      role: What the tensor is to the layer: "input", "mask", "index", ...; "" where none is held.
      storage: "compress", "recompute", "bitmask", "fused", "keep" or "nothing".
      shape: Of one sample (without the batch dimension); None where it is not known yet.
      plain_bytes: Bytes of the tensor per sample as plain values; None where not known.
      predicted_bytes: Bytes held per sample, predicted; 0 where another row's stream serves.
      bound: Error bound as text; "" for exact storage.
      note: Whose stream serves, or why the layer is kept plain.
    """

    layer: str
    layer_class: str
    role: str
    storage: str
    shape: tuple[int | None, ...] | None = None
    plain_bytes: int | None = None
    predicted_bytes: int | None = None
    bound: str = ""
    note: str = ""


class Report(NamedTuple):
    """Result of `compress_model`; `print(report)` shows it as a table.

    Attributes:
      model: Name of the model.
      rows: One per saved tensor and per layer that saves none, in the order of the layers.
      obstacle: Why the whole model runs as plain Keras (a GPU, XLA); None when it does not.
      without_xla: Layers that say they do not support XLA: because of them Keras does not turn
        it on by itself, which it does on a GPU and where a step can take more than twice as long
        without.
    """

    model: str
    rows: tuple[Row, ...]
    obstacle: str | None = None
    without_xla: tuple[str, ...] = ()

    @property
    def skipped(self) -> tuple[Row, ...]:
        """Layers that stay plain, each with its reason in `note`."""
        return tuple(row for row in self.rows if row.storage == "keep")

    @property
    def predicted_bytes(self) -> int:
        """Bytes per sample that the held tensors are predicted to take, where shapes are known."""
        return sum(row.predicted_bytes or 0 for row in self.rows)

    @property
    def plain_bytes(self) -> int:
        """Bytes per sample of the same tensors as plain values, each tensor counted once."""
        return sum(row.plain_bytes or 0 for row in self.rows)

    @property
    def unpredicted(self) -> tuple[Row, ...]:
        """Held tensors whose shapes are not known before the model runs: the sums are without them."""
        return tuple(row for row in self.rows if row.role and row.predicted_bytes is None)

    def to_json(self) -> str:
        """The report as a JSON object {model, obstacle, rows: [...]}."""
        rows = [row._asdict() for row in self.rows]
        return json.dumps({"model": self.model, "obstacle": self.obstacle, "rows": rows}, indent=1)

    def _unknown(self) -> str:
        count = len(self.unpredicted)
        return f", not counting {count} of unknown shape" if count else ""

    def __str__(self) -> str:
        table = Table(title=Text(f"{self.model}: how activations are held"))
        for heading in ("layer", "class", "tensor", "storage", "shape", "plain", "held", "bound", "note"):
            table.add_column(
                heading, justify="right" if heading in ("plain", "held") else "left", overflow="fold"
            )
        for row in self.rows:
            table.add_row(
                row.layer,
                row.layer_class,
                row.role,
                row.storage,
                "" if row.shape is None else "x".join("?" if s is None else str(s) for s in row.shape),
                format_bytes(row.plain_bytes),
                format_bytes(row.predicted_bytes),
                row.bound,
                row.note,
            )
        out = io.StringIO()
        console = Console(file=out, width=150)
        console.print(table)
        if self.obstacle:
            console.print(f"The model runs as plain Keras: {self.obstacle}.", markup=False)
        elif self.predicted_bytes:
            console.print(
                f"Held per sample: {format_bytes(self.predicted_bytes)} predicted, of "
                f"{format_bytes(self.plain_bytes)} as plain values "
                f"({self.plain_bytes / self.predicted_bytes:.1f}x){self._unknown()}. "
                "Measure with tf_comptrain.memory.measure_step.",
                markup=False,
            )
        if self.without_xla:
            console.print(
                f"Keras does not turn XLA on by itself because of {', '.join(self.without_xla)} "
                "(supports_jit=False); on a GPU a step can take more than twice as long without it.",
                markup=False,
            )
        return out.getvalue()


def format_bytes(count: float | None) -> str:
    """1234567 -> '1.23 MB'; None -> ''."""
    if count is None:
        return ""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000 or unit == "GB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError("unreachable")
