"""From a task graph and a memory limit to a plan: greedy first, then the relaxation, then the whole program."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tf_comptrain import arguments
from tf_comptrain.planner.effects import Effects, compile_graph
from tf_comptrain.planner.plan import Plan, PlanRow
from tf_comptrain.planner.search import FoundPlan, PlanSearch
from tf_comptrain.planner.simulator import NO_WASTE, PlanState, Simulation, Waste
from tf_comptrain.planner.task_graph import TaskGraph

if TYPE_CHECKING:
    from tf_comptrain.planner.lower_bound import Program, Solution

METHODS = ("default", "random", "greedy", "mcmc", "mcmc_seeded", "milp")
_CHAIN_STEPS = 4000  # of one run of the Markov chain
_ROUNDINGS = 4
_LINK_SHARES = (0.95, 0.85)
_LOOSER = (1.0, 1.002, 1.01, 1.03, 1.1, 1.3, 2.0)  # limits tried over the least memory of the relaxation


class Progress(NamedTuple):
    """Where a search stands.

    Attributes:
      elapsed_s: Since it began.
      step_s: Of the best plan so far; None where there is none.
      peak_bytes: Of that plan.
      bound_s: No plan takes less, as far as is known.
    """

    elapsed_s: float
    step_s: float | None
    peak_bytes: float | None
    bound_s: float


def plan_graph(
    graph: TaskGraph,
    limit_bytes: int | str,
    *,
    method: str = "default",
    seed: int = 0,
    budget_s: float = 10.0,
    tolerance: float = 1e-3,
    waste: Waste = NO_WASTE,
    progress: Callable[[Progress], None] | None = None,
) -> Plan:
    """The fastest plan of a step whose peak stays within a limit.

    A KeyboardInterrupt, in `progress` too, ends the search, and the best plan so far is returned.

    Args:
      graph: Tasks, tensors and choices.
      limit_bytes: The peak allowed, as a number or as text such as "8GiB".
      method: "default": greedy, the relaxation rounded, then branch and bound, then a Markov chain from the best plan,
        until `tolerance` or `budget_s` is reached. The others, for comparison: "random", "greedy", "mcmc" (from the
        plan that keeps everything), "mcmc_seeded" (from the relaxation), "milp" (branch and bound alone); they look
        for no smallest plan where they find none within the limit.
      seed: Of all that is drawn by chance.
      budget_s: Seconds for the search; once more as many, at most, for the smallest plan where none fits.
      tolerance: The gap to the bound at which the search ends.
      waste: What the allocator takes beyond what is live.
      progress: Is told of each better plan and bound.

    Returns:
      A `Plan`. Where no plan fits, the smallest that was found, with `feasible` False.

    Raises:
      ValueError: The graph is not sound, or an argument is out of range.

    Examples:
      >>> print(plan_graph(graph_from_json(Path("step.json")), "8GiB"))
    """
    limit = arguments.size_in_bytes("limit_bytes", limit_bytes)
    if method not in METHODS:
        raise ValueError(f"`method` must be one of {', '.join(METHODS)}. Received: {method!r}.")
    arguments.real("budget_s", budget_s, above=0)
    arguments.real("tolerance", tolerance, least=0, below=1)
    arguments.real("waste.factor", waste.factor, least=1)
    arguments.real("waste.bytes", waste.bytes, least=0)
    if not graph.tensors:
        raise ValueError(
            f"`graph` must have a tensor that there is a choice for. Received: {graph.name!r} with none."
        )
    run = _SolverRun(compile_graph(graph), limit, seed, budget_s, tolerance, waste, progress)
    return run.plan(method)


class _SolverRun:
    """One search."""

    def __init__(
        self,
        effects: Effects,
        limit: int,
        seed: int,
        budget_s: float,
        tolerance: float,
        waste: Waste,
        progress: Callable[[Progress], None] | None,
    ):
        self._effects = effects
        self._limit = limit
        self._random = np.random.default_rng(seed)
        self._budget_s = budget_s
        self._tolerance = tolerance
        self._waste = waste
        self._progress = progress
        self._start = time.monotonic()
        self._bound = float(effects.durations.sum())
        self._state = PlanState(effects, waste)
        self._kept = FoundPlan(tuple(self._state.chosen), *self._state.measure())
        self._search = PlanSearch(effects, self._state, limit, self._go_on, lambda found: self._tell())
        self._program: Program | None = None
        self._smallest_so_far: FoundPlan | None = None

    def plan(self, method: str) -> Plan:
        methods: dict[str, Callable[[], None]] = {
            "default": self._all_of_them,
            "random": self._by_chance,
            "greedy": self._greedy,
            "mcmc": self._chain_from_kept,
            "mcmc_seeded": self._chain_from_relaxation,
            "milp": self._branch_and_bound,
        }
        smallest = self._kept
        try:
            if self._kept.peak_bytes <= self._limit:
                self._search.note()
            else:
                methods[method]()
            if self._search.best is None and method == "default":
                smallest = self._smallest()
        except KeyboardInterrupt:
            pass
        return self._finish(smallest)

    def _all_of_them(self) -> None:
        """Each part begins with what is best so far, and none begins where the gap is small enough."""
        copies = self._has_copies()
        if not copies:  # with them each measurement takes long, and the relaxation leads to a plan sooner
            self._search.greedy()
        shares = self._relaxation()
        if shares.size == 0:
            return
        for link_share in _LINK_SHARES if copies else (1.0,):
            if self._go_on():
                shares = self._relaxation(link_share) if copies else shares
                self._round(shares)
        for _ in range(_ROUNDINGS):
            if self._go_on():
                self._round(shares, self._random)
        if self._search.best is None:
            self._smallest()
        if self._go_on():
            self._branch_and_bound()
        while self._go_on() and self._search.best is not None:
            self._search.markov_chain(self._random, _CHAIN_STEPS, self._search.best.chosen)
            self._search.improve()

    def _greedy(self) -> None:
        self._search.greedy()
        self._search.improve()

    def _by_chance(self) -> None:
        while self._go_on():
            for number, offered in enumerate(self._effects.of_tensor):
                self._state.set(number)
                if len(offered) > 1:
                    self._state.set(offered[int(self._random.integers(len(offered)))])
            self._search.note()

    def _chain_from_kept(self) -> None:
        while self._go_on():
            self._search.markov_chain(self._random, _CHAIN_STEPS, self._kept.chosen)

    def _chain_from_relaxation(self) -> None:
        shares = self._relaxation()
        self._round(self._relaxation(_LINK_SHARES[0]) if self._has_copies() else shares)
        while self._go_on():
            best = self._search.best
            self._search.markov_chain(self._random, _CHAIN_STEPS, best.chosen if best else None)

    def _branch_and_bound(self) -> None:
        program = self._the_program()
        limit = self._state.limit_of_live(self._limit)
        solution = program.least_time(limit, True, self._left_s(), self._tolerance / 2)
        self._raise_bound(solution.bound)
        if solution.shares.size:
            self._round(solution.shares)

    def _relaxation(self, link_share: float = 1.0) -> NDArray[np.float64]:
        limit = self._state.limit_of_live(self._limit)
        left_s = max(self._left_s(), 0.1)
        solution = self._the_program().least_time(limit, False, left_s, link_share=link_share)
        if link_share == 1.0:
            self._raise_bound(solution.bound)
        return solution.shares

    def _round(self, shares: NDArray[np.float64], random: np.random.Generator | None = None) -> None:
        if shares.size == 0:
            return
        self._search.from_shares(shares, random)
        self._search.greedy()
        self._search.improve()

    def _the_program(self) -> Program:
        if self._program is None:
            from tf_comptrain.planner.lower_bound import Program  # with SciPy, which takes a while to import

            self._program = Program(self._effects)
        return self._program

    def _smallest(self) -> FoundPlan:
        """The smallest plan near the least memory of the program; proves that nothing fits where nothing does."""
        end = time.monotonic() + self._budget_s
        program, allowed = self._the_program(), self._state.limit_of_live(self._limit)
        if self._smallest_so_far is not None:
            return self._smallest_so_far
        self._state.restore(self._kept.chosen)
        self._search.greedy()
        found = [
            self._search.best or FoundPlan(tuple(self._state.chosen), *self._state.measure()),
            self._kept,
        ]
        # What copies hold while they are under way is not in the program: without them it is exact.
        for whole, copies in ((False, True), (True, True), (True, False)):
            if self._search.best is None and (copies or self._has_copies()):
                left_s = max(end - time.monotonic(), self._budget_s / 2)
                solution = program.least_memory(whole, left_s, copies)
                if copies and solution.bound > allowed * (1 + 1e-9):
                    self._raise_bound(np.inf)
                found += self._near(solution)
                self._smallest_so_far = min(found, key=lambda plan: (plan.peak_bytes, plan.step_s))
                self._improve_from(self._smallest_so_far)
        return self._smallest_so_far or self._kept

    def _improve_from(self, found: FoundPlan) -> None:
        """Makes a plan that fits faster."""
        if found.peak_bytes <= self._limit:
            self._state.restore(found.chosen)
            self._search.improve()

    def _near(self, solution: Solution) -> list[FoundPlan]:
        """A plan rounded from a solution of least memory, of as little more as it takes."""
        if solution.shares.size == 0:
            return []
        for factor in _LOOSER:
            state = PlanState(self._effects, self._waste)
            search = PlanSearch(self._effects, state, factor * state.with_waste(solution.bound))
            search.from_shares(solution.shares)
            if search.greedy() and search.best is not None:
                return [search.best]
        return []

    def _has_copies(self) -> bool:
        return any(choice.copies is not None for choice in self._effects.choices)

    def _left_s(self) -> float:
        return self._budget_s - (time.monotonic() - self._start)

    def _go_on(self) -> bool:
        """Whether there is time, and something to gain."""
        best = self._search.best
        done = best is not None and best.step_s - self._bound <= self._tolerance * best.step_s
        return not done and self._left_s() > 0

    def _raise_bound(self, bound: float) -> None:
        if bound > self._bound:
            self._bound = bound
            self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            best, elapsed_s = self._search.best, time.monotonic() - self._start
            step_s, peak = (best.step_s, best.peak_bytes) if best else (None, None)
            self._progress(Progress(elapsed_s, step_s, peak, self._bound))

    def _finish(self, smallest: FoundPlan) -> Plan:
        """The best plan as a `Plan`."""
        best = self._search.best
        found = best or smallest
        state = PlanState(self._effects, self._waste)
        state.set_all(found.chosen)
        simulation = state.simulate()
        bound = self._bound if np.isfinite(self._bound) else None
        graph = self._effects.graph
        return Plan(
            model=graph.name,
            limit_bytes=self._limit,
            rows=rows_of(self._effects, found.chosen),
            batch=graph.batch,
            peak_bytes=simulation.peak_bytes,
            step_s=simulation.step_s,
            bound_s=bound,
            gap=None
            if bound is None
            else max(simulation.step_s - bound, 0.0) / max(simulation.step_s, 1e-12),
            feasible=best is not None,
            smallest_bytes=int(np.ceil(min(simulation.peak_bytes, smallest.peak_bytes))),
            plain_s=self._kept.step_s,
            kept_peak_bytes=int(self._kept.peak_bytes),
            first_backward=next((task.name for task in graph.tasks if task.backward), ""),
            curve=_curve(simulation),
            events=simulation.events,
        )


def rows_of(effects: Effects, chosen: tuple[int, ...]) -> tuple[PlanRow, ...]:
    """One for each tensor that had a choice."""
    rows = []
    for number, place in enumerate(chosen):
        if len(effects.of_tensor[number]) == 1:
            continue
        choice, tensor = effects.choices[place], effects.graph.tensors[number]
        seconds = choice.total_s if choice.tensors[0] == number else 0.0
        rows.append(PlanRow(tensor.name, choice.label, tensor.bytes, int(choice.held_bytes), seconds))
    return tuple(rows)


def _curve(simulation: Simulation) -> tuple[tuple[float, float], ...]:
    """The memory where it changes; of phases that take no time only those that need more than the one before."""
    points: list[tuple[float, float]] = []
    times = simulation.time_s.tolist()
    for at, end, size in zip(times, times[1:], simulation.memory_bytes.tolist()):
        changes = not points or points[-1][1] != size
        if changes and (end > at or not points or size > points[-1][1]):
            points.append((at, size))
    return (*points, (simulation.step_s, points[-1][1]))
