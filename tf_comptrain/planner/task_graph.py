"""The task graph of a training step: tasks, tensors, and the ways in which each tensor may be held."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tf_comptrain import arguments
from tf_comptrain.planner import _fields

KEEP = "keep"  # the choice of a tensor that is held as it is

# Numbers of the options below, of which each has some.
CODING = ("encode_s", "decode_s")
SECONDS = (*CODING, "seconds", "out_s", "in_s")
BYTES = ("bytes", "restored_bytes", "working_bytes", "held_bytes")


class Task(NamedTuple):
    """What a device does at a stretch: a layer's forward or backward part.

    Attributes:
      name: Unique.
      backward: Whether it belongs to the backward pass.
      duration_s: Seconds it takes.
      workspace_bytes: Scratch memory while it runs.
      fixed_s: Of its duration, what does not depend on the batch (launches).
    """

    name: str
    backward: bool
    duration_s: float
    workspace_bytes: int = 0
    fixed_s: float = 0.0


class StreamOption(NamedTuple):
    """Hold it compressed: encoded after its producer, decoded before each backward reader.

    Attributes:
      codec: Name, such as "plane" or "bits".
      bytes: Of the stream.
      encode_s: Seconds, once.
      decode_s: Seconds, for each backward reader.
      restored_bytes: What a reader finds restored; None: all of the tensor. 0 where it reads the stream itself.
      is_source: Whether other tensors may be rebuilt from it; not from bits.
      direct: Names of the backward readers that read the stream itself, where others find the tensor restored.
    """

    codec: str
    bytes: int
    encode_s: float
    decode_s: float
    restored_bytes: int | None = None
    is_source: bool = True
    direct: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"stream:{self.codec}"


class RebuildOption(NamedTuple):
    """Hold nothing: compute it again from held tensors before each backward reader.

    Attributes:
      sources: Names of the tensors it is computed from. Each has to be kept, a stream or offloaded.
      seconds: For each backward reader; decoding the sources comes on top.
      working_bytes: Scratch memory meanwhile.
      held_bytes: What is held beside the sources: the bits of a ReLU, say.
      direct: Names of the backward readers that read what is held beside, and for which nothing is computed.
    """

    sources: tuple[str, ...]
    seconds: float
    working_bytes: int = 0
    held_bytes: int = 0
    direct: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"rebuild:{','.join(self.sources)}"


class OffloadOption(NamedTuple):
    """Hold it outside of the device: copied out after its producer, back before its first backward reader.

    Attributes:
      out_s: Seconds on the link, beside the computation.
      in_s: The same, back.
      bytes: Of the stream that is moved in its place, encoded and decoded as `StreamOption` says; None: it goes as it
        is.
      encode_s: Seconds, once.
      decode_s: Seconds, for each backward reader.
      direct: Names of the backward readers that read the stream itself.
    """

    out_s: float
    in_s: float
    bytes: int | None = None
    encode_s: float = 0.0
    decode_s: float = 0.0
    direct: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return "offload"


HoldingOption = StreamOption | RebuildOption | OffloadOption
_OPTIONS: dict[str, type] = {"stream": StreamOption, "rebuild": RebuildOption, "offload": OffloadOption}


def scaled(option: HoldingOption, factor: float, names: Iterable[str] = SECONDS) -> HoldingOption:
    """An option with those of the named numbers that it has times a factor; bytes are rounded up."""
    known = {name: getattr(option, name) for name in names if getattr(option, name, None) is not None}
    numbers: Any = {
        name: math.ceil(number * factor) if name in BYTES else number * factor
        for name, number in known.items()
    }
    return option._replace(**numbers)


class Tensor(NamedTuple):
    """A tensor of the step.

    Attributes:
      name: Unique.
      bytes: Of its plain values.
      producer: Name of the task that makes it.
      readers: Names of the tasks that read it.
      options: Ways to hold it from the forward to the backward pass, besides keeping it as it is.
      scales: Whether its bytes grow with the batch.
      beside_bytes: What each of `beside` takes more while the tensor is there as it is: a gradient, say, that takes
        the place of another where a kernel reads the stream.
      beside: Names of those readers.
    """

    name: str
    bytes: int
    producer: str
    readers: tuple[str, ...] = ()
    options: tuple[HoldingOption, ...] = ()
    scales: bool = True
    beside_bytes: int = 0
    beside: tuple[str, ...] = ()


class Segment(NamedTuple):
    """A block that may run again: none of its tensors is held, and one run before its backward part makes them all.

    Attributes:
      name: Unique.
      tensors: Names of the tensors inside, gradients included where it runs in slices.
      sources: Names of the tensors that it runs from; each has to be held.
      seconds: Of the second run.
      working_bytes: Scratch memory of the second run.
      slices: It runs on one n-th of the batch at a time, forward and backward, so that its tensors never exist for
        the whole batch.
      tasks: Names of its forward and backward tasks, where there is more than one slice.

    Reference:
      Chen et al., Training Deep Nets with Sublinear Memory Cost (2016).
    """

    name: str
    tensors: tuple[str, ...]
    sources: tuple[str, ...]
    seconds: float
    working_bytes: int = 0
    slices: int = 1
    tasks: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"segment:{self.name}"


class TaskGraph(NamedTuple):
    """One training step of one device.

    Attributes:
      name: Of the model.
      tasks: In the order in which they run.
      tensors: In any order.
      segments: Blocks that may run again.
      resting_bytes: What is there all the time: weights, optimizer slots, the batch.
      gradient_bytes: Of the sum of gradients, which microbatches add to the resting level.
      batch: Samples.
    """

    name: str
    tasks: tuple[Task, ...]
    tensors: tuple[Tensor, ...]
    segments: tuple[Segment, ...] = ()
    resting_bytes: int = 0
    gradient_bytes: int = 0
    batch: int = 1

    @property
    def plain_s(self) -> float:
        """Seconds of all computation, with every tensor kept."""
        return sum(task.duration_s for task in self.tasks)

    def to_json(self) -> str:
        """The graph as JSON text."""
        return json.dumps(
            {
                **self._asdict(),
                "tasks": [task._asdict() for task in self.tasks],
                "tensors": [_tensor_fields(tensor) for tensor in self.tensors],
                "segments": [segment._asdict() for segment in self.segments],
            },
            indent=1,
        )


def graph_from_json(source: str | Path | dict) -> TaskGraph:
    """The task graph in JSON text, a file, or what `json.loads` made of one.

    Raises:
      ValueError: A field is missing, unknown or out of range, or a name is not that of a task or tensor.
    """
    graph = _fields.record(TaskGraph, _fields.load(source, "a task graph"), "graph")
    tasks = [
        _fields.record(Task, value, f"tasks[{k}]")
        for k, value in enumerate(_fields.items(graph.tasks, "tasks"))
    ]
    tensors = [
        _read_tensor(value, f"tensors[{k}]")
        for k, value in enumerate(_fields.items(graph.tensors, "tensors"))
    ]
    segments = [
        _read_names(_fields.record(Segment, value, f"segments[{k}]"), ("tensors", "sources", "tasks"))
        for k, value in enumerate(_fields.items(graph.segments, "segments"))
    ]
    graph = graph._replace(tasks=tuple(tasks), tensors=tuple(tensors), segments=tuple(segments))
    check_graph(graph)
    return graph


def check_graph(graph: TaskGraph) -> None:
    """Says what is wrong with a graph.

    Raises:
      ValueError: A number is out of range, a name is not unique or not known, or a tensor is read before it is made.
    """
    _fields.text(graph.name, "name")
    arguments.whole("batch", graph.batch)
    arguments.whole("resting_bytes", graph.resting_bytes, least=0)
    arguments.whole("gradient_bytes", graph.gradient_bytes, least=0)
    places = _places(graph)
    names = _fields.unique([tensor.name for tensor in graph.tensors], "tensors")
    _fields.unique([segment.name for segment in graph.segments], "segments")
    for task in graph.tasks:
        _check_task(task)
    for tensor in graph.tensors:
        _check_tensor(tensor, places, names)
    for segment in graph.segments:
        _check_segment(segment, graph, places, names)


def _places(graph: TaskGraph) -> dict[str, int]:
    if not graph.tasks:
        raise ValueError("`tasks` must have at least one task. Received: none.")
    _fields.unique([task.name for task in graph.tasks], "tasks")
    backward = [bool(task.backward) for task in graph.tasks]
    if backward != sorted(backward):
        late = next(t.name for t, before in zip(graph.tasks[1:], backward) if before and not t.backward)
        raise ValueError(
            f"`tasks` must have the forward pass first. Received: {late!r} after a task of the backward pass."
        )
    return {task.name: place for place, task in enumerate(graph.tasks)}


def _check_task(task: Task) -> None:
    where = f"task {task.name!r}"
    arguments.real(f"duration_s of {where}", task.duration_s, least=0)
    arguments.real(f"fixed_s of {where}", task.fixed_s, least=0, most=task.duration_s)
    arguments.whole(f"workspace_bytes of {where}", task.workspace_bytes, least=0)
    if not isinstance(task.backward, bool):
        raise ValueError(f"`backward of {where}` must be true or false. Received: {task.backward!r}.")


def _check_tensor(tensor: Tensor, places: dict[str, int], names: set[str]) -> None:
    where = f"tensor {tensor.name!r}"
    arguments.whole(f"bytes of {where}", tensor.bytes, least=0)
    arguments.whole(f"beside_bytes of {where}", tensor.beside_bytes, least=0)
    for name in (tensor.producer, *tensor.readers, *tensor.beside):
        _known(name, places, where, "tasks")
    early = [name for name in tensor.readers if places[name] <= places[tensor.producer]]
    if early:
        raise ValueError(
            f"`readers of {where}` must run after its producer, {tensor.producer!r}. Received: {early[0]!r}."
        )
    labels = [option.label for option in tensor.options]
    if len(set(labels)) < len(labels):
        raise ValueError(f"`options of {where}` must differ in kind or codec. Received: {labels}.")
    for option in tensor.options:
        _check_option(option, where, tensor, names)


def _check_option(option: HoldingOption, where: str, tensor: Tensor, names: set[str]) -> None:
    where = f"option {option.label!r} of {where}"
    check_numbers(option, where)
    for name in getattr(option, "direct", ()):
        _known(name, tensor.readers, where, "readers of it")
    for source in getattr(option, "sources", ()):
        _known(source, names, where, "tensors")
        if source == tensor.name:
            raise ValueError(f"`sources of {where}` must be other tensors. Received: {source!r}.")


def check_numbers(option: HoldingOption, where: str) -> None:
    """Says what is wrong with the seconds and bytes of an option.

    Raises:
      ValueError: One is negative or no number.
    """
    for field in SECONDS:
        if hasattr(option, field):
            arguments.real(f"{field} of {where}", getattr(option, field), least=0)
    for field in BYTES:
        if getattr(option, field, None) is not None:
            arguments.whole(f"{field} of {where}", getattr(option, field), least=0)


def _check_segment(segment: Segment, graph: TaskGraph, places: dict[str, int], names: set[str]) -> None:
    where = f"segment {segment.name!r}"
    arguments.real(f"seconds of {where}", segment.seconds, least=0)
    arguments.whole(f"working_bytes of {where}", segment.working_bytes, least=0)
    arguments.whole(f"slices of {where}", segment.slices)
    for name in (*segment.tensors, *segment.sources):
        _known(name, names, where, "tensors")
    for name in segment.tasks:
        _known(name, places, where, "tasks")
    if set(segment.tensors) & set(segment.sources):
        raise ValueError(f"`sources of {where}` must lie outside of it. Received: {list(segment.sources)}.")
    if segment.slices > 1 and not segment.tasks:
        raise ValueError(f"`tasks of {where}` must be named, since it runs in slices. Received: none.")
    inside = set(segment.tensors)
    made_early = (
        t for t in graph.tensors if t.name in inside and not graph.tasks[places[t.producer]].backward
    )
    readers = {name for tensor in made_early for name in tensor.readers}
    if not any(graph.tasks[places[name]].backward for name in readers):
        raise ValueError(
            f"`tensors of {where}` must have one that the backward pass reads. Received: {sorted(inside)[:3]}."
        )


def _known(name: Any, known: Any, where: str, of: str) -> None:
    if name not in known:
        raise ValueError(f"{where} must name one of the graph's {of}. Received: {name!r}.")


def _tensor_fields(tensor: Tensor) -> dict[str, Any]:
    kinds = {kind: name for name, kind in _OPTIONS.items()}
    options = [{"kind": kinds[type(option)], **option._asdict()} for option in tensor.options]
    return {**tensor._asdict(), "options": options}


def _read_tensor(value: Any, where: str) -> Tensor:
    tensor = _read_names(_fields.record(Tensor, value, where), ("readers", "beside"))
    options = _fields.items(tensor.options, f"{where}.options")
    return tensor._replace(
        options=tuple(_read_option(option, f"{where}.options[{k}]") for k, option in enumerate(options))
    )


def _read_option(value: Any, where: str) -> Any:
    kind = value.get("kind") if isinstance(value, dict) else None
    if kind not in _OPTIONS:
        raise ValueError(f"`{where}.kind` must be one of {', '.join(_OPTIONS)}. Received: {kind!r}.")
    fields = {name: item for name, item in value.items() if name != "kind"}
    option: Any = _fields.record(_OPTIONS[kind], fields, where)
    lists = tuple(name for name in ("sources", "direct") if name in option._fields)
    return _read_names(option, lists)


def _read_names(value: Any, fields: tuple[str, ...]) -> Any:
    return value._replace(**{name: tuple(_fields.items(getattr(value, name), name)) for name in fields})
