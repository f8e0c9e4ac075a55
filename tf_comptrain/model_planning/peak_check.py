"""Whether the first steps keep a plan's limit."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
from absl import logging
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.compression.instrumentation import compressed_models
from tf_comptrain.compression.report import Report
from tf_comptrain.memory import counters
from tf_comptrain.model_planning import reasons, trials
from tf_comptrain.model_planning.microbatches import MOST_MICROBATCHES
from tf_comptrain.model_planning.model_plan import ModelPlan
from tf_comptrain.placement.accumulation import set_microbatches
from tf_comptrain.planner import Plan, Waste, plan_graph
from tf_comptrain.render.units import format_bytes
from tf_comptrain.storage import holdings_of

# The executor orders the operations anew in each step, so that the highest peak shows late.
_CHECKED_STEPS = (2, 5, 12, 25, 50)
_REPLANS = 3
_MUCH = 50  # of the limit, this part: what is said to be beside the step


class _Steps:
    """What steps take, whatever runs between them, such as a validation.

    Attributes:
      peak: The highest so far; 0 where no step has passed what was there before.
      resting: The least that was in use before a step but the first, which makes the slots; None: not known yet.
    """

    def __init__(self, limit: int):
        self._limit = limit
        self.peak, self._runs = 0, 0
        self.resting: int | None = None

    def begin(self) -> None:
        """Forgets the steps before."""
        self.peak, self._runs, self.resting = 0, 0, None
        counters.reset_peak()

    def run(self, train_function: Callable, iterator: Any) -> Any:
        if self._runs:
            # After a step some of what it took may still be there.
            in_use = counters.bytes_in_use()
            self.resting = in_use if self.resting is None else min(self.resting, in_use)
        self._runs += 1
        before = counters.peak_bytes()
        if before > self._limit:
            counters.reset_peak()
            before = counters.peak_bytes()
        logs = train_function(iterator)
        peak = counters.peak_bytes()
        if peak > before:
            self.peak = max(self.peak, peak)
        return logs


class _Tried(NamedTuple):
    """A plan that steps have run by.

    Attributes:
      above: Their peak over the resting level.
      plan: The plan.
      named: What carries it out, as `Wishes.named` has it.
    """

    above: int
    plan: ModelPlan
    named: Any


def _bytes_in_flight(iterator: Any, batch: int) -> int:
    """What the batches take that a dataset's iterator holds between steps; 0 where that is not known, or elsewhere."""
    if counters.device() != "CPU:0" or not hasattr(iterator, "element_spec"):
        return 0
    specs = [spec for spec in tf.nest.flatten(iterator.element_spec) if isinstance(spec, tf.TensorSpec)]
    sizes = [
        math.prod(size or batch for size in spec.shape) * spec.dtype.size for spec in specs if spec.shape.rank
    ]
    return _keras.batches_in_flight(iterator) * sum(sizes)


