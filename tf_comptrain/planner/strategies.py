"""A strategy for a step on several devices, worked out: what its stages hold, what crosses borders, its seconds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tf_comptrain.planner.holdings import StretchHoldings
from tf_comptrain.planner.pipeline import Border, StageRun, step_s
from tf_comptrain.planner.stage_costs import StageCosts, StageRange
from tf_comptrain.planner.task_graph import KEEP


class Strategy(NamedTuple):
    """A step, worked out.

    Attributes:
      microbatches: Parts in which the batch is run.
      places: Stages.
      choices: What each stage holds how.
      crossings: For each border "keep" or "stream:CODEC".
      runs: What the devices of each stage do.
      borders: Seconds of each.
      peaks: Bytes on a device of each stage.
      step_s: Seconds.
    """

    microbatches: int
    places: tuple[StageRange, ...]
    choices: tuple[StretchHoldings, ...]
    crossings: tuple[str, ...]
    runs: tuple[StageRun, ...]
    borders: tuple[Border, ...]
    peaks: tuple[float, ...]
    step_s: float


def first_devices(places: tuple[StageRange, ...]) -> list[int]:
    """The number of each stage's first device."""
    return [sum(place.devices for place in places[:k]) for k in range(len(places))]


def keeps_to_nodes(start: int, devices: int, node_devices: int) -> bool:
    """Whether devices from number `start` lie in one node, or have whole nodes."""
    if not node_devices:
        return True
    if devices <= node_devices:
        return start // node_devices == (start + devices - 1) // node_devices
    return start % node_devices == 0 and devices % node_devices == 0


def work_out(
    costs: StageCosts,
    microbatches: int,
    places: tuple[StageRange, ...],
    worth: float = 1e-3,
) -> Strategy | None:
    """The best step of given stages; None where one of them does not fit.

    Args:
      costs: Of the model on the machine.
      microbatches: Of the step.
      places: Stages.
      worth: By what part of a stage's seconds its knapsack is solved further; see `Holdings.choose`.
    """
    runs, choices, peaks = [], [], []
    for number, place in enumerate(places):
        key = (microbatches, place, min(microbatches, len(places) - number), worth)
        if key not in costs.worked_out:
            costs.worked_out[key] = _stage(costs, *key)
        found = costs.worked_out[key]
        if found is None:
            return None
        run, choice, peak = found
        runs.append(run)
        choices.append(choice)
        peaks.append(peak)
    best = None
    for some in _ways_across(costs, microbatches, places):
        crossed, borders = _crossed(costs, microbatches, places, runs, some)
        forward = [float(run.forward_s.sum()) for run in crossed]
        backward = [float(run.backward_s.sum()) for run in crossed]
        seconds = step_s(forward, backward, [run.after_s() for run in crossed], borders, microbatches)
        if best is None or seconds < best.step_s:
            best = Strategy(
                microbatches,
                places,
                tuple(choices),
                some,
                tuple(crossed),
                tuple(borders),
                tuple(peaks),
                seconds,
            )
    return best


def _stage(
    costs: StageCosts, microbatches: int, place: StageRange, ahead: int, worth: float
) -> tuple[StageRun, StretchHoldings, float] | None:
    start, end = place.start, place.end
    part = costs.part(microbatches, place.devices, place.split)
    if part.reach[start] < end or not costs.is_possible(microbatches, place.devices, place.split):
        return None
    ends = np.array([end])
    room = float(costs.room(part, ahead, start, ends)[0])
    plain_s = float(part.base_s[end] - part.base_s[start])
    choice = costs.holdings(place.split).choose(start, end, room, worth * plain_s / part.held_part)
    if choice is None:
        return None
    forward, backward = part.forward_s[start:end].copy(), part.backward_s[start:end].copy()
    held = np.zeros(end - start)
    for layer, holding in choice.taken:
        forward[layer - start] += part.held_part * holding.forward_s
        backward[layer - start] += part.held_part * holding.backward_s
        held[layer - start] += part.held_part * holding.bytes
    held[0] += part.entry_bytes[start]
    fixed = float(costs.fixed_bytes(part, start, ends)[0])
    finish = part.latency_s + float(part.update_s[end] - part.update_s[start])
    run = StageRun(forward, backward, part.sync_s[start:end], held, fixed, finish)
    return run, choice, fixed + ahead * float(held.sum())


def _ways_across(
    costs: StageCosts, microbatches: int, places: tuple[StageRange, ...]
) -> list[tuple[str, ...]]:
    """All borders as they are; those where a stream arrives earlier as streams; and each of these alone."""
    plain = (KEEP,) * (len(places) - 1)
    fastest = tuple(_fastest(costs, microbatches, places, k) for k in range(len(places) - 1))
    streams = [k for k, way in enumerate(fastest) if way != KEEP]
    single = [
        tuple(way if k == which else KEEP for k, way in enumerate(fastest))
        for which in (streams if 1 < len(streams) <= 7 else [])
    ]
    return list(dict.fromkeys([plain, fastest, *single]))


def _fastest(costs: StageCosts, microbatches: int, places: tuple[StageRange, ...], number: int) -> str:
    def seconds(way: str) -> float:
        encode_s, border, decode_s = _border(costs, microbatches, places, number, way)
        return encode_s + border.forward_s + decode_s

    return min((KEEP, *(f"stream:{name}" for name in costs.codecs())), key=seconds)


def _border(
    costs: StageCosts, microbatches: int, places: tuple[StageRange, ...], number: int, way: str
) -> tuple[float, Border, float]:
    """(seconds of encoding, border, seconds of decoding) of a microbatch."""
    before, after = places[number : number + 2]
    size = costs.crossing_bytes(microbatches, after.start) / min(before.devices, after.devices)
    first = first_devices(places)
    link = costs.hardware.link(first[number], first[number + 1] + after.devices - 1)
    back = link.seconds(size)
    if way == KEEP:
        return 0.0, Border(back, back), 0.0
    codec = costs.codecs()[way.partition(":")[2]]
    return (
        size / codec.encode_bytes_per_s,
        Border(link.seconds(size / codec.ratio), back),
        size / codec.decode_bytes_per_s,
    )


def _crossed(
    costs: StageCosts,
    microbatches: int,
    places: tuple[StageRange, ...],
    runs: list[StageRun],
    crossings: tuple[str, ...],
) -> tuple[list[StageRun], list[Border]]:
    """Stages with what coding at their borders takes, and the borders."""
    forward = [run.forward_s.copy() for run in runs]
    borders = []
    for number, way in enumerate(crossings):
        encode_s, border, decode_s = _border(costs, microbatches, places, number, way)
        forward[number][-1] += encode_s
        forward[number + 1][0] += decode_s
        borders.append(border)
    return [run._replace(forward_s=seconds) for run, seconds in zip(runs, forward)], borders
