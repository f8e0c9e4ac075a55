"""A plan: how each tensor of a step is held, what that costs, and how far from optimal it may be."""

from __future__ import annotations

import collections
import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tf_comptrain import arguments
from tf_comptrain.planner import _fields
from tf_comptrain.planner.picture import draw_step
from tf_comptrain.planner.simulator import QueueEvent
from tf_comptrain.render.text import as_text, table_of
from tf_comptrain.render.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.table import Table


class PlanRow(NamedTuple):
    """One tensor of a plan.

    Attributes:
      tensor: Name.
      choice: "keep", "stream:plane", "rebuild:a,b", "offload" or "segment:block1".
      value_bytes: Of its values.
      held_bytes: On the device between the forward and the backward pass.
      seconds: Of computation that the choice adds to a step; those of a segment stand at its first tensor. None where
        no step ran.
    """

    tensor: str
    choice: str
    value_bytes: int
    held_bytes: int
    seconds: float | None


class Plan(NamedTuple):
    """How a model's step is run under a memory limit.

    Attributes:
      model: Name.
      limit_bytes: The peak that was allowed.
      rows: One for each tensor that had a choice, in the order of the graph.
      batch: Samples of a step.
      peak_bytes: Predicted, resting bytes and the allocator's waste included.
      step_s: Predicted seconds; None where no step ran.
      bound_s: No plan within the limit takes less; None where it is proved that there is none, or no step ran.
      gap: (step_s - bound_s) / step_s; None where `bound_s` is.
      feasible: Whether the peak is within the limit. A plan that is not is the smallest that was found.
      smallest_bytes: The smallest peak of all plans that were found.
      plain_s: Seconds of the step that keeps everything; None where no step ran.
      kept_peak_bytes: Its peak.
      first_backward: Name of the first task of the backward pass; "" where there is none.
      curve: (seconds since the step began, bytes) at each change of the memory in use.
      events: What each queue does, in the order of time.
      storage: By name of an operation of the traced step how what it makes is held, as `storage=` takes it; empty for
        a step that was no model's.
      fingerprint: Of the model that the plan was made for; "" likewise.
      microbatches: Parts of the batch, one after the other, whose gradients are added up. The rows are those
        of one.
      smaller_tiles: How many times smaller than usual the tiles are by which wide layers run.
    """

    model: str
    limit_bytes: int
    rows: tuple[PlanRow, ...]
    batch: int
    peak_bytes: int
    step_s: float | None
    bound_s: float | None
    gap: float | None
    feasible: bool
    smallest_bytes: int
    plain_s: float | None
    kept_peak_bytes: int
    first_backward: str = ""
    curve: tuple[tuple[float, float], ...] = ()
    events: tuple[QueueEvent, ...] = ()
    storage: Mapping[str, str] = {}
    fingerprint: str = ""
    microbatches: int = 1
    smaller_tiles: int = 1

    @property
    def choices(self) -> dict[str, str]:
        """The choice of each tensor, by its name."""
        return {row.tensor: row.choice for row in self.rows}

    @property
    def known_step_s(self) -> float:
        """`step_s` of a plan that has it.

        Raises:
          ValueError: No step ran.
        """
        if self.step_s is None:
            raise ValueError(
                f"The plan of {self.model!r} has no seconds: its step has not run. print(plan) shows what it holds."
            )
        return self.step_s

    def to_json(self) -> str:
        """The plan as JSON text, a line for each tensor and event, so that plans can be compared by line."""
        return json_text(self._asdict(), _LISTS)

    def difference(self, other: Plan) -> str:
        """What another plan does otherwise, as a unified diff of the two tables; "" where they are equal."""
        return text_difference(self, other)

    def plot(self, path: str | Path) -> None:
        """Draws what each queue does, and the memory below it, into an image file; needs matplotlib.

        Raises:
          ValueError: No step ran: there is nothing to draw.
        """
        step_s = self.known_step_s
        title = (
            f"{self.model}, batch {self.batch}: {format_seconds(step_s)} a step ({self._added():+.1f}%), "
            f"peak {format_bytes(self.peak_bytes)}"
        )
        turn_s = next((event.start_s for event in self.events if event.name == self.first_backward), None)
        draw_step(title, self.events, step_s, self.curve, self.limit_bytes, turn_s, path)

    def __str__(self) -> str:
        parts: list[Table | str] = [*self._summary(), "", self._table(), "", *self._totals()]
        return as_text(parts, width=None).rstrip()

    def _added(self) -> float:
        """Percent of the step that keeps everything."""
        return 100 * (self.step_s / self.plain_s - 1) if self.step_s and self.plain_s else 0.0

    def _parts(self) -> str:
        parts = f" in {self.microbatches} microbatches" if self.microbatches > 1 else ""
        tiles = f", tiles of 1/{self.smaller_tiles} of their usual size" if self.smaller_tiles > 1 else ""
        return parts + tiles

    def _summary(self) -> list[str]:
        lines = [
            f"{self.model}, batch {self.batch}{self._parts()}",
            f"peak   {format_bytes(self.peak_bytes)} of {format_bytes(self.limit_bytes)} allowed; "
            f"everything kept {format_bytes(self.kept_peak_bytes)}, smallest found {format_bytes(self.smallest_bytes)}",
        ]
        if self.step_s is None:
            lines.append("step   not run: XLA's plan is read before anything runs")
            return (
                lines
                if self.feasible
                else [*lines, "No plan within the limit was found; this is the smallest."]
            )
        lines.append(
            f"step   {format_seconds(self.step_s)}; everything kept {format_seconds(self.plain_s)} "
            f"({self._added():+.2f}%)"
        )
        if self.bound_s is not None:
            lines.append(
                f"bound  {format_seconds(self.bound_s)}: at most {100 * (self.gap or 0):.2f}% to gain"
            )
        elif not self.feasible:
            lines.append("bound  no plan fits into the limit: proved; this is the smallest plan")
        if self.bound_s is not None and not self.feasible:
            lines.append(
                "No plan within the limit was found, and none is ruled out; this is the smallest plan."
            )
        return lines

    def _table(self) -> Table:
        numbers = ("values", "held", "adds")
        table = table_of("", ("tensor", "choice", *numbers), numbers)
        for row in self.rows:
            adds = format_seconds(row.seconds) if row.seconds else ""
            sizes = format_bytes(row.value_bytes), format_bytes(row.held_bytes)
            table.add_row(row.tensor, row.choice, *sizes, adds)
        return table

    def _totals(self) -> list[str]:
        """A line for each kind of choice."""
        of_kind: dict[str, list[PlanRow]] = collections.defaultdict(list)
        for row in self.rows:
            of_kind[kind_of(row.choice)].append(row)
        lines = []
        for kind, rows in sorted(of_kind.items()):
            sizes = (format_bytes(sum(size)) for size in zip(*((r.value_bytes, r.held_bytes) for r in rows)))
            adds = (
                f", adds {format_seconds(sum(r.seconds or 0 for r in rows))}"
                if self.step_s is not None
                else ""
            )
            lines.append(f"{len(rows)} x {kind}: {' held in '.join(sizes)}{adds}")
        return lines


