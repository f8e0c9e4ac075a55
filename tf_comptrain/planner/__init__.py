"""Plans for a training step under a memory limit: which tensors to keep, compress, rebuild or offload.

Pure Python, NumPy and SciPy: nothing here imports TensorFlow. The step and its costs come in as data.
"""

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
