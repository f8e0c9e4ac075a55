"""The step of a model at other batches, and the largest that fits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tf_comptrain import arguments
from tf_comptrain.planner.solve import plan_graph
from tf_comptrain.planner.task_graph import BYTES, SECONDS, Task, TaskGraph, Tensor, scaled

_LARGEST = 1 << 30  # samples


def at_batch(graph: TaskGraph, batch: int) -> TaskGraph:
    """The step of a model with another batch.

    Bytes of tensors that scale, and times less what is fixed, are taken to be proportional to the batch.

    Args:
      graph: Of some batch.
      batch: Samples.

    Raises:
      ValueError: `batch` is no integer of at least 1.
    """
    factor = arguments.whole("batch", batch) / graph.batch
    tensors = [_scaled_tensor(tensor, factor) if tensor.scales else tensor for tensor in graph.tensors]
    segments = [
        segment._replace(
            seconds=segment.seconds * factor, working_bytes=math.ceil(segment.working_bytes * factor)
        )
        for segment in graph.segments
    ]
    return graph._replace(
        tasks=tuple(_scaled_task(task, factor) for task in graph.tasks),
        tensors=tuple(tensors),
        segments=tuple(segments),
        batch=batch,
    )


def largest_batch(
    graph: TaskGraph, limit_bytes: int | str, slowest_s: Callable[[TaskGraph], float], **options: Any
) -> tuple[int, int]:
    """The largest batch that a plan fits into a limit, in no more than the seconds allowed.

    Args:
      graph: The step at any batch.
      limit_bytes: The peak allowed.
      slowest_s: From the graph of a batch to the seconds that its step may take.
      **options: Of `plan_graph`, which is called for some ten batches.

    Returns:
      (the largest batch for which a plan was found, the smallest for which it is proved that there is none).

    Raises:
      ValueError: As `plan_graph`; or nothing of the step grows with its batch.
    """
    low, high = 0, 1
    tried: dict[int, int] = {}

    def verdict(batch: int) -> int:
        """1 where a plan was found, -1 where it is proved that there is none, else 0."""
        if batch not in tried:
            scaled = at_batch(graph, batch)
            plan = plan_graph(scaled, limit_bytes, **options)
            allowed = slowest_s(scaled) * (1 + 1e-9)
            tried[batch] = 1 if plan.feasible and plan.known_step_s <= allowed else 0
            if tried[batch] == 0 and (plan.bound_s is None or plan.bound_s > allowed):
                tried[batch] = -1
        return tried[batch]

    while verdict(high) > 0:
        if high > _LARGEST:
            raise ValueError(
                f"`graph` must grow with its batch. Received: {graph.name!r}, of which {high} samples fit."
            )
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if verdict(middle) > 0 else (low, middle)
    while verdict(high) == 0:
        high += 1
    return low, high


def _scaled_task(task: Task, factor: float) -> Task:
    return task._replace(
        duration_s=task.fixed_s + (task.duration_s - task.fixed_s) * factor,
        workspace_bytes=math.ceil(task.workspace_bytes * factor),
    )


def _scaled_tensor(tensor: Tensor, factor: float) -> Tensor:
    options = tuple(scaled(option, factor, SECONDS + BYTES) for option in tensor.options)
    beside = math.ceil(tensor.beside_bytes * factor)
    return tensor._replace(bytes=math.ceil(tensor.bytes * factor), options=options, beside_bytes=beside)
