"""Plans for a training step under a memory limit: which tensors to keep, compress, rebuild or offload.

Pure Python, NumPy and SciPy: nothing here imports TensorFlow. The step and its costs come in as data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf_comptrain.lazy import lazy_names

if TYPE_CHECKING:
    from tf_comptrain.planner.batches import at_batch, largest_batch
    from tf_comptrain.planner.device_plan import DevicePlan, StageRow, device_plan_from_json
    from tf_comptrain.planner.hardware import CodecSpeed, Hardware, Link, hardware_from_json
    from tf_comptrain.planner.layers import Layer, LayerChain, Saved
    from tf_comptrain.planner.plan import Plan, PlanRow, plan_from_json
    from tf_comptrain.planner.simulator import PlanState, QueueEvent, Simulation, Waste
    from tf_comptrain.planner.solve import Progress, plan_graph
    from tf_comptrain.planner.solve_devices import plan_devices
    from tf_comptrain.planner.stages import Stage
    from tf_comptrain.planner.task_graph import (
        OffloadOption,
        RebuildOption,
        Segment,
        StreamOption,
        Task,
        TaskGraph,
        Tensor,
        graph_from_json,
    )

__all__ = [
    "CodecSpeed",
    "DevicePlan",
    "QueueEvent",
    "Hardware",
    "Layer",
    "LayerChain",
    "Link",
    "OffloadOption",
    "Plan",
    "Progress",
    "RebuildOption",
    "PlanRow",
    "Saved",
    "Segment",
    "Simulation",
    "Stage",
    "StageRow",
    "PlanState",
    "StreamOption",
    "Task",
    "TaskGraph",
    "Tensor",
    "Waste",
    "at_batch",
    "device_plan_from_json",
    "graph_from_json",
    "hardware_from_json",
    "largest_batch",
    "plan_devices",
    "plan_from_json",
    "plan_graph",
]

# NumPy, whose import takes longer than all of this package, waits until something is planned.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "planner.batches": ("at_batch", "largest_batch"),
        "planner.device_plan": ("DevicePlan", "StageRow", "device_plan_from_json"),
        "planner.hardware": ("CodecSpeed", "Hardware", "Link", "hardware_from_json"),
        "planner.layers": ("Layer", "LayerChain", "Saved"),
        "planner.plan": ("Plan", "PlanRow", "plan_from_json"),
        "planner.simulator": ("PlanState", "QueueEvent", "Simulation", "Waste"),
        "planner.solve": ("Progress", "plan_graph"),
        "planner.solve_devices": ("plan_devices",),
        "planner.stages": ("Stage",),
        "planner.task_graph": (
            "OffloadOption",
            "RebuildOption",
            "Segment",
            "StreamOption",
            "Task",
            "TaskGraph",
            "Tensor",
            "graph_from_json",
        ),
    },
)
