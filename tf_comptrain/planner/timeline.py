"""Queues beside the computation: when copies run, and how long the computation waits for them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Seconds = NDArray[np.float64]


class Jobs(NamedTuple):
    """Work of queues other than the computation's; arrays of one length.

    Attributes:
      queue: Number of the queue; its jobs run one at a time, in the order in which they are ready.
      owner: Number of the tensor that is copied.
      ready: Phase whose beginning makes the job ready.
      wait: Phase that does not begin before the job has ended; more than the number of phases where none waits.
      seconds: It takes.
      after: Index of the job that has to end first; -1 where there is none.
    """

    queue: Numbers
    owner: Numbers
    ready: Numbers
    wait: Numbers
    seconds: Seconds
    after: Numbers


class StepSchedule(NamedTuple):
    """When everything runs.

    Attributes:
      start_s: [phases + 1] when each phase begins; the last element is when the computation ends.
      jobs: As given.
      begin_s, finish_s: Of each job.
      end_s: When all queues are done.
    """

    start_s: Seconds
    jobs: Jobs
    begin_s: Seconds
    finish_s: Seconds
    end_s: float


def latest_starts(nominal_s: Seconds, waits: Numbers, seconds: Seconds) -> Numbers:
    """The last phases in which copies may begin, one after the other, so that no phase has to wait for its own.

    Args:
      nominal_s: When each phase begins where nothing waits.
      waits: Phase that needs each copy, in rising order.
      seconds: Of each copy.
    """
    ends = np.cumsum(seconds)
    # A copy begins early enough for itself and for all that follow it.
    slack = np.minimum.accumulate((nominal_s[waits] - ends)[::-1])[::-1]
    phases = np.searchsorted(nominal_s, slack + ends - seconds, "right") - 1
    return np.minimum(np.maximum(phases, 0), waits - 1)


def run_jobs(nominal_s: Seconds, jobs: Jobs) -> StepSchedule:
    """Runs the jobs beside the computation, event by event.

    Args:
      nominal_s: [phases + 1] when each phase begins where nothing waits; the last element is the end.
      jobs: Each becomes ready before the phase that waits for it, and comes after the job that it follows.
    """
    count, last = len(jobs.ready), len(nominal_s) - 1
    waiting = np.flatnonzero(jobs.wait <= last)
    phase = np.concatenate((jobs.wait[waiting], jobs.ready))
    begins = np.concatenate((np.zeros(len(waiting), int), np.ones(count, int)))
    number = np.concatenate((waiting, np.arange(count)))
    order = np.lexsort((number, begins, phase))
    queues, seconds, after = jobs.queue.tolist(), jobs.seconds.tolist(), jobs.after.tolist()
    free = [0.0] * (max(queues, default=0) + 1)
    begin_s, finish_s = [0.0] * count, [0.0] * count
    delays = np.zeros(last + 1)
    delay = 0.0  # all of them so far
    events = (
        phase[order].tolist(),
        nominal_s[phase[order]].tolist(),
        begins[order].tolist(),
        number[order].tolist(),
    )
    for at, nominal, starts, job in zip(*events):
        now = nominal + delay
        if starts:
            now = max(now, free[queues[job]], finish_s[after[job]] if after[job] >= 0 else 0.0)
            begin_s[job] = now
            free[queues[job]] = finish_s[job] = now + seconds[job]
        elif finish_s[job] > now:
            delays[at] += finish_s[job] - now
            delay += finish_s[job] - now
    start_s = nominal_s + np.cumsum(delays)
    end_s = max(float(start_s[-1]), *free)
    return StepSchedule(start_s, jobs, np.array(begin_s), np.array(finish_s), end_s)
