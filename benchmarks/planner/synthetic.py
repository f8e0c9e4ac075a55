"""Task graphs of made-up networks of any size, for tests and benchmarks of the planner.

python benchmarks/planner/synthetic.py unet 60 > step.json
"""

from __future__ import annotations

import sys

import numpy as np

from tf_comptrain import arguments
from tf_comptrain.planner.hardware import CodecSpeed, Hardware, Link
from tf_comptrain.planner.task_graph import (
    HoldingOption,
    OffloadOption,
    RebuildOption,
    Segment,
    StreamOption,
    Task,
    TaskGraph,
    Tensor,
)

# A device with the published figures of an H200 (dense bfloat16, HBM3e, PCIe 5, NVLink), and codecs at speeds that
# GPU codecs are published with.
DEVICE = Hardware(
    name="described device",
    devices=1,
    memory_bytes=141 * 10**9,
    flops_per_s=495e12,
    bytes_per_s=4.8e12,
    launch_s=4e-6,
    codecs={
        "plane": CodecSpeed(400e9, 500e9, 4.5),
        "rans": CodecSpeed(200e9, 250e9, 7.0),
        "bits": CodecSpeed(2e12, 4e12, 32.0),
    },
    host_link=Link(1e-5, 55e9),
    device_link=Link(3e-6, 450e9),
)
KINDS = ("chain", "unet", "transformer")


def network(kind: str, tensors: int, seed: int = 0, offload: bool = True) -> TaskGraph:
    """A network of about that many saved tensors.

    Args:
      kind: "chain": products and elementwise layers in turn, as VGG has them. "unet": the same with tensors that the
        second half reads again. "transformer": blocks of eight saved tensors, half of them cheap to rebuild.
      tensors: Saved ones.
      seed: Of sizes and speeds.
      offload: Whether tensors may go to the host.

    Raises:
      ValueError: An unknown kind, or fewer tensors than 8.
    """
    if kind not in KINDS:
        raise ValueError(f"`kind` must be one of {', '.join(KINDS)}. Received: {kind!r}.")
    arguments.whole("tensors", tensors, least=8)
    builder = _Builder(np.random.default_rng(seed), offload)
    {"chain": builder.chain, "unet": builder.unet, "transformer": builder.transformer}[kind](tensors)
    return builder.graph(f"{kind} of {tensors}")


