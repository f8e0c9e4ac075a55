"""Made-up networks as chains of layers, for tests and benchmarks of plans over devices."""

from __future__ import annotations

import numpy as np
from synthetic import DEVICE, network

from tf_comptrain.planner.layers import Layer, LayerChain, Saved
from tf_comptrain.planner.stages import BATCH, CHANNELS, ROWS
from tf_comptrain.planner.task_graph import OffloadOption, RebuildOption, StreamOption, TaskGraph, Tensor

_SLOTS = 2.0  # Adam
_ROWS = 64  # of an image where rows are split: a neighbour needs one of them


def layered(kind: str, tensors: int, seed: int = 0, offload: bool = True) -> LayerChain:
    """A network of `synthetic.network` as a chain of layers: those that rebuild each other's tensors are one layer.

    Args:
      kind, tensors, seed, offload: See `synthetic.network`.
    """
    graph = network(kind, tensors, seed, offload)
    splits = (BATCH, CHANNELS) if kind == "transformer" else (BATCH, CHANNELS, ROWS)
    return chain_of_graph(graph, splits)


def chain_of_graph(graph: TaskGraph, splits: tuple[str, ...] = (BATCH, CHANNELS)) -> LayerChain:
    """A step as a chain of layers: the k-th task of the forward pass goes with the k-th last one of the backward pass.

    A tensor is held where it is read first; weights are shared out in proportion to the seconds of the forward pass.

    Args:
      graph: With as many forward as backward tasks.
      splits: Of each layer.
    """
    forward = [task for task in graph.tasks if not task.backward]
    backward = [task for task in graph.tasks if task.backward][::-1]
    place = {task.name: k for tasks in (forward, backward) for k, task in enumerate(tasks)}
    ahead = {task.name for task in forward}
    reads = {
        t.name: sorted(place[r] for r in t.readers if r in ahead)
        for t in graph.tensors
        if t.producer in ahead
    }
    tensors = {t.name: t for t in graph.tensors if reads.get(t.name)}
    home = {name: reads[name][0] for name in tensors}
    groups = _groups(len(forward), tensors, home)
    total_s = sum(task.duration_s for task in forward)
    layers = []
    for start, end in groups:
        inside = [t for t in tensors.values() if start <= home[t.name] < end]
        made = [t for t in tensors.values() if start <= place[t.producer] < end and reads[t.name][-1] >= end]
        passing = [t for t in tensors.values() if place[t.producer] < start and reads[t.name][-1] >= end]
        ahead_s = sum(t.duration_s for t in forward[start:end])
        launch = sum(t.fixed_s for t in forward[start:end]), sum(t.fixed_s for t in backward[start:end])
        output = sum(t.bytes for t in made)
        layers.append(
            Layer(
                forward[start].name.partition("/forward")[0],
                ahead_s - launch[0],
                sum(t.duration_s for t in backward[start:end]) - launch[1],
                *launch,
                weight_bytes=int(graph.gradient_bytes * ahead_s / total_s),
                output_bytes=output,
                skip_bytes=sum(t.bytes for t in passing),
                workspace_bytes=max(t.workspace_bytes for t in backward[start:end]) + output,
                halo_bytes=output // _ROWS if ROWS in splits else 0,
                splits=splits,
                saved=tuple(_saved(t, tensors, home, start, end, ahead) for t in inside),
            )
        )
    return LayerChain(graph.name, _with_entries(layers), graph.batch, _SLOTS)


def decoder(blocks: int, width: int, batch: int, tokens: int = 2048) -> LayerChain:
    """A decoder of transformer blocks on the described device, four layers a block.

    Args:
      blocks: Their number.
      width: Of the residual stream; the wide layer has four times as much.
      batch: Sequences of a step.
      tokens: Of a sequence.
    """
    words = float(batch) * tokens
    narrow, wide = words * width * 2, words * 4 * width * 2  # bytes, bfloat16
    layers = []
    for block in range(blocks):
        of = f"block{block}"
        attention = 4 * words * tokens * width  # operations
        parts = (
            ("qkv", 6 * words * width**2, 3 * width**2, 3 * narrow, narrow, narrow, True),
            ("attention", attention + 2 * words * width**2, width**2, narrow, 3 * narrow, narrow, False),
            ("wide", 8 * words * width**2, 4 * width**2, wide, narrow, narrow, True),
            ("narrow", 8 * words * width**2, 4 * width**2, narrow, wide, 0.0, False),
        )
        for name, flops, weights, output, read, skip, normed in parts:
            seconds = DEVICE.task_s(flops, read + output) - DEVICE.launch_s
            saved = [_plain_saved(f"{of}/{name}/input", read)]
            if normed:  # the normalization's result is cheap to make again
                rebuilt = RebuildOption((saved[0].name,), 2 * read / DEVICE.bytes_per_s)
                after = _plain_saved(f"{of}/{name}/normed", read)
                saved.append(after._replace(options=(*after.options, rebuilt)))
            layers.append(
                Layer(
                    f"{of}/{name}",
                    seconds,
                    2 * seconds,
                    2 * DEVICE.launch_s,
                    4 * DEVICE.launch_s,
                    weight_bytes=4 * weights,
                    output_bytes=int(output),
                    skip_bytes=int(skip),
                    workspace_bytes=int(output + read),
                    update_s=7 * 4 * weights / DEVICE.bytes_per_s,
                    splits=(BATCH, CHANNELS),
                    saved=tuple(saved),
                )
            )
    return LayerChain(f"decoder of {blocks} blocks", _with_entries(layers), batch, _SLOTS)


def _with_entries(layers: list[Layer]) -> tuple[Layer, ...]:
    """Layers of which a stage holds what it lets pass."""
    passed = (0, *(layer.skip_bytes for layer in layers[:-1]))
    return tuple(layer._replace(entry_bytes=size) for layer, size in zip(layers, passed))


def _plain_saved(name: str, size: float) -> Saved:
    streams = [
        StreamOption(
            codec, int(size / speed.ratio), size / speed.encode_bytes_per_s, size / speed.decode_bytes_per_s
        )
        for codec, speed in DEVICE.codecs.items()
        if codec != "bits"
    ]
    moved = DEVICE.host_link.seconds(size)
    return Saved(name, int(size), (*streams, OffloadOption(moved, moved)))


def _groups(count: int, tensors: dict[str, Tensor], home: dict[str, int]) -> list[tuple[int, int]]:
    """(first, behind the last) of the tasks that form each layer: a tensor's home and those of its sources."""
    joined = np.zeros(count, bool)  # with the task before
    for tensor in tensors.values():
        for option in tensor.options:
            if isinstance(option, RebuildOption) and all(source in home for source in option.sources):
                places = [home[tensor.name], *(home[source] for source in option.sources)]
                if max(places) - min(places) < 4:
                    joined[min(places) + 1 : max(places) + 1] = True
    starts = np.flatnonzero(~joined).tolist()
    return list(zip(starts, [*starts[1:], count]))


def _saved(
    tensor: Tensor, tensors: dict[str, Tensor], home: dict[str, int], start: int, end: int, ahead: set[str]
) -> Saved:
    options = tuple(
        option
        for option in tensor.options
        if all(source in tensors and start <= home[source] < end for source in getattr(option, "sources", ()))
    )
    reads = sum(reader not in ahead for reader in tensor.readers)
    return Saved(tensor.name, tensor.bytes, options, max(reads, 1))
