"""How each saved tensor of a compressed model is held, and why some are kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from tf_comptrain.render import html
from tf_comptrain.render.text import as_text, table_of
from tf_comptrain.render.units import format_bytes

_HEADINGS = ("layer", "class", "tensor", "storage", "shape", "values", "held", "bits", "bound", "note")
_NUMBERS = ("values", "held", "bits")


class ReportRow(NamedTuple):
    """One tensor that crosses from the forward to the backward pass.

    Attributes:
      layer: Name of the TensorFlow operation that makes it, with the scopes of the layers it is in.
      layer_class: Type of that operation.
      role: What reads it in the backward pass.
      storage: "compress", "offload", "bitmask", "tile" or "keep".
      shape: Of one sample (without the batch dimension); None where it is not known yet.
      value_bytes: Bytes of the tensor's values per sample, as they are; None where not known.
      predicted_bytes: Bytes held in memory per sample, predicted.
      bound: Error bound as text; "" for exact storage.
      note: Why it is kept, or what holds it.
      bits: Of a value, predicted; None where that is not known, or nothing is held.
    """

    layer: str
    layer_class: str
    role: str
    storage: str
    shape: tuple[int | None, ...] | None = None
    value_bytes: int | None = None
    predicted_bytes: int | None = None
    bound: str = ""
    note: str = ""
    bits: float | None = None


class Report:
    """How a compressed model holds its saved activations; `print(report)` shows it as a table.

    It has every tensor that crosses from the forward to the backward pass, what reads it there, and how it is held or
    why it is kept. It fills itself: before a step has been traced (by `fit`, or a tf.function of your own) that is of
    the model alone, without its loss, and nothing for a model that does not say what it takes. Tensors that are
    rebuilt cross nothing and are not in it, nor are small ones.

    Args:
      model: Name of the model.
      rows: One for each tensor, in the order in which the forward pass makes them.
      obstacle: Why the whole model runs as plain Keras, as storage/engine.py found it; None when it does not.
      without_xla: Layers that say they do not support XLA: because of them Keras does not turn
        it on by itself, which it does on a GPU and where a step can take more than twice as long
        without.
      renew: Returns the rows as they are now, or None where they are no longer known.

    Attributes:
      model: As given.
      obstacle: As given, and as the step that was traced last has it.
      engine: What runs that step: "XLA" or "TensorFlow's executor"; "" before there is one.
      without_xla: As given.
      unchecked: Why the gradients could not be looked at when that was due, see `compress_model`; None where they
        were, or nothing was due yet.
      notes: Returns the lines that stand below everything else: of a plan, where there is one.
    """

    def __init__(
        self,
        model: str,
        rows: Sequence[ReportRow],
        obstacle: str | None = None,
        without_xla: Sequence[str] = (),
        renew: Callable[[], Sequence[ReportRow] | None] = lambda: None,
    ):
        self.model = model
        self.obstacle = obstacle
        self.without_xla = tuple(without_xla)
        self._rows = tuple(rows)
        self._renew = renew
        self.engine = ""
        self.unchecked: str | None = None
        self.notes: Callable[[], Sequence[str]] = lambda: ()

    def note_engine(self, engine: str, obstacle: str | None) -> None:
        """Notes what runs the step that is traced, and why that is plain Keras; None where it is not."""
        self.engine, self.obstacle = engine, obstacle

    @property
    def rows(self) -> tuple[ReportRow, ...]:
        """As of the step that was traced last."""
        found = self._renew()
        if found is not None:
            self._rows = tuple(found)
        return self._rows

    @property
    def skipped(self) -> tuple[ReportRow, ...]:
        """Layers that stay plain, each with its reason in `note`."""
        return tuple(row for row in self.rows if row.storage == "keep")

    @property
    def predicted_bytes(self) -> int:
        """Bytes per sample that the held tensors are predicted to take, where shapes are known."""
        return sum(row.predicted_bytes or 0 for row in self.rows)

    @property
    def unpredicted(self) -> tuple[ReportRow, ...]:
        """Held tensors whose shapes are not known before the model runs: the sums are without them."""
        return tuple(row for row in self.rows if row.role and row.predicted_bytes is None)

    def to_json(self) -> str:
        """The report as a JSON object {model, engine, obstacle, rows: [...]}."""
        rows = [row._asdict() for row in self.rows]
        said = {"model": self.model, "engine": self.engine, "obstacle": self.obstacle, "rows": rows}
        return json.dumps(said, indent=1)

    def to_html(self) -> str:
        """The report as an HTML table with a line below it: part of a page, or a file of its own."""
        lines = "".join(f"<p>{escape(line)}</p>" for line in self._lines())
        return html.table(_HEADINGS, map(_cells, self.rows), _NUMBERS, self._title()) + lines

    _repr_html_ = to_html  # what a notebook shows

    def to_markdown(self) -> str:
        """The report as a Markdown table, which TensorBoard shows as text."""
        lines = [_HEADINGS, ("---",) * len(_HEADINGS), *map(_cells, self.rows)]
        table = "\n".join(f"| {' | '.join(map(_escaped, line))} |" for line in lines)
        return "\n\n".join((f"**{_escaped(self._title())}**", table, *map(_escaped, self._lines()))) + "\n"

    def __str__(self) -> str:
        table = table_of(self._title(), _HEADINGS, _NUMBERS)
        for row in self.rows:
            table.add_row(*_cells(row))
        return as_text([table, *self._lines()], width=150)

    def _title(self) -> str:
        return f"{self.model}: how activations are held"

    def _lines(self) -> list[str]:
        """What stands below the table."""
        lines = []
        predicted, unknown = self.predicted_bytes, len(self.unpredicted)
        if self.obstacle:
            lines.append(f"The model runs as plain Keras: {self.obstacle}.")
        elif predicted:
            without = f", not counting {unknown} of unknown shape" if unknown else ""
            lines.append(
                f"Held per sample: {format_bytes(predicted)} predicted{without}. "
                "tf_comptrain.memory.report measures it, beside what the step saves in plain Keras."
            )
        if self.engine and not self.obstacle:
            lines.append(f"The step runs on {self.engine}.")
        if self.without_xla:
            lines.append(
                f"Keras does not turn XLA on by itself because of {', '.join(self.without_xla)} "
                "(supports_jit=False); on a GPU a step can take more than twice as long without it."
            )
        if self.unchecked and not self.obstacle:
            lines.append(f"Gradients are not checked: {self.unchecked}.")
        return [*lines, *self.notes()]


def _escaped(text: str) -> str:
    """For Markdown, which may hold HTML."""
    return escape(text, quote=False).replace("|", "&#124;")


def _cells(row: ReportRow) -> tuple[str, ...]:
    """Of a row, as text, in the order of `_HEADINGS`."""
    return (
        row.layer,
        row.layer_class,
        row.role,
        row.storage,
        "" if row.shape is None else "x".join("?" if s is None else str(s) for s in row.shape),
        format_bytes(row.value_bytes),
        format_bytes(row.predicted_bytes),
        "" if row.bits is None else f"{row.bits:.1f}",
        row.bound,
        row.note,
    )
