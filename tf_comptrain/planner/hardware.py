"""A machine as data: what its devices and links can do, whether or not it is here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tf_comptrain import arguments
from tf_comptrain.planner import _fields


class Link(NamedTuple):
    """A way for bytes.

    Attributes:
      latency_s: Seconds until the first byte arrives.
      bytes_per_s: From then on.
    """

    latency_s: float
    bytes_per_s: float

    def seconds(self, size: float) -> float:
        """Of moving `size` bytes."""
        return self.latency_s + size / self.bytes_per_s


class CodecSpeed(NamedTuple):
    """Speed of a codec.

    Attributes:
      encode_bytes_per_s: Bytes of plain values that it encodes in a second.
      decode_bytes_per_s: The same of decoding.
      ratio: Plain bytes / stream bytes.
    """

    encode_bytes_per_s: float
    decode_bytes_per_s: float
    ratio: float


class Hardware(NamedTuple):
    """A number of like devices, in nodes of a few.

    Attributes:
      name: Of the machine.
      devices: How many.
      memory_bytes: Of one device.
      flops_per_s: Of one device, as products reach it.
      bytes_per_s: Of one device's memory.
      launch_s: Seconds that a task takes however little it does.
      codecs: By name.
      host_link: Between a device and its host, each way.
      device_link: Between two devices of a node.
      node_devices: How many devices a node has; 0: all of them.
      node_link: Between two devices of different nodes; None where there is one node.
    """

    name: str
    devices: int
    memory_bytes: int
    flops_per_s: float
    bytes_per_s: float
    launch_s: float
    codecs: Mapping[str, CodecSpeed]
    host_link: Link
    device_link: Link
    node_devices: int = 0
    node_link: Link | None = None

    def to_json(self) -> str:
        """The description as JSON text."""
        codecs = {name: codec._asdict() for name, codec in self.codecs.items()}
        links = {name: getattr(self, name) for name in _LINKS}
        fields = {name: None if link is None else link._asdict() for name, link in links.items()}
        return json.dumps({**self._asdict(), "codecs": codecs, **fields}, indent=1)

    def task_s(self, flops: float, moved_bytes: float) -> float:
        """Seconds of a task: the larger of arithmetic and memory traffic (the roofline), and the launch."""
        return self.launch_s + max(flops / self.flops_per_s, moved_bytes / self.bytes_per_s)

    def link(self, first: int, last: int) -> Link:
        """The link between devices `first` to `last`, by number: the slower one where they are of several nodes."""
        if self.node_link is None or first // self.node_devices == last // self.node_devices:
            return self.device_link
        return self.node_link

    def all_reduce_s(self, size: float, members: int) -> float:
        """Seconds of summing `size` bytes over `members` devices in rings; 0 for one.

        Over several nodes the devices of each sum up a part, a ring over the nodes sums up the parts, and the devices
        of each node send each other the sums.
        """
        inside = members if self.node_link is None else min(members, self.node_devices)
        seconds = _ring_s(self.device_link, size, inside)
        if self.node_link is not None and members > inside:
            seconds += _ring_s(self.node_link, size / inside, -(-members // inside))
        return seconds


_LINKS = ("host_link", "device_link", "node_link")


def _ring_s(link: Link, size: float, members: int) -> float:
    share = (members - 1) / members
    return 2 * ((members - 1) * link.latency_s + share * size / link.bytes_per_s)


def hardware_from_json(source: str | Path | dict) -> Hardware:
    """The machine described in JSON text, a file, or what `json.loads` made of one.

    Raises:
      ValueError: A field is missing, unknown or out of range.
    """
    hardware = _fields.record(Hardware, _fields.load(source, "described hardware"), "hardware")
    codecs = hardware.codecs
    if not isinstance(codecs, Mapping):
        raise ValueError(f"`codecs` must be an object of codecs by name. Received: {codecs!r}.")
    hardware = hardware._replace(
        codecs={name: _fields.record(CodecSpeed, value, f"codecs.{name}") for name, value in codecs.items()},
        host_link=_fields.record(Link, hardware.host_link, "host_link"),
        device_link=_fields.record(Link, hardware.device_link, "device_link"),
        node_link=None
        if hardware.node_link is None
        else _fields.record(Link, hardware.node_link, "node_link"),
    )
    check_hardware(hardware)
    return hardware


def check_hardware(hardware: Hardware) -> None:
    """Says what is wrong with a description.

    Raises:
      ValueError: A number is out of range.
    """
    _fields.text(hardware.name, "name")
    arguments.whole("devices", hardware.devices)
    arguments.whole("memory_bytes", hardware.memory_bytes)
    for name in ("flops_per_s", "bytes_per_s"):
        arguments.real(name, getattr(hardware, name), above=0)
    arguments.real("launch_s", hardware.launch_s, least=0)
    for name, codec in hardware.codecs.items():
        for field, value in codec._asdict().items():
            arguments.real(f"codecs.{name}.{field}", value, above=0)
    arguments.whole("node_devices", hardware.node_devices, least=0)
    if (hardware.node_devices == 0) != (hardware.node_link is None):
        raise ValueError(
            "`node_devices` and `node_link` go together: how many devices a node has, and the link between nodes. "
            f"Received: {hardware.node_devices!r} and {hardware.node_link!r}."
        )
    for name in _LINKS:
        link = getattr(hardware, name)
        if link is not None:
            arguments.real(f"{name}.latency_s", link.latency_s, least=0)
            arguments.real(f"{name}.bytes_per_s", link.bytes_per_s, above=0)