class _Builder:
    """Adds layers one by one; the backward tasks follow in reverse."""

    def __init__(self, random: np.random.Generator, offload: bool):
        self._random = random
        self._offload = offload
        self._sizes: dict[str, int] = {}
        self._reads: dict[str, list[str]] = {}
        self._sources: dict[str, tuple[str, ...]] = {}
        self._cheap: set[str] = set()
        self._inputs: dict[str, tuple[str, ...]] = {}
        self._seconds: dict[str, float] = {}
        self._segments: list[tuple[str, list[str]]] = []

    def chain(self, count: int) -> None:
        size, last = 64e6, self.add("x0", 64e6, ())
        block: list[str] = []
        for number in range(1, count):
            if number % max(count // 5, 4) == 0:
                size /= 2
            last = self.add(f"x{number}", size, (last,), cheap=number % 2 == 0)
            block.append(last)
            if len(block) == 6:
                self._segments.append((f"block{len(self._segments)}", block))
                block = []

    def unet(self, count: int) -> None:
        half = count // 2
        size, last = 128e6, self.add("x0", 128e6, ())
        down: list[str] = []
        for number in range(1, half):
            if number % max(half // 4, 2) == 0:
                size /= 2
                down.append(last)
            last = self.add(f"x{number}", size, (last,), cheap=number % 3 == 0)
        for number in range(half, count):
            inputs = [last]
            if (number - half) % max(half // 4, 2) == 1 and down:
                size *= 2
                inputs.append(down.pop())
            last = self.add(f"x{number}", size, tuple(inputs), cheap=len(inputs) == 1 and number % 3 == 0)

    def transformer(self, count: int) -> None:
        size, last = 32e6, self.add("x0", 32e6, ())
        for block in range(max(count // 8, 1)):
            of = f"block{block}/"
            normed = self.add(f"{of}norm1", size, (last,), cheap=True)
            qkv = self.add(f"{of}qkv", 3 * size, (normed,))
            scores = self.add(f"{of}probabilities", 4 * size, (qkv,), cheap=True)
            mixed = self.add(f"{of}mixed", size, (scores, qkv))
            middle = self.add(f"{of}residual", size, (mixed, last))
            normed2 = self.add(f"{of}norm2", size, (middle,), cheap=True)
            wide = self.add(f"{of}wide", 4 * size, (normed2,))
            gelu = self.add(f"{of}gelu", 4 * size, (wide,), cheap=True)
            inside = [normed, qkv, scores, mixed, middle, normed2, wide, gelu]
            self._segments.append((f"block{block}", inside))
            last = self.add(f"{of}out", size, (gelu, middle))

    def add(self, name: str, size: float, inputs: tuple[str, ...], cheap: bool = False) -> str:
        """A layer that makes one tensor."""
        self._sizes[name] = int(size * self._random.uniform(0.5, 1.5)) // 256 * 256
        moved = self._sizes[name] + sum(self._sizes[source] for source in inputs)
        intensity = 0 if cheap else self._random.uniform(400, 4000)  # operations for each byte
        self._seconds[name] = DEVICE.task_s(intensity * self._sizes[name], moved)
        self._inputs[name] = inputs
        if cheap:
            self._cheap.add(name)
        for source in inputs:
            self._reads.setdefault(source, []).append(name)
        return name

    def graph(self, name: str) -> TaskGraph:
        names = list(self._sizes)
        forward = [Task(f"{n}/forward", False, self._seconds[n], 0, DEVICE.launch_s) for n in names]
        backward = [
            Task(f"{n}/backward", True, 2 * self._seconds[n], self._workspace(n), 2 * DEVICE.launch_s)
            for n in reversed(names)
        ]
        tensors = [self._tensor(n) for n in names] + [
            Tensor(f"{n}/gradient", self._sizes[n], self._gradient_maker(n, names), (f"{n}/backward",))
            for n in names[:-1]
        ]
        segments = tuple(self._segment(label, inside) for label, inside in self._segments)
        weights = int(sum(self._sizes.values()) * 0.05)
        return TaskGraph(
            name, tuple(forward + backward), tuple(tensors), segments, weights, weights // 3, batch=32
        )

    def _workspace(self, name: str) -> int:
        return 0 if name in self._cheap else self._sizes[name] // 4

    def _gradient_maker(self, name: str, names: list[str]) -> str:
        readers = self._reads.get(name, [])
        return f"{max(readers, key=names.index)}/backward" if readers else f"{names[-1]}/backward"

    def _tensor(self, name: str) -> Tensor:
        readers = self._reads.get(name, [])
        tasks = [f"{reader}/forward" for reader in readers] + [f"{reader}/backward" for reader in readers]
        return Tensor(name, self._sizes[name], f"{name}/forward", tuple(tasks), self._options(name))

    def _options(self, name: str) -> tuple[HoldingOption, ...]:
        size = self._sizes[name]
        options: list[HoldingOption] = [
            StreamOption(
                codec,
                int(size / speed.ratio * self._random.uniform(0.8, 1.2)),
                size / speed.encode_bytes_per_s,
                size / speed.decode_bytes_per_s,
            )
            for codec, speed in DEVICE.codecs.items()
            if codec != "bits"
        ]
        for sources in self._rebuild_sources(name):
            options.append(RebuildOption(sources, self._seconds[name]))
        if self._offload:
            link = DEVICE.host_link.seconds(size)
            options.append(OffloadOption(link, link))
        return tuple(options)

    def _rebuild_sources(self, name: str) -> list[tuple[str, ...]]:
        return [self._inputs[name]] if self._inputs[name] and name in self._cheap else []

    def _segment(self, label: str, inside: list[str]) -> Segment:
        sources = dict.fromkeys(s for n in inside for s in self._inputs[n] if s not in inside)
        return Segment(label, tuple(inside), tuple(sources), sum(self._seconds[n] for n in inside))


if __name__ == "__main__":
    print(network(sys.argv[1], int(sys.argv[2])).to_json())