class PeakCheck:
    """Holds the peak of the first steps against the limit; where it is over, the next are planned tighter.

    Args:
      model: The model.
      found: Its plan, of the whole batch or in microbatches, of which there are more then.
      prepared: What was measured of the whole batch; None: there is no choice to be made tighter.
      report: That of the model, which gets lines.
    """

    def __init__(
        self, model: keras.Model, found: ModelPlan, prepared: trials.Prepared | None, report: Report
    ):
        self._handle, self._model = weakref.ref(compressed_models[model]), weakref.ref(model)
        self._plan, self._prepared = found, prepared
        self._steps = _Steps(found.limit_bytes)
        self._waste: Waste | None = None  # of a plan that was made again
        self._best: _Tried | None = None
        self._note = "The peak is looked at after step 2, and up to step 50."
        self._replans, self._has_begun = 0, False
        self._is_final = self._has_warned = False  # a plan that was gone back to; that no other one is tried
        self._resting = 0 if prepared is None else prepared.graph.resting_bytes
        self._neighbours: list | None = None
        report.notes = self._lines

    def begin(self, model: keras.Model) -> None:
        _keras.after_first_steps(model, _CHECKED_STEPS, self._check, self._run)
        self._steps.begin()

    def _lines(self) -> list[str]:
        if self._prepared is None or self._plan.microbatches > 1:
            return [*reasons.lines_of_fixed(self._plan), self._note]
        if self._neighbours is None:
            self._neighbours = list(trials.neighbours(self._prepared, self._plan, 0))
        return reasons.lines(self._plan, self._prepared.graph, self._neighbours, self._note)

    def _run(self, train_function: Callable, iterator: Any) -> Any:
        if _keras.jit_compile(self._model()):  # since: the plan says so
            return train_function(iterator)
        if not self._has_begun:
            self._has_begun = True
            self._make_room(iterator)
        return self._steps.run(train_function, iterator)

    def _make_room(self, iterator: Any) -> None:
        """Plans the step, which is not traced yet, for what is left beside the arrays and batches that `fit` holds."""
        if self._prepared is None:
            return
        in_flight = _bytes_in_flight(iterator, self._plan.batch)
        resting = counters.bytes_in_use() + (in_flight if in_flight < self._plan.limit_bytes else 0)
        over = self._plan.peak_bytes + resting - self._resting - self._plan.limit_bytes
        if over > 0 and self._plan.microbatches > 1:
            self._divide(over)
        elif over > 0:
            prepared = self._with_resting(resting)
            self._plan_again(prepared, prepared.expected_waste(self._plan.limit_bytes))

    def _check(self, steps: int) -> bool:
        """Whether the step has to be traced again, after so many of this trace."""
        peak, limit = self._steps.peak or counters.peak_bytes(), self._plan.limit_bytes
        if peak <= limit:
            self._note = (
                f"Measured after step {steps}: a peak of {format_bytes(peak)}, within {format_bytes(limit)}."
            )
            return False
        over = (
            f"Measured after step {steps}: a peak of {format_bytes(peak)}, over {format_bytes(limit)}, which was "
            f"planned for batches of {self._plan.batch}."
        )
        handle, model = self._handle(), self._model()
        if handle is None or handle.held is None or _keras.jit_compile(model):
            return False
        is_divided = self._plan.microbatches > 1
        if self._prepared is None or is_divided and not self._divide(peak - limit):
            self._warn(f"{over} A smaller `memory` leaves room for that.")
            return False
        if is_divided:
            self._note = f"{over} There are {self._plan.microbatches} microbatches from now on."
            logging.warning("%s: %s", self._plan.model, self._note)
            self._steps.begin()
            return True
        resting = self._steps.resting or counters.bytes_in_use()
        beside = resting - self._resting
        others = ""
        if beside > limit // _MUCH:
            others = f" {format_bytes(beside)} of that came beside the step, such as arrays that fit holds."
        wishes = handle.held.wishes
        tried = _Tried(peak - resting, self._plan, wishes.named)
        best = self._best = min(self._best or tried, tried, key=lambda one: one.above)
        is_best = best is tried
        if self._is_final or self._replans == _REPLANS or not (is_best or self._plan.feasible):
            if self._is_final or is_best:
                times = "once" if self._replans == 1 else f"{self._replans} times"
                self._warn(f"{over}{others} Planned again {times}.")
                return False
            _, self._plan, wishes.named = best
            self._is_final, self._neighbours = True, None
            self._steps.begin()
            return True
        self._replans += 1
        planned = max(self._plan.peak_bytes - self._prepared.graph.resting_bytes, 1)
        factor = max(peak - resting, 1) / planned
        base = (self._waste or self._prepared.waste(limit)).factor
        again = self._plan_again(self._with_resting(resting), Waste(max(base * max(factor, 1.0), 1.0)))
        least = "" if again.feasible else ", the least that is known of"
        self._note = f"{over}{others} Planned again with that: {format_bytes(again.peak_bytes)}{least}."
        logging.warning(
            "%s: the first steps took %s, over the limit of %s: planned again.%s",
            self._plan.model,
            format_bytes(peak),
            format_bytes(limit),
            others,
        )
        self._steps.begin()
        return True

    def _divide(self, over: int) -> bool:
        """Divides the batch further, until a step takes so much less; False where it cannot."""
        plan, prepared = self._plan, self._prepared
        model: Any = self._model()
        assert prepared is not None
        for count in range(plan.microbatches + 1, MOST_MICROBATCHES + 1):
            less = int(prepared.held_bytes * (1 / plan.microbatches - 1 / count))
            if plan.batch % count == 0 and less >= over:
                function = model.train_function  # that runs now: not traced yet, or made anew by who called
                set_microbatches(model, count)
                model.train_function = function
                self._plan = plan._replace(microbatches=count, peak_bytes=plan.peak_bytes - less)
                return True
        return False

    def _warn(self, note: str) -> None:
        self._note = note
        if not self._has_warned:
            logging.warning("%s: %s", self._plan.model, note)
        self._has_warned = True

    def _with_resting(self, resting: int) -> trials.Prepared:
        prepared: Any = self._prepared
        return prepared._replace(graph=prepared.graph._replace(resting_bytes=resting))

    def _plan_again(self, prepared: trials.Prepared, waste: Waste) -> Plan:
        again = plan_graph(prepared.graph, self._plan.limit_bytes, waste=waste)
        if not again.feasible:  # the smallest by the model; that of the first step was measured
            again = min(again, trials.held_plan(prepared, again), key=lambda plan: plan.peak_bytes)
        self._plan, self._prepared, self._waste = trials.as_model_plan(again, prepared), prepared, waste
        self._neighbours = None
        handle = self._handle()
        if handle is not None and handle.held is not None:
            handle.held.wishes.named = holdings_of(prepared.storage(again))
        return again
