"""From a model to a plan that its own steps confirm: measured, planned, run, and planned again where it was over."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.compression.instrumentation import compressed_models
from tf_comptrain.memory.batches import batch_of
from tf_comptrain.memory.trace import NothingRecordedError
from tf_comptrain.model_planning.costs import calibrate, share_of_copies
from tf_comptrain.model_planning.crossing_tensors import (
    CrossingTensor,
    carried_out,
    held_tensors,
    storage_of,
)
from tf_comptrain.model_planning.graph_of_step import Seconds, task_graph
from tf_comptrain.model_planning.model_plan import ModelPlan, fewest_parts, fingerprint
from tf_comptrain.model_planning.smaller_tiles import runs_by_smaller_tiles
from tf_comptrain.model_planning.speeds import on_machine, with_speed
from tf_comptrain.model_planning.steps import MeasuredSteps, measure
from tf_comptrain.planner import (
    Hardware,
    Plan,
    PlanState,
    Progress,
    TaskGraph,
    Waste,
    at_batch,
    plan_graph,
)
from tf_comptrain.planner.effects import compile_graph
from tf_comptrain.planner.solve import rows_of
from tf_comptrain.storage import Offload

# Steps of more samples are not profiled: one of so many is, and scaled; or of eight times as many, until most of
# what crosses is recorded.
LARGEST_PROBE = 32
_RECORDED = 256_000  # bytes: TensorFlow's profile has no smaller buffers
RUNS = 5
# Two trainings of one plan differ by so much: what came before says which chunks the allocator has.
_MARGIN = 0.04
_USED = 0.96  # of a limit's room above the resting level; where less is used, the plan is made again
_REPLANS = 4  # until the planner, asked for more or less, answers with a plan that was not tried


class Prepared(NamedTuple):
    """A model's step as data, and how it was measured.

    Attributes:
      graph: The step.
      tensors: Those that a plan decides about.
      probe: Samples of the steps that were profiled.
      wastes: (peak predicted over the resting level, peak measured / that), by the prediction.
      held_bytes: Measured peak over the resting level with every tensor held; scaled to the batch.
      fingerprint: Of the model.
      offload: Where and how tensors may wait outside of the device's memory; None: they may not.
      smaller_tiles: As in `planner.Plan`.
      has_wide_products: Whether smaller ones would make another step.
    """

    graph: TaskGraph
    tensors: tuple[CrossingTensor, ...]
    probe: int
    wastes: tuple[tuple[float, float], ...]
    held_bytes: int
    fingerprint: str
    offload: Offload | None = None
    smaller_tiles: int = 1
    has_wide_products: bool = False

    def waste(self, limit: int) -> Waste:
        """What the allocator is expected to take beyond what is live, by the measurements nearest to a limit."""
        room, known = limit - self.graph.resting_bytes, self.wastes
        smaller = [item for item in known if item[0] * item[1] <= room] or [known[0]]
        larger = [item for item in known if item[0] * item[1] > room] or [known[-1]]
        (low, first), (high, last) = smaller[-1], larger[0]
        share = min(max((room - low * first) / max(high * last - low * first, 1.0), 0.0), 1.0)
        return Waste(max(first + share * (last - first), 1.0))

    def expected_waste(self, limit: int) -> Waste:
        """`waste`, and by how much steps scatter."""
        waste = self.waste(limit)
        return waste._replace(factor=waste.factor * (1 + _MARGIN))

    def peak(self, above: int) -> int:
        """What a plan is expected to reach at most that was measured so far above the resting level."""
        return self.graph.resting_bytes + int(above * (1 + _MARGIN))

    def ends(self) -> tuple[int, int]:
        """Measured peaks: everything held as streams and bits, everything kept; resting bytes included."""
        peaks = [self.graph.resting_bytes + int(live * factor) for live, factor in self.wastes]
        return self.graph.resting_bytes + self.held_bytes, max(peaks)

    def parts(self, limit: int) -> tuple[int, int] | None:
        """Into how many microbatches the smallest plan is to be divided for a limit, and its bytes: see `fewest_parts`.

        Keras' optimizers hold the sum of gradients meanwhile. What a step holds is taken to be proportional to the
        batch.
        """
        fixed = self.graph.resting_bytes + self.graph.gradient_bytes
        return fewest_parts(self.graph.batch, fixed, self.held_bytes * (1 + _MARGIN), limit)

    def storage(self, plan: Plan) -> dict[str, str | Offload]:
        """That carries a plan out."""
        return carried_out(storage_of(self.tensors, plan.choices), self.offload)

    def with_run(self, plan: Plan, waste: Waste, measured: MeasuredSteps) -> Prepared:
        """Knowing one more measurement."""
        live = (plan.peak_bytes - self.graph.resting_bytes) / waste.factor
        wastes = {*self.wastes, (live, measured.peak_bytes / max(live, 1.0))}
        faster = min(measured.step_s / plan.known_step_s, 1.0)  # other work only ever makes a step slower
        graph = with_speed(self.graph._replace(resting_bytes=measured.resting_bytes), faster)
        return self._replace(wastes=tuple(sorted(wastes)), graph=graph)


def prepare(
    model: keras.Model, batch: int, hardware: Hardware | None, offload: Offload | None = None
) -> Prepared:
    """Measures the steps of a compressed model that a plan is made from; the model is left as it was.

    Args:
      model: One that `compress_model` took, compiled.
      batch: Samples to plan for.
      hardware: Described; None: this machine.
      offload: Where and how tensors may wait outside of the device's memory; None: they may not.
    """
    here = calibrate()
    probe, held = _probe(model, batch)
    x, y = batch_of(model, probe, None)
    tensors = held_tensors(held.graph)
    kept = measure(model, x, y, storage_of(tensors, {t.name: "keep" for t in tensors}), profile=False)
    assert held.trace is not None
    seconds = Seconds(held.step_s, kept.step_s)
    share = None if offload is None else share_of_copies()
    graph = task_graph(model.name, probe, held.trace, tensors, seconds, here, share)
    wastes = []
    for labels, run in (("stream", held), ("keep", kept)):
        live = _with_all(graph, labels).measure()[1] - graph.resting_bytes
        wastes.append((live, max(run.peak_bytes / max(live, 1.0), 1.0)))
    if batch != probe:
        wastes = [(live * batch / probe, factor) for live, factor in wastes]
        graph = at_batch(graph, batch)
    if hardware is not None:
        graph = on_machine(graph, here, hardware)
    held_bytes = held.peak_bytes * batch // probe
    gradients = _keras.bytes_of(*_keras.trainable_variables(model))
    graph = graph._replace(gradient_bytes=gradients)
    wastes = sorted(wastes)
    tiles = compressed_models[model].held.wishes.smaller_tiles, runs_by_smaller_tiles(held.graph, xla=False)
    return Prepared(graph, tensors, probe, tuple(wastes), held_bytes, fingerprint(model), offload, *tiles)


def only_plan(model: keras.Model, batch: int, limit: int) -> ModelPlan:
    """The plan of a compressed model whose tensors are all too small for a choice, by steps of the whole batch."""
    x, y = batch_of(model, batch, None)
    steps = measure(model, x, y, {}, profile=False)
    peak, step_s = steps.resting_bytes + int(steps.peak_bytes * (1 + _MARGIN)), steps.step_s
    return ModelPlan(
        model=model.name,
        limit_bytes=limit,
        rows=(),
        batch=batch,
        peak_bytes=peak,
        step_s=step_s,
        bound_s=step_s,
        gap=0.0,
        feasible=peak <= limit,
        smallest_bytes=peak,
        plain_s=step_s,
        kept_peak_bytes=peak,
        fingerprint=fingerprint(model),
    )


def _probe(model: keras.Model, batch: int) -> tuple[int, MeasuredSteps]:
    """Samples of the steps that run, and one that holds everything as a stream or bits."""
    probe = min(batch, LARGEST_PROBE)
    while True:
        try:
            x, y = batch_of(model, probe, None)
            held = measure(model, x, y, {}, profile=True)
            sizes = [tensor.bytes for tensor in held_tensors(held.graph)]
            if probe == batch or 2 * sum(size for size in sizes if size >= _RECORDED) >= sum(sizes):
                return probe, held
        except NothingRecordedError:
            if probe == batch:
                raise
        probe = min(batch, 8 * probe)


def _with_all(graph: TaskGraph, *labels: str) -> PlanState:
    """The plan that has the first of these choices that a tensor offers, for all tensors."""
    state = PlanState(compile_graph(graph))
    of_labels = [choice.label.partition(":")[0] for choice in state.effects.choices]
    for choices in state.effects.of_tensor:
        offered = {of_labels[choice]: choice for choice in reversed(choices)}
        state.set(next((offered[label] for label in labels if label in offered), choices[0]))
    return state


def as_model_plan(plan: Plan, prepared: Prepared) -> ModelPlan:
    """With what it takes to apply it."""
    plan = plan._replace(storage=storage_of(prepared.tensors, plan.choices), fingerprint=prepared.fingerprint)
    smallest = min(plan.smallest_bytes, plan.peak_bytes)
    return ModelPlan(*plan._replace(smallest_bytes=smallest, smaller_tiles=prepared.smaller_tiles))


def search(
    model: keras.Model,
    prepared: Prepared,
    limit: int,
    seed: int,
    budget_s: float,
    runs: int,
    progress: Callable[[Progress], None] | None = None,
) -> tuple[ModelPlan, Prepared]:
    """The fastest plan within a limit, which steps have confirmed where they may run.

    A KeyboardInterrupt ends it, with the best plan so far.

    Args:
      model: As in `prepare`.
      prepared: Of that model.
      limit: Bytes.
      seed: See `plan_graph`.
      budget_s: Seconds for each search.
      runs: How many plans are tried by steps, at most.
      progress: See `plan_graph`.

    Returns:
      (The plan, what was prepared with the measurements that were made.)
    """
    fitting: list[tuple[Plan, int]] = []  # with the measured peaks above the resting level
    peaks: dict[frozenset, int] = {}  # of the plans that were tried
    asked = _Asked(limit)
    waste, smallest_tried = prepared.expected_waste(limit), prepared.offload is None
    plan = _planned(prepared, limit, limit, waste, seed, budget_s, progress)
    try:
        for _ in range(runs):
            measured = _run(model, prepared, plan)
            above = measured.peak_bytes
            prepared = prepared.with_run(plan, waste, measured)
            found = _as_measured(plan, prepared.peak(above), measured.step_s, limit)
            peaks[_key(plan)] = found.peak_bytes
            if found.feasible:
                fitting.append((found, above))
            elif not plan.feasible:  # the smallest by the model; that of the first step may be as small
                plan = found
                if smallest_tried:
                    break
                smallest_tried = True
                plan = _all_offloaded(prepared, plan, waste)
                asked.bytes = plan.peak_bytes
                continue
            everything = all(row.choice == "keep" for row in plan.rows)
            if found.feasible and (
                everything or asked.is_used(found.peak_bytes, prepared.graph.resting_bytes)
            ):
                break
            for _ in range(_REPLANS):
                asked.learn(peaks[_key(plan)], prepared.graph.resting_bytes)
                plan = _planned(prepared, limit, asked.bytes, waste, seed, budget_s, progress)
                if _key(plan) not in peaks:
                    break
            else:
                break
    except KeyboardInterrupt:
        pass
    if runs:
        plan = _confirmed(fitting, prepared, limit) or _smallest(plan, prepared, peaks.values())
    return as_model_plan(plan, prepared), prepared


def _confirmed(fitting: Sequence[tuple[Plan, int]], prepared: Prepared, limit: int) -> Plan | None:
    """Of plans with their measured peaks above the resting level that which keeps most; None: none is within a limit.

    Times were measured one after the other.
    """
    # Weights lie elsewhere after each trial.
    rested = [plan._replace(peak_bytes=prepared.peak(above)) for plan, above in fitting]
    within = [plan for plan in rested if plan.peak_bytes <= limit]
    return max(within, key=lambda plan: plan.peak_bytes, default=None)


def _smallest(plan: Plan, prepared: Prepared, peaks: Iterable[int]) -> Plan:
    """The plan of the first step where that is within its limit; else one that is not, with the least peak."""
    held = held_plan(prepared, plan)
    if held.feasible:
        return held
    smallest = min(held.peak_bytes, *peaks)
    return plan._replace(feasible=False, peak_bytes=max(plan.peak_bytes, smallest), smallest_bytes=smallest)


def _key(plan: Plan) -> frozenset:
    return frozenset(plan.choices.items())


class _Asked:
    """What the planner is asked for so that the steps come out within a limit: its memory is a model's.

    Args:
      limit: That the steps have to keep, bytes.
    """

    def __init__(self, limit: int):
        self.bytes = limit
        self._limit = limit
        self._fits, self._over = 0.0, math.inf  # above the resting level

    def is_used(self, peak: int, resting: int) -> bool:
        """Whether a peak is within the limit, and near it, where so much rests between steps."""
        return _USED * (self._limit - resting) <= peak - resting <= self._limit - resting

    def learn(self, peak: int, resting: int) -> None:
        """Asks for more or less after a peak of what was asked for last, of which so much rests between steps."""
        room = float(self.bytes - resting)
        if peak <= self._limit:
            self._fits = max(self._fits, room)
        else:
            self._over = min(self._over, room)
        goal = (1 + _USED) / 2 * (self._limit - resting)
        room = room * max(goal, 1.0) / max(peak - resting, 1.0)
        if not self._fits < room < self._over:
            room = (self._fits + self._over) / 2 if self._over < math.inf else self._fits * (1 + _MARGIN)
        self.bytes = resting + int(room)


def _run(model: keras.Model, prepared: Prepared, plan: Plan) -> MeasuredSteps:
    """Steps of a plan, traced anew; of all of the batch, which are no multiple of smaller ones."""
    x, y = batch_of(model, prepared.graph.batch, None)
    return measure(model, x, y, prepared.storage(plan), profile=False)


def _as_measured(plan: Plan, peak: int, step_s: float, limit: int) -> Plan:
    """The plan with what its steps took; other work only ever makes a step slower."""
    faster = min(step_s / plan.known_step_s, 1.0)
    return plan._replace(
        limit_bytes=limit,
        peak_bytes=peak,
        feasible=peak <= limit,
        step_s=plan.known_step_s * faster,
        bound_s=None if plan.bound_s is None else plan.bound_s * faster,
    )


def held_plan(prepared: Prepared, like: Plan) -> Plan:
    """The plan whose step was measured first: everything held as a stream or bits."""
    peak = prepared.graph.resting_bytes + int(prepared.held_bytes * (1 + _MARGIN))
    return _plan_of_state(_with_all(prepared.graph, "stream"), peak, like)


def _all_offloaded(prepared: Prepared, like: Plan, waste: Waste) -> Plan:
    """The plan in which whatever may wait elsewhere does: where many do, it is below what the model knows of."""
    state = _with_all(prepared.graph, "offload", "stream")
    resting = prepared.graph.resting_bytes
    peak = resting + int((state.measure()[1] - resting) * waste.factor)
    return _plan_of_state(state, peak, like)._replace(feasible=False)


def _plan_of_state(state: PlanState, peak: int, like: Plan) -> Plan:
    """A plan that was not searched for."""
    step_s = state.measure()[0]
    gap = None if like.bound_s is None else max(step_s - like.bound_s, 0.0) / step_s
    feasible = peak <= like.limit_bytes
    return like._replace(
        rows=rows_of(state.effects, tuple(state.chosen)),
        peak_bytes=peak,
        step_s=step_s,
        gap=gap,
        feasible=feasible,
        smallest_bytes=peak,
        curve=(),
        events=(),
    )


def _planned(
    prepared: Prepared,
    limit: int,
    asked: int,
    waste: Waste,
    seed: int,
    budget_s: float,
    progress: Callable[[Progress], None] | None,
) -> Plan:
    plan = plan_graph(prepared.graph, asked, waste=waste, seed=seed, budget_s=budget_s, progress=progress)
    return plan._replace(limit_bytes=limit)


def neighbours(prepared: Prepared, plan: Plan, seed: int) -> Sequence[Plan]:
    """The plans for a tenth less and a tenth more memory above the resting level; no steps are run."""
    room = plan.limit_bytes - prepared.graph.resting_bytes
    limits = [prepared.graph.resting_bytes + max(int(room * factor), 1) for factor in (0.9, 1.1)]
    return [_planned(prepared, one, one, prepared.expected_waste(one), seed, 2.0, None) for one in limits]
