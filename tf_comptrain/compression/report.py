"""How each saved tensor of a compressed model is held, and why some are kept."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from tf_comptrain.render import html
from tf_comptrain.render.text import as_text, table_of
from tf_comptrain.render.units import format_bytes

if TYPE_CHECKING:
    from rich.table import Table

_HEADINGS = ("layer", "operation", "read by", "storage", "shape", "values", "held", "bits", "bound", "note")
_SHORT = (
    "layer",
    "operation",
    "storage",
    "shape",
    "values",
    "held",
    "bits",
    "bound",
)  # of the largest tensors
_TOTALS = ("storage", "tensors", "values", "held", "values / held")
_NUMBERS = ("tensors", "values", "held", "values / held", "bits")
_MENTIONED = 0.1  # of what is held: from there on small tensors are mentioned
_LARGEST = 10  # tensors, and lines of a plan's reasons, that `print` shows
_NAME = 40  # characters of a layer's path that `print` shows, where its last name is no longer


class ReportRow(NamedTuple):
    """One tensor that crosses from the forward to the backward pass.

    Attributes:
      layer: Name of the TensorFlow operation that makes it, with the scopes it is in: a key of `storage`
        mappings.
      layer_class: Type of that operation.
      role: What reads it in the backward pass.
      storage: "compress", "offload", "bitmask", "tile" or "keep".
      shape: Of one sample (without the batch dimension); None where it is not known yet.
      value_bytes: Bytes of the tensor's values per sample, as they are; None where not known.
      predicted_bytes: Bytes held in memory per sample, predicted.
      bound: Error bound as text; "" for exact storage.
      note: Why it is kept, or what holds it.
      bits: Of a value, predicted; None where that is not known, or nothing is held.
      path: The layer that makes it, as the model names it: a key of `storage` mappings too. "" outside of
        any.
      operation: What the operation is called inside of that layer; outside of any as `layer`.
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
    path: str = ""
    operation: str = ""


class StepRows(NamedTuple):
    """What is known of a step.

    Attributes:
      rows: One for each tensor, in the order in which the forward pass makes them.
      batch_size: Samples in the step; None where its graph takes any number.
      small_count: Tensors without a row, which are too small to compress.
      small_bytes: What these take for a sample.
    """

    rows: Sequence[ReportRow]
    batch_size: int | None = None
    small_count: int = 0
    small_bytes: int = 0


