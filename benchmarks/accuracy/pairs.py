"""The results file, and the differences that its runs make: arm less plain, seed by seed."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from tasks import PLAIN, Task

from tf_comptrain.study.lines import append, read

__all__ = ["append", "read"]  # of a results file, and what is below

Run = dict[str, Any]


def of_task(runs: Sequence[Run], name: str, task: Task) -> list[Run]:
    """A task's runs; those of another setting of it are not its runs."""
    return [run for run in runs if run["task"] == name and run["setting"] == task.setting()]


def by_seed(runs: Sequence[Run]) -> dict[int, list[Run]]:
    """Runs of each seed, in the order of the file."""
    found: dict[int, list[Run]] = {}
    for run in runs:
        found.setdefault(run["seed"], []).append(run)
    return found


def differences(runs: Sequence[Run], task: Task, arm: str) -> dict[int, float]:
    """By seed, the mean of an arm's runs less the mean of plain's; of a text in % of the latter.

    Only seeds of which all runs are there, made on machines of one kind. Kinds round differently: where an arm follows
    plain closely, as in a short training of a decoder, that would cost most of what the pair gains. Where it does not,
    this costs a seed now and then.
    """
    found = ((seed, _difference(of_seed, task, arm)) for seed, of_seed in sorted(by_seed(runs).items()))
    return {seed: change for seed, change in found if change is not None}


def in_order(found: dict[int, float]) -> list[float]:
    """Differences of the seeds 1, 2, 3, ... up to the first that is not there: which ones count is nobody's choice."""
    count = next(number for number in range(len(found) + 1) if number + 1 not in found)
    return [found[seed] for seed in range(1, count + 1)]


def missing(runs: Sequence[Run], task: Task, arm: str, kind: str) -> Iterator[tuple[str, int]]:
    """(arm, order) of the runs that a seed's difference still needs, on a machine of this kind; plain's first.

    Args:
      runs: Of the seed.
      task: Theirs.
      arm: Whose difference it is.
      kind: Of the machine that is to make them.
    """
    if _difference(runs, task, arm) is not None:
        return
    done = {(run["arm"], run["order"]) for run in runs if _kind(run) == kind}
    for name, orders in ((PLAIN, task.orders.plain), (arm, task.orders.arm)):
        for order in range(orders):
            if (name, order) not in done:
                yield name, order


def _difference(runs: Sequence[Run], task: Task, arm: str) -> float | None:
    """Of a seed's runs."""
    for kind in dict.fromkeys(map(_kind, runs)):  # in the order of the file
        of_kind = [run for run in runs if _kind(run) == kind]
        plain, ours = (
            _metrics(of_kind, name, orders)
            for name, orders in ((PLAIN, task.orders.plain), (arm, task.orders.arm))
        )
        if plain and ours:
            base = statistics.fmean(plain)
            change = statistics.fmean(ours) - base
            return 100 * change / base if task.is_text else change
    return None


def _kind(run: Run) -> str:
    return run["machine"]["kind"]


def _metrics(runs: Sequence[Run], arm: str, orders: int) -> list[float]:
    """Of the first orders of an arm's runs; none where one is not there."""
    by_order = {run["order"]: run["metric"] for run in runs if run["arm"] == arm}
    wanted = range(orders)
    return [by_order[order] for order in wanted] if all(order in by_order for order in wanted) else []
