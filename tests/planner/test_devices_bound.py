"""The bound over devices holds for every strategy, and the plan is close to the best of them."""

import math

import pytest
from planner.strategies_reference import MACHINE, best_step_s, tiny

from tf_comptrain.planner import plan_devices

CASES = [(3, 2, 0, 0.8), (3, 3, 1, 0.6), (4, 2, 2, 0.55), (3, 2, 3, 0.4), (4, 3, 4, 0.9), (3, 3, 5, 0.35)]


@pytest.mark.parametrize(("layers", "devices", "seed", "part"), CASES)
def test_against_every_strategy(layers, devices, seed, part):
    chain = tiny(layers, seed, batch=2 if layers == 4 else 4)
    whole = sum(saved.bytes for layer in chain.layers for saved in layer.saved)
    memory = round(part * whole + sum(layer.weight_bytes for layer in chain.layers))
    best = best_step_s(chain, MACHINE, devices, memory)
    plan = plan_devices(chain, MACHINE, memory, devices)
    assert plan.feasible == math.isfinite(best)
    if plan.feasible:
        assert plan.bound_s <= best * (1 + 1e-6)
        assert best * (1 - 1e-6) <= plan.step_s <= best * 1.01
        assert plan.peak_bytes <= memory