class Report:
    """How a compressed model holds its saved activations; `print` sums it up, `table()` has every tensor.

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
      renew: Returns what is known of the step as it is now, or None where that is no longer known.

    Attributes:
      model: As given.
      obstacle: As given, and as the step that was traced last has it.
      engine: What runs that step: "XLA" or "TensorFlow's executor"; "" before there is one.
      without_xla: As given.
      unchecked: Why the gradients could not be looked at when that was due, see `compress_model`; None where they
        were, or nothing was due yet.
      peak_bytes: Peak of the device's allocator that a `MemoryLogger` measured last; 0 before.
      notes: Returns the lines of a plan, where there is one; paragraphs are divided by empty lines.

    Examples:
      >>> report = ct.compress_model(model)
      >>> model.fit(images, labels)
      >>> print(report)
      >>> print(report.table())
    """

    def __init__(
        self,
        model: str,
        rows: Sequence[ReportRow],
        obstacle: str | None = None,
        without_xla: Sequence[str] = (),
        renew: Callable[[], StepRows | None] = lambda: None,
    ):
        self.model = model
        self.obstacle = obstacle
        self.without_xla = tuple(without_xla)
        self._known = StepRows(tuple(rows))
        self._renew = renew
        self.engine = ""
        self.peak_bytes = 0
        self.unchecked: str | None = None
        self._teller = ""
        self._is_over = False
        self.notes: Callable[[], Sequence[str]] = lambda: ()

    def end(self) -> None:
        """Stays as it is: the model is restored."""
        self._known, self._renew, self._is_over = self._traced(), lambda: None, True

    def note_engine(self, engine: str, obstacle: str | None) -> None:
        """Notes what runs the step that is traced, and why that is plain Keras; None where it is not."""
        self.engine, self.obstacle = engine, obstacle

    def note_teller(self, model: str) -> None:
        """Notes whose report has the step that is traced, which trains several compressed models."""
        self._teller = model

    @property
    def rows(self) -> tuple[ReportRow, ...]:
        """As of the step that was traced last."""
        return tuple(self._traced().rows)

    @property
    def batch_size(self) -> int | None:
        """Samples in the step traced last; None where it takes any number, and before there is one."""
        return self._traced().batch_size

    def _traced(self) -> StepRows:
        found = self._renew()
        if found is not None:
            self._known = found
        return self._known

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

    def table(self) -> str:
        """Every tensor, as a table of text with a line for each."""
        shown = table_of(self._title(), _HEADINGS, _NUMBERS)
        for row in self.rows:
            shown.add_row(*map(_text, _cells(row)))
        return as_text([shown, *self._summary(), *self.notes()], width=None)

    def to_html(self) -> str:
        """The report as part of a page of HTML: a summary, and a table of every tensor."""
        parts = [f"<p><strong>{escape(self._title())}</strong></p>", *map(_paragraph, self._summary())]
        for lines in _paragraphs(self.notes()):
            shown = "".join(map(_paragraph, lines))
            if len(lines) > _LARGEST:
                shown = f"<details><summary>{len(lines)} tensors of the plan</summary>{shown}</details>"
            parts.append(shown)
        if self.rows:
            parts.append(html.table(_TOTALS, self._totals(), _NUMBERS))
        return "".join((*parts, html.table(_HEADINGS, map(_cells, self.rows), _NUMBERS)))

    def _repr_html_(self) -> str:
        """What a notebook shows: the same, with a style and a script of its own."""
        return html.fragment(self.to_html())

    def to_markdown(self) -> str:
        """The report as a Markdown table, which TensorBoard shows as text."""
        lines = [_HEADINGS, ("---",) * len(_HEADINGS), *(map(_text, _cells(row)) for row in self.rows)]
        table = "\n".join(f"| {' | '.join(map(_escaped, line))} |" for line in lines)
        above = map(_escaped, (*self._summary(), *self.notes()))
        return "\n\n".join((f"**{_escaped(self._title())}**", *above, table)) + "\n"

    def __str__(self) -> str:
        paragraphs = _paragraphs(self.notes())
        parts: list = [self._title(), "", *self._summary()]
        for paragraph in paragraphs:
            parts += ["", *paragraph] if len(paragraph) <= _LARGEST else []
        if self.rows:
            totals = table_of("", _TOTALS, _NUMBERS)
            for cells in self._totals():
                totals.add_row(*map(_text, cells))
            parts += ["", totals, "", self._largest(), *self._notes()]
        long = [paragraph for paragraph in paragraphs if len(paragraph) > _LARGEST]
        for paragraph in long:
            more = f"... and {len(paragraph) - _LARGEST} more in the table"
            parts += ["", *paragraph[:_LARGEST], more]
        if len(self.rows) > _LARGEST or long:
            parts += ["", f"All {len(self.rows)} tensors: print(report.table())"]
        return as_text(parts, width=None)

    def _title(self) -> str:
        return f"{self.model}: how activations are held"

    def _largest(self) -> Table:
        """The rows that hold most."""
        rows = sorted(self.rows, key=lambda row: row.predicted_bytes or 0, reverse=True)[:_LARGEST]
        which = (
            f"The {len(rows)} largest of {len(self.rows)} tensors"
            if len(self.rows) > len(rows)
            else "Tensors"
        )
        shown = table_of(f"{which}, per sample", _SHORT, _NUMBERS)
        for row in rows:
            cells = dict(zip(_HEADINGS, map(_text, _cells(row))))
            cells["layer"] = _shortened(cells["layer"])
            shown.add_row(*(cells[heading] for heading in _SHORT))
        return shown

    def _notes(self) -> list[str]:
        """Why tensors are kept: each reason once."""
        counts = Counter(row.note for row in self.skipped if row.note)
        lines = [f"keep, {count} of them: {note}" for note, count in counts.most_common()]
        return ["", *lines] if lines else []

    def _totals(self) -> list[tuple[html.Cell, ...]]:
        """Cells of each storage, and of all where there are several."""
        kinds: dict[str, list[ReportRow]] = {}
        for row in self.rows:
            kinds.setdefault(row.storage, []).append(row)
        found = [_total(storage, rows) for storage, rows in kinds.items()]
        return [*found, _total("all", self.rows)] if len(found) > 1 else found

    def _summary(self) -> list[str]:
        """What there is to say of all tensors together, and of the step."""
        lines = ["The model is restored, and trains as plain Keras. Before:"] if self._is_over else []
        if self.obstacle:
            lines.append(f"The model runs as plain Keras: {self.obstacle}.")
        elif self.rows:
            lines += self._sums()
        elif self.engine:
            lines.append("No tensor is large enough to be compressed: 64 values a sample, or 16,384 in all.")
        if self.engine and not self.obstacle:
            lines.append(f"The step runs on {self.engine}.")
        elif self._teller:
            lines.append(
                f"It trains in a step of several models, which the report of {self._teller!r} is of."
            )
        elif not self.obstacle:
            lines.append(
                "No step has been traced yet: this is the model alone, without its loss."
                if self.rows
                else "No step has been traced yet; the tensors are known from the first one on, as of fit."
            )
        if self.peak_bytes:
            lines.append(f"Peak: {format_bytes(self.peak_bytes)}, measured by MemoryLogger.")
        if self.without_xla:
            lines.append(
                f"Keras does not turn XLA on by itself because of {', '.join(self.without_xla)} "
                "(supports_jit=False); on a GPU a step can take more than twice as long without it."
            )
        if self.unchecked and not self.obstacle:
            lines.append(f"Gradients are not checked: {self.unchecked}.")
        return lines

    def _sums(self) -> list[str]:
        """Bytes of all tensors whose shapes are known: of a sample, and of a batch of known size."""
        known = [row for row in self.rows if row.predicted_bytes is not None]
        held, values = self.predicted_bytes, sum(row.value_bytes or 0 for row in known)
        ratio = f" ({values / held:.1f}x)" if held else ""
        unknown = len(self.unpredicted)
        without = f", not counting {unknown} of unknown shape" if unknown else ""
        lines = [
            f"Held per sample: {format_bytes(held)} predicted, of {format_bytes(values)} as plain values{ratio}"
            f"{without}."
        ]
        if self.batch_size:
            of_batch = format_bytes(held * self.batch_size), format_bytes(values * self.batch_size)
            lines.append(f"At batch {self.batch_size}: {of_batch[0]} held, of {of_batch[1]}.")
        small = self._known.small_bytes
        if small >= _MENTIONED * held:
            at_batch = (
                f", {format_bytes(small * self.batch_size)} at batch {self.batch_size}"
                if self.batch_size
                else ""
            )
            lines.append(
                f"Besides, {self._known.small_count} tensors too small to compress stay as they are: "
                f"{format_bytes(small)} a sample{at_batch}."
            )
        return [*lines, "tf_comptrain.memory.report measures it, beside what the step saves in plain Keras."]


