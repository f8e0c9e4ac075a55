"""A plan over devices: stages, their splits, what is held how, and how far from optimal that may be."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tf_comptrain import arguments
from tf_comptrain.planner import _fields
from tf_comptrain.planner.picture import draw_stages
from tf_comptrain.planner.plan import json_text, kind_of, text_difference
from tf_comptrain.planner.simulator import QueueEvent
from tf_comptrain.planner.stages import SPLITS, Stage
from tf_comptrain.render.text import as_text, table_of
from tf_comptrain.render.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.table import Table

_LISTS = ("stages", "rows", "events")
_PARTS = {"memory": "memory_s", "exchange": "exchange_s", "gradient sync": "sync_s", "bubbles": "waiting_s"}
_LOSS = 0.1  # of the step, from which on something else than computing is said to limit a stage


class StageRow(NamedTuple):
    """What a device of a stage does in a step.

    Attributes:
      ahead: Microbatches whose activations it holds at most.
      peak_bytes: Predicted.
      compute_s: Seconds of its layers.
      memory_s: Of encoding, decoding, rebuilding and waiting for copies, so that it fits.
      exchange_s: Of what the devices of the stage send each other within the passes, and of streams at its borders.
      sync_s: Of summing gradients and updating weights, behind the last backward pass.
      waiting_s: The rest of the step: for other stages.
    """

    ahead: int
    peak_bytes: int
    compute_s: float
    memory_s: float
    exchange_s: float
    sync_s: float
    waiting_s: float

    @property
    def limit(self) -> str:
        """What limits the stage: "compute", or what most of its other seconds go into, where that is a tenth."""
        name, seconds = max(((n, getattr(self, f)) for n, f in _PARTS.items()), key=lambda item: item[1])
        whole = self.compute_s + sum(getattr(self, field) for field in _PARTS.values())
        return name if seconds > _LOSS * whole else "compute"


class DevicePlan(NamedTuple):
    """How a model's step is run on several devices.

    Attributes:
      model, hardware: Names.
      devices: How many there are.
      memory_bytes: The peak that each was allowed.
      batch: Samples of a step, over all devices.
      microbatches: Parts in which the batch is run, in 1F1B order.
      stages: Layers, devices and split of each.
      rows: What a device of each stage does.
      crossings: For each border between stages how activations cross it: "keep" or "stream:CODEC".
      storage: By name of a saved tensor how it is held; those that are kept are left out.
      step_s: Predicted seconds.
      bound_s: No strategy takes less; None where it is proved that none fits.
      gap: (step_s - bound_s) / step_s; None where `bound_s` is.
      feasible: Whether every peak is within `memory_bytes`. A plan that is not has the smallest peak that was found.
      events: What stages and links do, in the order of time; empty where there would be more than 20,000.
    """

    model: str
    hardware: str
    devices: int
    memory_bytes: int
    batch: int
    microbatches: int
    stages: tuple[Stage, ...]
    rows: tuple[StageRow, ...]
    crossings: tuple[str, ...]
    storage: Mapping[str, str]
    step_s: float
    bound_s: float | None
    gap: float | None
    feasible: bool
    events: tuple[QueueEvent, ...] = ()

    @property
    def peak_bytes(self) -> int:
        """The highest of all devices."""
        return max(row.peak_bytes for row in self.rows)

    @property
    def limit(self) -> str:
        """What limits the stage that computes most, and so the step."""
        return max(self.rows, key=lambda row: row.compute_s + row.memory_s + row.exchange_s).limit

    def to_json(self) -> str:
        """The plan as JSON text, a line for each stage and event, so that plans can be compared by line."""
        return json_text(self._asdict(), _LISTS)

    def difference(self, other: DevicePlan) -> str:
        """What another plan does otherwise, as a unified diff of the two tables; "" where they are equal."""
        return text_difference(self, other)

    def plot(self, path: str | Path) -> None:
        """Draws what each stage and link does into an image file; needs matplotlib.

        Raises:
          ValueError: The plan is too large to have events.
        """
        if not self.events:
            raise ValueError(
                f"`plot` needs a plan of fewer stages or microbatches. Received: {self.microbatches}."
            )
        title = (
            f"{self.model}, batch {self.batch} in {self.microbatches} microbatches: {format_seconds(self.step_s)} a "
            f"step, peak {format_bytes(self.peak_bytes)}"
        )
        draw_stages(title, self.events, self.step_s, path)

    def __str__(self) -> str:
        return as_text((*self._summary(), "", self._table(), "", self._held()), width=None).rstrip()

    def _summary(self) -> list[str]:
        used = sum(len(stage.devices) for stage in self.stages)
        lines = [
            f"{self.model}, batch {self.batch} in {self.microbatches} microbatches, {used} of {self.devices} devices "
            f"of {self.hardware}",
            f"peak   {format_bytes(self.peak_bytes)} of {format_bytes(self.memory_bytes)} allowed",
            f"step   {format_seconds(self.step_s)}, limited by {self.limit}",
        ]
        if self.bound_s is not None:
            lines.append(
                f"bound  {format_seconds(self.bound_s)}: at most {100 * (self.gap or 0):.2f}% to gain"
            )
        if self.feasible:
            return lines
        if self.bound_s is None:
            return [*lines, "bound  no strategy fits into the memory: proved; this is the smallest one found"]
        return [
            *lines,
            "No strategy that fits was found, and none is ruled out; this is the smallest one found.",
        ]

    def _table(self) -> Table:
        numbers = ("ahead", "peak", "computes", "waits")
        table = table_of("", ("stage", "layers", "devices", "split", *numbers, "limit", "sends"), numbers)
        for number, (stage, row) in enumerate(zip(self.stages, self.rows)):
            first, last = stage.layers[0], stage.layers[-1]
            table.add_row(
                str(number),
                f"{len(stage.layers)}: {first} .. {last}" if len(stage.layers) > 1 else first,
                _range(stage.devices),
                stage.split if len(stage.devices) > 1 else "",
                str(row.ahead),
                format_bytes(row.peak_bytes),
                format_seconds(row.compute_s + row.memory_s + row.exchange_s),
                format_seconds(row.waiting_s + row.sync_s),
                row.limit,
                self.crossings[number] if number < len(self.crossings) else "",
            )
        return table

    def _held(self) -> str:
        kinds = collections.Counter(map(kind_of, self.storage.values()))
        listed = ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items()))
        return f"saved tensors that are not kept: {listed or 'none'}"


def device_plan_from_json(source: str | Path | dict) -> DevicePlan:
    """The plan over devices in JSON text, a file, or what `json.loads` made of one.

    Raises:
      ValueError: A field is missing, unknown or out of range.
    """
    plan = _fields.record(DevicePlan, _fields.load(source, "a plan over devices"), "plan")
    kinds: dict[str, Any] = {"stages": Stage, "rows": StageRow, "events": QueueEvent}
    lists: dict[str, Any] = {
        name: tuple(
            _fields.row(kinds[name], item, f"{name}[{k}]")
            for k, item in enumerate(_fields.items(getattr(plan, name), name))
        )
        for name in _LISTS
    }
    plan = plan._replace(**lists, crossings=tuple(_fields.items(plan.crossings, "crossings")))
    stages = []
    for number, stage in enumerate(plan.stages):
        where = f"stages[{number}]"
        if stage.split not in SPLITS:
            raise ValueError(
                f"`{where}.split` must be one of {', '.join(SPLITS)}. Received: {stage.split!r}."
            )
        names = tuple(_fields.text(n, f"{where}.layers") for n in _fields.items(stage.layers, where))
        numbers = tuple(
            arguments.whole(f"{where}.devices", d, least=0) for d in _fields.items(stage.devices, where)
        )
        stages.append(stage._replace(layers=names, devices=numbers))
    if not stages or len(plan.rows) != len(stages):
        raise ValueError(
            f"`rows` must have one for each of `stages`, of which there must be one. Received: {len(plan.rows)} and "
            f"{len(stages)}."
        )
    for name in ("batch", "microbatches", "devices"):
        arguments.whole(name, getattr(plan, name))
    arguments.whole("memory_bytes", plan.memory_bytes, least=0)
    arguments.real("step_s", plan.step_s, least=0)
    return plan._replace(stages=tuple(stages))


def _range(numbers: tuple[int, ...]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