_LISTS = ("rows", "curve", "events")


def kind_of(choice: str) -> str:
    """Of a choice what does not depend on the tensor: "rebuild:a,b" -> "rebuild"; codecs are kinds of their own."""
    return choice if choice.startswith("stream") else choice.partition(":")[0]


def plan_from_json(source: str | Path | dict) -> Plan:
    """The plan in JSON text, a file, or what `json.loads` made of one.

    Raises:
      ValueError: A field is missing, unknown or out of range.
    """
    plan = _fields.record(Plan, _fields.load(source, "a plan"), "plan")
    lists = {name: _fields.items(getattr(plan, name), name) for name in _LISTS}
    plan = plan._replace(
        rows=tuple(_fields.row(PlanRow, item, f"rows[{k}]") for k, item in enumerate(lists["rows"])),
        events=tuple(_fields.row(QueueEvent, item, f"events[{k}]") for k, item in enumerate(lists["events"])),
        curve=tuple(_point(item, f"curve[{k}]") for k, item in enumerate(lists["curve"])),
    )
    for name in ("batch", "microbatches", "smaller_tiles"):
        arguments.whole(name, getattr(plan, name))
    for name in ("limit_bytes", "peak_bytes", "smallest_bytes", "kept_peak_bytes"):
        arguments.whole(name, getattr(plan, name), least=0)
    for name in ("step_s", "plain_s", "bound_s", "gap"):
        if getattr(plan, name) is not None:
            arguments.real(name, getattr(plan, name), least=0)
    if plan.batch % plan.microbatches:
        raise ValueError(
            f"`microbatches` must divide `batch`, {plan.batch}, of a plan. Received: {plan.microbatches}."
        )
    for name, kind in (("feasible", bool), ("storage", dict)):
        if not isinstance(getattr(plan, name), kind):
            raise ValueError(
                f"`{name}` of a plan must be of type {kind.__name__}. Received: {getattr(plan, name)!r}."
            )
    return plan


def _point(item: Any, where: str) -> tuple[float, float]:
    """Of a curve: (seconds, bytes)."""
    values = _fields.items(item, where)
    if len(values) != 2:
        raise ValueError(f"`{where}` must be [seconds, bytes]. Received: {item!r}.")
    return float(arguments.real(where, values[0])), float(arguments.real(where, values[1]))


def json_text(fields: Mapping[str, Any], lists: Sequence[str]) -> str:
    """JSON text of a plan's fields, with a line for each item of those that are lists."""
    lines = [
        f" {json.dumps(name)}: {json.dumps(value)}" for name, value in fields.items() if name not in lists
    ]
    for name in lists:
        items = ",\n  ".join(json.dumps(list(item)) for item in fields[name])
        lines.append(f" {json.dumps(name)}: [\n  {items}\n ]" if items else f" {json.dumps(name)}: []")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def text_difference(before: object, after: object) -> str:
    """A unified diff of what two plans print, without context; "" where they are equal."""
    lines = str(before).splitlines(), str(after).splitlines()
    return "\n".join(difflib.unified_diff(*lines, "before", "after", lineterm="", n=0))