def _total(storage: str, rows: Sequence[ReportRow]) -> tuple[html.Cell, ...]:
    """Cells of the tensors that are held in one way, in the order of `_TOTALS`."""
    known = [row for row in rows if row.predicted_bytes is not None]
    values, held = (
        sum(row.value_bytes or 0 for row in known),
        sum(row.predicted_bytes or 0 for row in known),
    )
    ratio = (values / held, f"{values / held:.1f}") if held else None
    return storage, (len(rows), str(len(rows))), _size(values), _size(held), ratio


def _paragraphs(lines: Sequence[str]) -> list[list[str]]:
    """Lines between empty ones."""
    text = "\n".join(lines).strip("\n")
    return [part.strip("\n").split("\n") for part in text.split("\n\n")] if text else []


def _shortened(path: str) -> str:
    """A path of at most `_NAME` characters, of which outer names are left out, or else its last name."""
    names = path.split("/")
    while len("/".join(names)) > _NAME and len(names) > 1:
        names = names[1:]
    return path if len(names) == path.count("/") + 1 else "/".join(("...", *names))


def _paragraph(line: str) -> str:
    return f"<p>{escape(line)}</p>"


def _escaped(text: str) -> str:
    """For Markdown, which may hold HTML."""
    return escape(text, quote=False).replace("|", "&#124;")


def _size(count: int | None) -> html.Cell:
    return None if count is None else (count, format_bytes(count))


def _text(cell: html.Cell) -> str:
    return cell[1] if isinstance(cell, tuple) else cell or ""


def _cells(row: ReportRow) -> tuple[html.Cell, ...]:
    """Of a row, in the order of `_HEADINGS`."""
    return (
        row.path or ("" if row.operation else row.layer),
        row.operation or row.layer_class,
        row.role.removeprefix("read by "),
        row.storage,
        "" if row.shape is None else "x".join("?" if s is None else str(s) for s in row.shape),
        _size(row.value_bytes),
        _size(row.predicted_bytes),
        None if row.bits is None else (row.bits, f"{row.bits:.1f}"),
        row.bound,
        row.note,
    )
