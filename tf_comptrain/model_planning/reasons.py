"""Why a plan holds each tensor as it does, and what the next plans would be, as text."""

from __future__ import annotations

from collections.abc import Sequence

from tf_comptrain.planner import OffloadOption, Plan, RebuildOption, StreamOption, TaskGraph, Tensor
from tf_comptrain.render.units import format_bytes, format_seconds


def why(tensor: Tensor, choice: str) -> str:
    """What another choice would give and take."""
    taken = next((option for option in tensor.options if option.label == choice), None)
    stream = next((option for option in tensor.options if isinstance(option, StreamOption)), None)
    if stream is None:
        return ""
    spent = format_seconds(_seconds(stream, tensor))
    if isinstance(taken, StreamOption):
        return f"kept it would take {format_bytes(tensor.bytes - stream.bytes)} more, to save {spent}"
    if isinstance(taken, RebuildOption):
        return (
            f"a stream would take {format_bytes(stream.bytes - taken.held_bytes)} more, and {spent} instead"
        )
    if isinstance(taken, OffloadOption):
        return f"a stream on the device would take {format_bytes(stream.bytes)} more, to save its copies"
    return f"a stream would free {format_bytes(tensor.bytes - stream.bytes)} for {spent}"


def lines_of_fixed(plan: Plan) -> list[str]:
    """A report's lines of a plan that the first steps do not change."""
    found = ["", *str(plan).split("\n\n")[0].splitlines(), ""]
    for row in plan.rows:
        spared = format_bytes(row.value_bytes - row.held_bytes)
        what = "as it is" if row.choice == "keep" else f"kept it would hold {spared} more"
        found.append(f"{row.tensor}: {row.choice}; {what}")
    if plan.step_s is None:
        how = "Planned by XLA's compiler"
    elif plan.microbatches > 1:
        how = "Confirmed by a step of two microbatches"
    else:
        how = "Confirmed by steps: no tensor is large enough for a choice"
    return [
        *found,
        "",
        f"{how}: {format_bytes(plan.peak_bytes)} in all, within {format_bytes(plan.limit_bytes)}.",
    ]


def _seconds(option: StreamOption, tensor: Tensor) -> float:
    return option.encode_s + option.decode_s * max(len(tensor.readers), 1)


def lines(plan: Plan, graph: TaskGraph, neighbours: Sequence[Plan], note: str = "") -> list[str]:
    """A report's lines of a plan.

    Args:
      plan: That was applied.
      graph: It was made for.
      neighbours: The plans for a little less and a little more memory.
      note: What was measured.
    """
    by_name = {tensor.name: tensor for tensor in graph.tensors}
    found = ["", *str(plan).split("\n\n")[0].splitlines(), ""]
    found += [
        f"{row.tensor}: {row.choice}; {why(by_name[row.tensor], row.choice)}"
        for row in plan.rows
        if row.tensor in by_name
    ]
    found.append("")
    for other in neighbours:
        what = "with less memory" if other.limit_bytes < plan.limit_bytes else "with more memory"
        if other.feasible:
            found.append(
                f"Next {what}: {format_bytes(other.peak_bytes)}, step {format_seconds(other.step_s)} "
                f"(this one {format_bytes(plan.peak_bytes)}, {format_seconds(plan.step_s)})."
            )
        else:
            found.append(f"None {what}: the smallest takes {format_bytes(other.smallest_bytes)}.")
    return [*found, note] if note else found
