"""Described machines: JSON both ways, times, and one clear error for each mistake."""

import json

import pytest
from synthetic import DEVICE

from tf_comptrain.planner import Link, hardware_from_json


def test_json_both_ways(tmp_path):
    path = tmp_path / "device.json"
    path.write_text(DEVICE.to_json())
    assert hardware_from_json(path) == hardware_from_json(DEVICE.to_json()) == DEVICE


MISTAKES = {
    ("memory_bytes",): (None, "must have memory_bytes"),
    ("flops_per_s",): (-1.0, "`flops_per_s` must be a number above 0"),
    ("devices",): (0, "`devices` must be an integer of at least 1"),
    ("host_link", "latency_s"): (-1e-6, "`host_link.latency_s` must be a number of at least 0"),
    ("host_link", "bytes_per_s"): (None, "`host_link` must have bytes_per_s"),
    ("device_link",): (3, "`device_link` must be an object"),
    ("codecs", "plane", "ratio"): (0, "`codecs.plane.ratio` must be a number above 0"),
    ("codecs",): ([], "`codecs` must be an object"),
    ("node_devices",): (8, "`node_devices` and `node_link` go together"),
    ("node_link",): ({"latency_s": 1e-5}, "`node_link` must have bytes_per_s"),
    ("nodes",): (2, "may have only the fields"),
}


@pytest.mark.parametrize("path", MISTAKES, ids=".".join)
def test_mistakes(path):
    value, message = MISTAKES[path]
    description = json.loads(DEVICE.to_json())
    part = description
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = value
    if value is None:
        del part[path[-1]]
    with pytest.raises(ValueError, match=message):
        hardware_from_json(description)


def test_description_from_before_there_were_nodes():
    old = {k: v for k, v in json.loads(DEVICE.to_json()).items() if not k.startswith("node_")}
    assert hardware_from_json(old) == DEVICE


def test_nodes():
    nodes = DEVICE._replace(devices=16, node_devices=8, node_link=Link(1e-5, 50e9))
    assert hardware_from_json(nodes.to_json()) == nodes
    assert nodes.link(0, 7) == nodes.device_link
    assert nodes.link(7, 8) == nodes.node_link
    assert nodes.all_reduce_s(1e9, 8) == DEVICE.all_reduce_s(1e9, 8)
    between = 2 * (1e-5 + 1e9 / 8 / 2 / 50e9)
    assert nodes.all_reduce_s(1e9, 16) == pytest.approx(DEVICE.all_reduce_s(1e9, 8) + between)


def test_times():
    assert DEVICE.task_s(0, 4.8e12) == pytest.approx(1 + DEVICE.launch_s)
    assert DEVICE.task_s(495e12, 0) == pytest.approx(1 + DEVICE.launch_s)
    assert DEVICE.host_link.seconds(55e9) == pytest.approx(1, rel=1e-4)
    assert DEVICE.all_reduce_s(450e9, 1) == 0
    assert DEVICE.all_reduce_s(450e9, 4) == pytest.approx(1.5, rel=1e-3)
