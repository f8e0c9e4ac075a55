"""The best division of a chain of layers into stages, by dynamic programming from the last stage on.

A label of a state (layers from i on, k stages, so many devices) is a pair: seconds from the first stage's first pass to
its last, and seconds of one microbatch there and back. Both are lower bounds, and more of either is never better, so
that of each state only the labels that no other beats in both are kept. The best label of all layers is a lower bound
for every division, and the division that it came from a good one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tf_comptrain.planner.pipeline import least_step_s
from tf_comptrain.planner.stage_costs import Part, StageCosts, StageRange, running_sums
from tf_comptrain.planner.stages import SPLITS
from tf_comptrain.planner.strategies import keeps_to_nodes

Floats = NDArray[np.float64]
Exact = dict[tuple[int, int, str, int, int], dict[int, float]]
_MOST_LABELS, _MOST_MERGED = 48, 256
_MOST_LISTED = 20000
_ALIKE = 1e-4  # labels that differ less, relative to the limit, are merged where there are too many


class Division(NamedTuple):
    """Stages, and the seconds below which no step of theirs is."""

    bound_s: float
    places: tuple[StageRange, ...]


class _Labels(NamedTuple):
    """Labels of a number of stages on a number of devices, those of a first layer in a row.

    Attributes:
      offsets: Where those of each layer begin.
      step_s, round_s: The pairs.
      end: First layer of the next stage.
      way: Number of (devices, split).
      label: Number of the next stage's label in its own `_Labels`.
    """

    offsets: NDArray[np.int64]
    step_s: Floats
    round_s: Floats
    end: NDArray[np.int64]
    way: NDArray[np.int64]
    label: NDArray[np.int64]


class Partitions:
    """Divisions of a chain into stages for one number of microbatches.

    Args:
      costs: Of stages.
      microbatches: Of a step.
      used: Devices that the stages have together.
      counts: Numbers of devices that a stage may have.
      until: When `best` gives up, by `time.monotonic`.
      exact: Seconds of stages that are known better than by the relaxation: by (microbatches, devices, split,
        microbatches ahead, first layer), by end.
    """

    def __init__(
        self,
        costs: StageCosts,
        microbatches: int,
        used: int,
        counts: Sequence[int],
        until: float,
        exact: Exact,
    ):
        self._costs, self._microbatches, self._used = costs, microbatches, used
        self._until, self._exact = until, exact
        self._ways = [
            (devices, split, costs.part(microbatches, devices, split))
            for devices in counts
            if devices <= used
            for split in SPLITS
            if costs.is_possible(microbatches, devices, split)
        ]
        of = costs.of
        self._launch = running_sums(of["forward_launch_s"] + of["backward_launch_s"])
        self._work = running_sums(of["forward_s"] + of["backward_s"])

    def best(self, limit_s: float, most_stages: int, most: int = 4, every: bool = False) -> list[Division]:
        """The best divisions with steps below a limit, the first with the bound of all; none: there are none.

        Args:
          limit_s: Divisions whose bound is not below it are left out.
          most_stages: Of a division.
          most: Divisions that are returned.
          every: Leave none out, whatever beats it. Where there are too many, the last one returned stands for the
            others: it has their bound.

        Raises:
          TimeoutError: It took too long.
        """
        if not self._ways:
            return []
        tables: dict[tuple[int, int], _Labels] = {}
        whole: list[tuple[float, int, int]] = []
        sizes = sorted({devices for devices, _, _ in self._ways})
        totals = {0}
        for stages in range(1, min(most_stages, self._costs.count) + 1):
            totals = {total + size for total in totals for size in sizes if total + size <= self._used}
            for total in totals:
                if time.monotonic() > self._until:
                    raise TimeoutError("No time is left to divide the layers.")
                labels = self._table(stages, total, tables, limit_s, every)
                if labels is not None:
                    tables[stages, total] = labels
                    if total == self._used:
                        whole += [(seconds, stages, k) for k, seconds in enumerate(labels.step_s.tolist())]
        return [
            Division(seconds, self._places(stages, label, tables))
            for seconds, stages, label in sorted(whole)[:most]
        ]

    def _table(
        self, stages: int, total: int, tables: dict[tuple[int, int], _Labels], limit_s: float, every: bool
    ) -> _Labels | None:
        count, left = self._costs.count, self._used - total
        front_s, starts = np.zeros(count), [0]
        if left:
            largest = min(left, max(devices for devices, _, _ in self._ways))
            front_s = self._launch + self._work / (self._microbatches * largest)
            share_s = (self._microbatches * self._launch + self._work) / left
            starts = [i for i in range(1, count) if share_s[i] < limit_s]
        found: dict[int, tuple[Floats, ...]] = {}
        for start in starts:
            columns = [
                column
                for number, (devices, split, part) in enumerate(self._ways)
                if devices <= total
                and keeps_to_nodes(left, devices, self._costs.hardware.node_devices)
                and (stages == 1) == (devices == total)
                for column in self._stage(
                    number,
                    devices,
                    split,
                    part,
                    stages,
                    left + devices - 1,
                    start,
                    tables.get((stages - 1, total - devices)),
                    limit_s,
                )
            ]
            if columns:
                joined = tuple(np.concatenate(column) for column in zip(*columns))
                keep = joined[0] + front_s[start] < limit_s
                if keep.any():
                    joined = tuple(column[keep] for column in joined)
                    few = every and len(joined[0]) <= _MOST_LISTED
                    found[start] = joined if few else _best_labels(joined, limit_s)
        if not found:
            return None
        lengths = [len(found[i][0]) if i in found else 0 for i in range(count)]
        columns_all = [np.concatenate([found[i][c] for i in sorted(found)]) for c in range(5)]
        step, back, end, way, label = columns_all
        return _Labels(
            np.concatenate(([0], np.cumsum(lengths))).astype(int),
            step,
            back,
            end.astype(int),
            way.astype(int),
            label.astype(int),
        )

    def _stage(
        self,
        way: int,
        devices: int,
        split: str,
        part: Part,
        stages: int,
        last_device: int,
        start: int,
        behind: _Labels | None,
        limit_s: float,
    ) -> list[tuple[Floats, ...]]:
        """Labels of a stage from `start` in front of those behind it."""
        costs, count, microbatches = self._costs, self._costs.count, self._microbatches
        within = np.searchsorted(part.base_s[start + 1 :] - part.base_s[start], limit_s / microbatches)
        last = min(start + int(within), int(part.reach[start]))
        ends = np.arange(start + 1, min(last, count - 1) + 1)
        if behind is None:
            ends = np.array([count] if stages == 1 and last >= count else [], int)
        if not len(ends):
            return []
        ahead = min(microbatches, stages)
        seconds = self._seconds(part, devices, split, stages, start, ends)
        fits = np.isfinite(seconds)
        if behind is None:
            step = microbatches * seconds
            if start == 0 and fits[0]:
                step = costs.finished_s(part, step, seconds, start, ends)
            return (
                [(step, seconds, ends.astype(float), np.full(1, float(way)), np.zeros(1))] if fits[0] else []
            )
        many = np.where(fits, behind.offsets[ends + 1] - behind.offsets[ends], 0)
        which = np.repeat(np.arange(len(ends)), many)
        if not len(which):
            return []
        first = behind.offsets[ends]
        label = np.arange(len(which)) - np.repeat(np.cumsum(many) - many, many) + first[which]
        border = costs.border_bound_s(microbatches, devices, last_device, ends)[which]
        step, back = least_step_s(
            seconds[which],
            behind.round_s[label] + border,
            ahead,
            microbatches,
            behind.step_s[label] + border,
        )
        if start == 0:
            step = costs.finished_s(part, step, seconds[which], start, ends[which])
        return [(step, back, ends[which].astype(float), np.full(len(which), float(way)), label.astype(float))]

    def bound_s(self, places: tuple[StageRange, ...]) -> float:
        """No step of a division takes less."""
        step = back = np.zeros(1)
        total = 0
        for number in range(len(places) - 1, -1, -1):
            start, end, devices, split = places[number]
            total += devices
            ends, stages = np.array([end]), len(places) - number
            part = self._costs.part(self._microbatches, devices, split)
            seconds = self._seconds(part, devices, split, stages, start, ends)
            if stages == 1:
                step, back = self._microbatches * seconds, seconds
            else:
                last = self._used - total + devices - 1
                border = self._costs.border_bound_s(self._microbatches, devices, last, ends)
                ahead = min(self._microbatches, stages)
                step, back = least_step_s(seconds, back + border, ahead, self._microbatches, step + border)
            if start == 0 and np.isfinite(seconds[0]):
                step = self._costs.finished_s(part, step, seconds, start, ends)
        return float(step[0])

    def _seconds(
        self, part: Part, devices: int, split: str, stages: int, start: int, ends: NDArray[np.int64]
    ) -> Floats:
        """Of a microbatch in the first of so many stages, at least."""
        ahead = min(self._microbatches, stages)
        seconds = self._costs.bound_s(part, split, ahead, start, ends)
        key = (self._microbatches, devices, split, ahead, start)
        for end, better in self._exact.get(key, {}).items():
            if ends[0] <= end <= ends[-1]:
                seconds[end - ends[0]] = max(seconds[end - ends[0]], better)
        return seconds

    def _places(
        self, stages: int, label: int, tables: dict[tuple[int, int], _Labels]
    ) -> tuple[StageRange, ...]:
        places, start, total = [], 0, self._used
        while stages:
            table = tables[stages, total]
            devices, split, _ = self._ways[int(table.way[label])]
            end = int(table.end[label])
            places.append(StageRange(start, end, devices, split))
            start, total, stages, label = end, total - devices, stages - 1, int(table.label[label])
        return tuple(places)


def _best_labels(columns: tuple[Floats, ...], limit_s: float) -> tuple[Floats, ...]:
    """Those that no other beats in both seconds; where there are many, alike ones become one that is as good as any."""
    order = np.lexsort((columns[1], columns[0]))
    columns = tuple(column[order] for column in columns)
    lowest = np.minimum.accumulate(columns[1])
    better = np.concatenate(([True], columns[1][1:] < lowest[:-1]))
    columns = tuple(column[better] for column in columns)
    if len(columns[0]) <= _MOST_LABELS:
        return columns
    first_s, last_s = float(columns[0][0]), float(columns[0][-1])
    width = max(_ALIKE * (limit_s if math.isfinite(limit_s) else first_s), (last_s - first_s) / _MOST_MERGED)
    bucket = np.floor((columns[0] - first_s) / width)
    first = np.concatenate(([True], bucket[1:] != bucket[:-1]))
    last = np.concatenate((first[1:], [True]))
    return (columns[0][first], columns[1][last], *(column[first] for column in columns[2:]))
