"""Queues beside the computation: when copies and collectives run, and how long the computation waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Job(NamedTuple):
    """Work of a queue other than the computation's.

    Attributes:
      queue: Name of the queue; its jobs run one at a time, in the order in which they are ready.
      owner: Number of the tensor copied, or of the task.
      ready: Phase whose beginning makes it ready.
      wait: Phase that does not begin before the job has ended; the number of phases where none waits.
      seconds: It takes.
      after: Index of the job that has to end first; -1 where there is none.
    """

    queue: str
    owner: int
    ready: int
    wait: int
    seconds: float
    after: int = -1


class Timeline(NamedTuple):
    """When everything runs.

    Attributes:
      start_s: [phases + 1] when each phase begins; the last element is when the computation ends.
      jobs: As given.
      spans_s: (start, end) of each job.
      end_s: When all queues are done.
    """

    start_s: NDArray[np.float64]
    jobs: Sequence[Job]
    spans_s: list[tuple[float, float]]
    end_s: float


def latest_starts(
    nominal_s: NDArray[np.float64], waits: Sequence[int], seconds: Sequence[float]
) -> list[int]:
    """The last phases in which copies may begin, one after the other, so that no phase has to wait for its own.

    Args:
      nominal_s: When each phase begins where nothing waits.
      waits: Phase that needs each copy, in rising order.
      seconds: Of each copy.
    """
    latest: list[float] = []
    free = float("inf")
    for need, duration in zip(nominal_s[list(waits)][::-1].tolist(), reversed(seconds)):
        free = min(free, need) - duration
        latest.append(free)
    phases = np.searchsorted(nominal_s, latest[::-1], "right") - 1
    return [min(max(phase, 0), wait - 1) for phase, wait in zip(phases.tolist(), waits)]


def run_jobs(nominal_s: NDArray[np.float64], jobs: Sequence[Job]) -> Timeline:
    """Runs the jobs beside the computation, event by event.

    Args:
      nominal_s: [phases + 1] when each phase begins where nothing waits; the last element is the end.
      jobs: Each becomes ready before the phase that waits for it, and comes after the job that it follows.
    """
    last = len(nominal_s) - 1
    nominal = nominal_s.tolist()
    events = [(job.wait, 0, number) for number, job in enumerate(jobs) if job.wait <= last]
    events += [(job.ready, 1, number) for number, job in enumerate(jobs)]
    free: dict[str, float] = {}
    spans = [(0.0, 0.0)] * len(jobs)
    delays = np.zeros(last + 1)
    delay = 0.0  # all of them so far
    for phase, begins, number in sorted(events):
        now = nominal[phase] + delay
        job = jobs[number]
        if begins:
            start = max(now, free.get(job.queue, 0.0), spans[job.after][1] if job.after >= 0 else 0.0)
            spans[number] = (start, start + job.seconds)
            free[job.queue] = start + job.seconds
        elif spans[number][1] > now:
            delays[phase] += spans[number][1] - now
            delay += spans[number][1] - now
    start_s = nominal_s + np.cumsum(delays)
    return Timeline(start_s, jobs, spans, max(float(start_s[-1]), *free.values(), 0.0))
