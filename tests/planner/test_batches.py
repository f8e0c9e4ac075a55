"""Batches, and the yardstick: the largest batch of Checkmate's VGG-19."""

import pytest
from planner.graphs import chain
from planner.vgg19 import BUDGET, vgg19

from tf_comptrain.planner import Task, TaskGraph, Tensor, at_batch, largest_batch, plan_graph


def twice_forward(graph):
    """Two forward passes and one backward pass."""
    return sum((1 if task.backward else 2) * task.duration_s for task in graph.tasks)


@pytest.mark.long
def test_checkmates_largest_batch():
    """289, as its paper has it; a sample more is proved to be impossible."""
    assert largest_batch(vgg19(), BUDGET, twice_forward, budget_s=5) == (289, 290)


@pytest.mark.long
def test_all_storages_reach_three_times_as_much():
    """With streams and slices: three times the samples, a step of at most 5% more seconds a sample."""
    graph = vgg19(all_storages=True)
    plan = plan_graph(at_batch(graph, 3 * 289), BUDGET, budget_s=60, tolerance=0.1)
    assert plan.feasible
    assert plan.step_s / (3 * 289) <= 1.05 * twice_forward(graph)


def test_scaling():
    graph = chain()
    double = at_batch(graph, 2 * graph.batch)
    assert double.tensors[0].bytes == 2 * graph.tensors[0].bytes
    assert double.plain_s == 2 * graph.plain_s
    assert double.resting_bytes == graph.resting_bytes
    assert at_batch(double, graph.batch) == graph


def test_what_is_fixed_stays():
    graph = chain()
    tasks = tuple(task._replace(fixed_s=0.5) for task in graph.tasks)
    tensors = tuple(tensor._replace(scales=False) for tensor in graph.tensors)
    double = at_batch(graph._replace(tasks=tasks, tensors=tensors), 2 * graph.batch)
    assert double.tasks[0].duration_s == 0.5 + 2 * 0.5
    assert double.tensors == tensors


@pytest.mark.parametrize("batch", [0, 1.5, True])
def test_mistakes(batch):
    with pytest.raises(ValueError, match="`batch` must be an integer of at least 1"):
        at_batch(chain(), batch)


def test_a_step_that_does_not_grow_has_no_largest_batch():
    tasks = (Task("one", False, 1.0, fixed_s=1.0), Task("two", True, 1.0, fixed_s=1.0))
    graph = TaskGraph("fixed", tasks, (Tensor("a", 100, "one", ("two",), scales=False),))
    with pytest.raises(ValueError, match="`graph` must grow with its batch"):
        largest_batch(graph, 1000, lambda graph: 10.0)
