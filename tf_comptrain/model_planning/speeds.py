"""The seconds of a step's graph, on another machine or by a factor."""

from __future__ import annotations

from typing import Any

from tf_comptrain.planner import Hardware, OffloadOption, RebuildOption, TaskGraph
from tf_comptrain.planner.task_graph import CODING, scaled


def on_machine(graph: TaskGraph, here: Hardware, there: Hardware) -> TaskGraph:
    """The step with the times of another machine.

    Tasks take their time here, times the ratio of operations per second; codecs and what is rebuilt take theirs, by
    the bytes that each machine moves in a second; copies that of the link there.
    """
    tasks = tuple(
        task._replace(duration_s=task.duration_s * here.flops_per_s / there.flops_per_s)
        for task in graph.tasks
    )
    tensors = []
    for tensor in graph.tensors:
        options: list[Any] = []
        option: Any
        for option in tensor.options:
            stream: Any = tensor.options[0]
            codec = "" if isinstance(option, RebuildOption) else stream.codec
            if isinstance(option, OffloadOption):
                copy_s = there.host_link.seconds(option.bytes or 0)
                option = option._replace(out_s=copy_s, in_s=copy_s)
            if codec in there.codecs and codec in here.codecs:
                before, after = here.codecs[codec], there.codecs[codec]
                option = option._replace(
                    encode_s=option.encode_s * before.encode_bytes_per_s / after.encode_bytes_per_s,
                    decode_s=option.decode_s * before.decode_bytes_per_s / after.decode_bytes_per_s,
                )
            else:
                ratio = here.bytes_per_s / there.bytes_per_s
                option = scaled(option, ratio, (*CODING, "seconds"))
            options.append(option)
        tensors.append(tensor._replace(options=tuple(options)))
    return graph._replace(tasks=tasks, tensors=tuple(tensors))


def with_speed(graph: TaskGraph, factor: float) -> TaskGraph:
    """With all seconds times a factor."""
    tasks = tuple(task._replace(duration_s=task.duration_s * factor) for task in graph.tasks)
    tensors = tuple(
        tensor._replace(options=tuple(scaled(option, factor) for option in tensor.options))
        for tensor in graph.tensors
    )
    return graph._replace(tasks=tasks, tensors=tensors)
