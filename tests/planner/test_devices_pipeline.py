"""A pipeline's step: event by event, by following the order, and from below."""

import numpy as np
import pytest
from synthetic import DEVICE
from synthetic_layers import layered

from tf_comptrain.planner.device_search import balanced_paths
from tf_comptrain.planner.partitions import Partitions
from tf_comptrain.planner.pipeline import Border, StageRun, order, simulate, step_s
from tf_comptrain.planner.stage_costs import StageCosts, StageRange
from tf_comptrain.planner.strategies import work_out


def random_runs(stages, seed):
    random = np.random.default_rng(seed)
    runs = []
    for _ in range(stages):
        layers = int(random.integers(1, 4))
        sync = random.uniform(0, 2, layers) * int(random.integers(0, 2))
        ahead, back, held = random.uniform(0.1, 1, (3, layers))
        runs.append(StageRun(ahead, back, sync, held, float(random.uniform(0, 2)), 0.1))
    borders = [Border(*random.uniform(0, 0.5, 2)) for _ in range(stages - 1)]
    return runs, borders


def test_order_is_1f1b():
    assert order(0, 2, 3) == [(False, 0), (False, 1), (True, 0), (False, 2), (True, 1), (True, 2)]
    assert order(1, 2, 2) == [(False, 0), (True, 0), (False, 1), (True, 1)]


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
@pytest.mark.parametrize("microbatches", [1, 2, 4, 9])
def test_both_ways_to_measure_a_step_agree(stages, microbatches):
    for seed in range(5):
        runs, borders = random_runs(stages, seed)
        forward = [float(run.forward_s.sum()) for run in runs]
        backward = [float(run.backward_s.sum()) for run in runs]
        found = simulate(runs, borders, microbatches)
        after = [run.after_s() for run in runs]
        assert found.step_s == pytest.approx(step_s(forward, backward, after, borders, microbatches))
        for stage, run in enumerate(runs):
            ahead = min(microbatches, stages - stage)
            assert found.peak_bytes[stage] == pytest.approx(run.resting_bytes + ahead * run.held_bytes.sum())


def test_equal_stages_have_the_known_bubbles():
    runs = [StageRun(*np.ones((3, 1)) * [[1], [2], [0]], np.zeros(1), 0.0, 0.0)] * 4
    assert simulate(runs, [Border(0, 0)] * 3, 6).step_s == (6 + 4 - 1) * 3


@pytest.mark.parametrize("stages", [2, 3, 4, 8])
def test_no_step_is_shorter_than_its_paths(stages):
    for seed in range(20):
        random = np.random.default_rng(seed)
        ahead, back = random.uniform(0.1, 1, (2, stages))
        for microbatches in (1, 2, 3, 7, 16):
            found = step_s(
                list(ahead), list(back), [0.0] * stages, [Border(0, 0)] * (stages - 1), microbatches
            )
            assert found >= balanced_paths(microbatches, stages) * (ahead + back).sum() * (1 - 1e-9)


def test_closed_form_and_simulator():
    """The bound of a division is below its step, and within 2% of it where every tensor can be kept."""
    chain = layered("transformer", 60)
    costs = StageCosts(chain, DEVICE._replace(devices=4), 10**12)
    count = len(chain.layers)
    for cuts in ((), (count // 2,), (count // 3, 2 * count // 3)):
        borders = [0, *cuts, count]
        devices = {0: 4, 1: 2, 2: 1}[len(cuts)]
        places = tuple(StageRange(a, b, devices, "batch") for a, b in zip(borders, borders[1:]))
        for microbatches in (2, 8):
            strategy = work_out(costs, microbatches, places)
            used = devices * len(places)
            bound = Partitions(costs, microbatches, used, (devices,), float("inf"), {}).bound_s(places)
            simulated = simulate(list(strategy.runs), list(strategy.borders), microbatches)
            assert strategy.step_s == pytest.approx(simulated.step_s)
            assert strategy.peaks == pytest.approx(simulated.peak_bytes)
            assert strategy.step_s * 0.98 <= bound <= strategy.step_s * (1 + 1e-9)
