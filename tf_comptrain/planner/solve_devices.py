"""From a chain of layers, a machine and a limit to a plan over devices."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

from tf_comptrain import arguments
from tf_comptrain.planner.device_plan import DevicePlan, StageRow
from tf_comptrain.planner.device_search import DeviceSearch, FoundStrategy, divisors
from tf_comptrain.planner.hardware import Hardware, check_hardware
from tf_comptrain.planner.layers import LayerChain, check_chain
from tf_comptrain.planner.pipeline import simulate
from tf_comptrain.planner.solve import Progress
from tf_comptrain.planner.stage_costs import StageCosts
from tf_comptrain.planner.stages import SPLITS, Stage
from tf_comptrain.planner.strategies import Strategy, first_devices
from tf_comptrain.planner.task_graph import KEEP

_MOST_EVENTS = 20000
_HALVINGS = 40


def plan_devices(
    chain: LayerChain,
    hardware: Hardware,
    memory: int | str | None = None,
    devices: int | None = None,
    budget_s: float = 10.0,
    progress: Callable[[Progress], None] | None = None,
) -> DevicePlan:
    """The strategy of least time for a step on several devices, none of which may hold more than `memory`.

    A strategy has consecutive stages of layers in a pipeline, each with a number of devices that divide its work by
    batch, channels or rows; a number of microbatches that divides the batch, in 1F1B order; for each saved tensor of
    each stage a way to hold it; and for each border a way for activations to cross it. Gradients are never lossy.
    Stages together have all devices, or a half, a quarter, ... of them; a stage lies in one node, or has whole nodes.
    Up to eight devices a stage may have 1, 2, 4 or all of them; of more, all stages have equally many, a power of two.

    Args:
      chain: The model.
      hardware: The machine.
      memory: Bytes of each device, or text such as "80GB"; None: all that it has.
      devices: How many; None: all of the machine's.
      budget_s: Seconds to search, at most.
      progress: Is told of each better strategy and bound.

    Returns:
      A `DevicePlan`; with `feasible` False, and the smallest strategy that was found, where none fits. A
      KeyboardInterrupt ends the search with the best so far.

    Raises:
      ValueError: An argument is out of range, or the machine has fewer devices.

    Examples:
      >>> plan = planner.plan_devices(chain, planner.hardware_from_json(Path("h200x4.json")))
      >>> plan.stages, plan.microbatches
    """
    check_chain(chain)
    check_hardware(hardware)
    limit = hardware.memory_bytes if memory is None else arguments.size_in_bytes("memory", memory)
    count = hardware.devices if devices is None else arguments.whole("devices", devices)
    arguments.real("budget_s", budget_s, above=0)
    if count > hardware.devices:
        raise ValueError(
            f"`devices` must be at most the {hardware.devices} of {hardware.name!r}: describe a larger machine. "
            f"Received: {count}."
        )

    began = time.perf_counter()

    def told(best: Strategy | None, bound_s: float) -> None:
        if progress is not None:
            seconds, peak = (None, None) if best is None else (best.step_s, max(best.peaks))
            progress(Progress(time.perf_counter() - began, seconds, peak, bound_s))

    costs = StageCosts(chain, hardware, limit)
    found = DeviceSearch(costs, count, budget_s, told).run()
    if found.strategy is not None:
        return _plan(costs, found, limit, count)
    smallest = smallest_bytes(costs, count)
    costs = StageCosts(chain, hardware, smallest)
    fallback = DeviceSearch(costs, count, budget_s, told).run()
    return _plan(costs, fallback._replace(bound_s=found.bound_s), limit, count)


def smallest_bytes(costs: StageCosts, devices: int) -> int:
    """The smallest memory in which a strategy was found: of stages that have equally many devices."""
    low, high = 0, 1 << 62
    shapes = [
        (m, size, stages)
        for m in divisors(costs.chain.batch)
        for size in [1 << k for k in range(devices.bit_length())]
        for stages in {devices // size, 1}
        if stages <= costs.count
    ]
    for _ in range(62):
        middle = (low + high) // 2
        fitting = [shape for shape in shapes if _fills(costs, *shape, float(middle))]
        if fitting:
            high, shapes = middle, fitting
        else:
            low = middle
        if high - low <= high >> _HALVINGS or high - low <= 1:
            break
    return high


def _fills(costs: StageCosts, microbatches: int, devices: int, stages: int, memory: float) -> bool:
    """Whether stages of so many devices, each with as many layers as fit, have all layers."""
    start, count = 0, costs.count
    for number in range(stages):
        ends = np.arange(start + 1, count - (stages - number - 1) + 1)
        ahead, reached = min(microbatches, stages - number), start
        for split in SPLITS:
            if not costs.is_possible(microbatches, devices, split):
                continue
            part = costs.part(microbatches, devices, split)
            some = ends[: int(part.reach[start]) - start]
            if len(some):
                fits = costs.least_peak_bytes(part, split, ahead, start, some) <= memory
                reached = max(reached, int(some[fits].max(initial=start)))
        if reached == start:
            return False
        start = reached
    return start == count


def _plan(costs: StageCosts, found: FoundStrategy, limit: int, devices: int) -> DevicePlan:
    strategy = found.strategy
    if strategy is None:
        raise ValueError(
            f"`memory` of {limit} bytes: no strategy was found in the time; give more `budget_s`."
        )
    chain = costs.chain
    first = first_devices(strategy.places)
    stages = tuple(
        Stage(
            tuple(layer.name for layer in chain.layers[place.start : place.end]),
            tuple(range(first[k], first[k] + place.devices)),
            place.split,
        )
        for k, place in enumerate(strategy.places)
    )
    storage = {
        tensor: choice
        for stage in strategy.choices
        for _, holding in stage.taken
        for tensor, choice in holding.choices
        if choice != KEEP
    }
    rows = tuple(_row(costs, strategy, number) for number in range(len(stages)))
    events = 4 * strategy.microbatches * len(stages) + costs.count
    small = events <= _MOST_EVENTS
    bound = found.bound_s if math.isfinite(found.bound_s) else None
    feasible = round(max(strategy.peaks)) <= limit
    return DevicePlan(
        chain.name,
        costs.hardware.name,
        devices,
        limit,
        chain.batch,
        strategy.microbatches,
        stages,
        rows,
        strategy.crossings,
        storage,
        strategy.step_s,
        bound,
        None if bound is None else max(0.0, 1 - bound / strategy.step_s),
        feasible,
        simulate(list(strategy.runs), list(strategy.borders), strategy.microbatches).events if small else (),
    )


def _row(costs: StageCosts, strategy: Strategy, number: int) -> StageRow:
    place, run, m = strategy.places[number], strategy.runs[number], strategy.microbatches
    part = costs.part(m, place.devices, place.split)
    held = m * part.held_part * sum(holding.seconds for _, holding in strategy.choices[number].taken)
    stretch = slice(place.start, place.end)
    launches = costs.of["forward_launch_s"][stretch] + costs.of["backward_launch_s"][stretch]
    work = costs.of["forward_s"][stretch] + costs.of["backward_s"][stretch]
    compute = float(m * launches.sum() + work.sum() / place.devices)
    busy = m * run.microbatch_s
    after = run.after_s()
    return StageRow(
        min(m, len(strategy.places) - number),
        round(strategy.peaks[number]),
        compute,
        held,
        max(busy - held - compute, 0.0),
        after,
        max(strategy.step_s - busy - after, 0.0),
    )
