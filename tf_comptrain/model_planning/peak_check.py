"""Whether the first steps keep a plan's limit."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from absl import logging
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.compression.instrumentation import compressed_models
from tf_comptrain.compression.report import Report
from tf_comptrain.memory import counters
from tf_comptrain.model_planning import reasons, trials
from tf_comptrain.model_planning.model_plan import ModelPlan
from tf_comptrain.planner import Waste, plan_graph
from tf_comptrain.render.units import format_bytes
from tf_comptrain.storage import holdings_of

# The executor orders the operations anew in each step, so that the highest peak shows late.
_CHECKED_STEPS = (2, 12, 50)
_REPLANS = 3
_MUCH = 50  # of the limit, this part: what is said to be beside the step


class _StepPeak:
    """The highest peak of steps, whatever runs between them, such as a validation.

    Attributes:
      bytes: So far; 0 where no step has passed what was there before.
    """

    def __init__(self, limit: int):
        self.bytes = 0
        self._limit = limit

    def run(self, train_function: Callable, iterator: Any) -> Any:
        before = counters.peak_bytes()
        if before > self._limit:
            counters.reset_peak()
            before = counters.peak_bytes()
        logs = train_function(iterator)
        peak = counters.peak_bytes()
        if peak > before:
            self.bytes = max(self.bytes, peak)
        return logs


class PeakCheck:
    """Holds the peak of the first steps against the limit; where it is over, the next are planned tighter.

    Args:
      model: The model.
      found: Its plan.
      prepared: What was measured for that; None: there is no choice to be made tighter, as in microbatches.
      report: That of the model, which gets lines.
    """

    def __init__(
        self, model: keras.Model, found: ModelPlan, prepared: trials.Prepared | None, report: Report
    ):
        self._handle = weakref.ref(compressed_models[model])
        self._plan, self._prepared = found, prepared
        self._peak = _StepPeak(found.limit_bytes)
        self._note = "The peak is looked at after step 2, 12 and 50."
        self._replans = 0
        self._resting = 0 if prepared is None else prepared.graph.resting_bytes
        self._neighbours: list | None = None
        report.notes = self._lines

    def begin(self, model: keras.Model) -> None:
        _keras.after_first_steps(model, _CHECKED_STEPS, self._check, self._peak.run)
        counters.reset_peak()

    def _lines(self) -> list[str]:
        if self._prepared is None:
            return [*reasons.lines_of_fixed(self._plan), self._note]
        if self._neighbours is None:
            self._neighbours = list(trials.neighbours(self._prepared, self._plan, 0))
        return reasons.lines(self._plan, self._prepared.graph, self._neighbours, self._note)

    def _check(self, steps: int) -> bool:
        """Whether the step has to be traced again, after so many of this trace."""
        peak, limit = self._peak.bytes or counters.peak_bytes(), self._plan.limit_bytes
        if peak <= limit:
            self._note = (
                f"Measured after step {steps}: a peak of {format_bytes(peak)}, within {format_bytes(limit)}."
            )
            return False
        over = f"Measured after step {steps}: a peak of {format_bytes(peak)}, over {format_bytes(limit)}."
        handle = self._handle()
        if handle is None or handle.held is None:
            return False
        if self._prepared is None:
            self._note = f"{over} A smaller `memory` leaves room for that."
            logging.warning("%s: %s", self._plan.model, self._note)
            return False
        resting = counters.bytes_in_use()
        beside = resting - self._resting
        others = ""
        if beside > limit // _MUCH:
            others = f" {format_bytes(beside)} of that came beside the step, such as arrays that fit holds."
            over += others
        if self._replans == _REPLANS:
            self._note = f"{over} Planned again {_REPLANS} times."
            logging.warning("%s: %s", self._plan.model, self._note)
            return False
        self._replans += 1
        graph = self._prepared.graph._replace(resting_bytes=resting)
        planned = max(self._plan.peak_bytes - self._prepared.graph.resting_bytes, 1)
        factor = max(peak - resting, 1) / planned
        base = self._prepared.waste(limit).factor
        waste = Waste(max(base * max(factor, 1.0), 1.0))
        again = plan_graph(graph, limit, waste=waste)
        self._prepared = self._prepared._replace(graph=graph)
        if not again.feasible:  # the smallest by the model; that of the first step was measured
            again = min(again, trials.held_plan(self._prepared, again), key=lambda plan: plan.peak_bytes)
        self._plan = trials.as_model_plan(again, self._prepared)
        self._neighbours = None
        least = "" if again.feasible else ", the least that is known of"
        self._note = f"{over} Planned again with that: {format_bytes(again.peak_bytes)}{least}."
        logging.warning(
            "%s: the first steps took %s, over the limit of %s: planned again.%s",
            self._plan.model,
            format_bytes(peak),
            format_bytes(limit),
            others,
        )
        handle.held.wishes.named = holdings_of(self._prepared.storage(again))
        counters.reset_peak()
        self._peak.bytes = 0
        return True
