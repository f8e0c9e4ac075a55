"""Plans against all that there are on small graphs, and what holds on large ones."""

import numpy as np
import pytest
from planner.graphs import chain, every_plan, label_state
from synthetic import KINDS, network

from tf_comptrain.planner import OffloadOption, StreamOption, Task, TaskGraph, Tensor, Waste, plan_graph
from tf_comptrain.planner.effects import compile_graph
from tf_comptrain.planner.lower_bound import Program
from tf_comptrain.planner.simulator import PlanState
from tf_comptrain.planner.solve import METHODS


def plain_peak(graph):
    return PlanState(compile_graph(graph)).measure()[1]


@pytest.mark.long("1-True")
@pytest.mark.parametrize("offload", [False, True, "stream"])
@pytest.mark.parametrize("slices", [1, 4])
def test_against_all_plans(offload, slices):
    """The optimum under every limit at which it changes; the bound is never above it, and without copies equals it."""
    graph = chain(4 if slices == 1 else 5, offload=offload, slices=slices)
    plans = sorted(every_plan(graph))
    for limit in sorted({peak for _, peak in plans}):
        best = next(step_s for step_s, peak in plans if peak <= limit)
        plan = plan_graph(graph, limit, tolerance=0, budget_s=1)
        assert plan.feasible and plan.peak_bytes <= limit
        assert plan.step_s == pytest.approx(best)
        assert plan.bound_s <= best * (1 + 1e-6)
        if not offload:
            assert plan.gap < 1e-5
    smallest = min(peak for _, peak in plans)
    nothing = plan_graph(graph, smallest - 1, budget_s=2)
    assert not nothing.feasible
    assert nothing.smallest_bytes == smallest
    if not offload:
        assert nothing.bound_s is None  # proved


def test_a_step_without_tensors():
    graph = chain(4, offload=False, slices=1)._replace(tensors=(), segments=())
    with pytest.raises(ValueError, match="`graph` must have a tensor"):
        plan_graph(graph, "1GB")


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_plans_of_larger_graphs(kind, seed):
    """Within the limit in a simulation of their own, near the bound, and slower the less memory there is."""
    graph = network(kind, 100, seed, offload=False)
    effects = compile_graph(graph)
    steps = []
    for share in (0.9, 0.6, 0.4):
        limit = int(share * plain_peak(graph))
        plan = plan_graph(graph, limit, seed=seed, tolerance=5e-3)
        assert plan.feasible
        assert plan.gap <= 0.01
        again = label_state(graph, {name: label for name, label in plan.choices.items() if label != "keep"})
        assert again.unserved == 0
        step_s, peak = again.measure()
        assert peak <= limit
        assert np.ceil(peak) == plan.peak_bytes
        assert step_s == pytest.approx(plan.step_s)
        steps.append(plan.step_s)
    assert steps == sorted(steps)
    assert effects.graph == graph


@pytest.mark.parametrize("method", METHODS)
def test_every_method_keeps_to_the_limit(method):
    graph = network("transformer", 40)
    limit = int(0.6 * plain_peak(graph))
    plan = plan_graph(graph, limit, method=method, budget_s=1)
    assert plan.peak_bytes <= limit if plan.feasible else method == "random"


def test_plain_training_that_fits_is_left_alone():
    graph = network("unet", 60)
    plan = plan_graph(graph, int(plain_peak(graph)) + 1)
    assert set(plan.choices.values()) == {"keep"}
    assert plan.gap == 0


def test_seconds_may_be_whole_and_tensors_without_a_choice():
    tasks = (Task("one", False, 1), Task("two", True, 1))
    for options in ((OffloadOption(1, 1),), (StreamOption("c", 10, 1, 1),), ()):
        tensors = (Tensor("a", 100, "one", ("two",), options), Tensor("b", 100, "one", ("two",)))
        graph = TaskGraph("whole", tasks, tensors)
        assert plan_graph(graph, 1000).feasible
        assert not plan_graph(graph, 50).feasible


def test_waste_counts():
    graph = network("chain", 60, offload=False)
    limit = int(0.7 * plain_peak(graph))
    lavish, exact = plan_graph(graph, limit, waste=Waste(1.2, 10**7)), plan_graph(graph, limit)
    assert lavish.feasible and lavish.peak_bytes <= limit
    assert lavish.step_s > exact.step_s


def test_an_interrupt_returns_the_best_so_far():
    graph = network("transformer", 100)
    limit = int(0.5 * plain_peak(graph))
    seen = []

    def interrupt(progress):
        seen.append(progress)
        if progress.step_s is not None:
            raise KeyboardInterrupt

    plan = plan_graph(graph, limit, progress=interrupt)
    assert plan.feasible and plan.peak_bytes <= limit
    assert plan.step_s == seen[-1].step_s


def test_the_same_seed_gives_the_same_plan():
    graph = network("chain", 40, offload=False)
    limit = int(0.6 * plain_peak(graph))
    assert plan_graph(graph, limit, seed=3) == plan_graph(graph, limit, seed=3)


def test_the_relaxation_is_below_the_whole_program():
    graph = network("transformer", 40, offload=False)
    program = Program(compile_graph(graph))
    limit = 0.5 * plain_peak(graph)
    relaxed = program.least_time(limit, whole=False, budget_s=5)
    whole = program.least_time(limit, whole=True, budget_s=5)
    assert relaxed.bound <= whole.bound * (1 + 1e-9)
    assert set(np.round(whole.shares, 6)) <= {0.0, 1.0}


def test_room_on_the_link_is_for_one_call():
    """What leads to a plan counts on less of the link; bounds never do."""
    effects = compile_graph(network("unet", 40))
    limit = 0.4 * PlanState(effects).measure()[1]
    program, fresh = Program(effects), Program(effects)
    bound = program.least_time(limit, whole=False, budget_s=60).bound
    assert program.least_time(limit, whole=False, budget_s=60, link_share=0.3).bound > bound
    assert program.least_memory(whole=False, budget_s=60).bound == pytest.approx(
        fresh.least_memory(whole=False, budget_s=60).bound, rel=1e-4
    )
    assert program.least_time(limit, whole=False, budget_s=60).bound == pytest.approx(bound, rel=1e-4)


def test_out_of_time_bounds_nothing():
    program = Program(compile_graph(network("transformer", 400)))
    assert program.least_time(1e9, whole=False, budget_s=1e-9).bound == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"limit_bytes": "8 bananas"}, "`limit_bytes` must be bytes"),
        ({"method": "luck"}, "`method` must be one of"),
        ({"budget_s": 0}, "`budget_s` must be a number above 0"),
        ({"tolerance": 1}, "`tolerance` must be a number"),
        ({"waste": Waste(0.5)}, "`waste.factor` must be a number of at least 1"),
    ],
)
def test_mistakes(arguments, message):
    with pytest.raises(ValueError, match=message):
        plan_graph(chain(), **{"limit_bytes": 500, **arguments})
