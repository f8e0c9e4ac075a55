"""Tier "host": where there is no GPU, a second virtual device stands for it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tf_comptrain as ct
from tf_comptrain import storage

HERE = Path(__file__).resolve().parent
WAYS = {
    "zvc": {"codec": "zvc"},
    "as it is": {"codec": None, "tier": "host"},
    "one at a time": {"codec": "zvc", "inflight": "1MB"},
    "plane": {"codec": "plane"},
    "head": {"codec": None, "head": True},
}


LONG = ("one at a time", "plane", "head")


@pytest.fixture(scope="module")
def runs():
    return of_process(*(way for way in WAYS if way not in LONG))


@pytest.fixture(scope="module")
def more(runs):
    return {**runs, **of_process(*LONG)}


def of_process(*ways):
    environment = dict(os.environ, PYTHONPATH=str(HERE.parent.parent), TF_CPP_MIN_LOG_LEVEL="2")
    command = [sys.executable, str(HERE / "offload_to_host.py"), json.dumps({way: WAYS[way] for way in ways})]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def of_type(operations, kind):
    return {name: op for name, op in operations.items() if op["type"] == kind}


@pytest.mark.parametrize("way", ["zvc", "as it is"])
def test_lossless_training_is_bit_equal(runs, way):
    assert runs[way][:2] == runs["keep"][:2]


@pytest.mark.long
def test_one_at_a_time_it_is_bit_equal_too(more):
    assert more["one at a time"][:2] == more["keep"][:2]


@pytest.mark.long
def test_with_a_bound_it_trains(more):
    assert more["plane"][0] != more["keep"][0]
    assert more["plane"][0] == pytest.approx(more["keep"][0], rel=0.05)


@pytest.mark.parametrize("way", ["zvc", "as it is"])
def test_what_waits_is_with_the_host_and_the_rest_is_not(runs, way):
    operations = runs[way][2]
    for kind in ("Spill", "ReadAhead", "Fetch"):
        assert of_type(operations, kind) and all(
            op["device"] == "0" for op in of_type(operations, kind).values()
        )
    for kind in ("Conv2D", "Conv2DBackpropFilter", "Compress", "Decompress"):
        assert all(op["device"] == "1" for op in of_type(operations, kind).values())
    assert len(of_type(operations, "Spill")) >= 4


def test_a_copy_begins_with_the_reader_of_an_earlier_tensor(runs):
    operations = runs["as it is"][2]
    ahead = of_type(operations, "ReadAhead")
    fetches = of_type(operations, "Fetch").values()
    early = [op for op in fetches if op["reads"][0] in ahead]
    own_gates = [op["waits"] for op in fetches if op["reads"][0] not in ahead]
    assert len(early) == len(fetches) - 2 and all(own_gates)
    assert not any(op["waits"] for op in early)
    gates = [op["waits"] for op in ahead.values()]
    assert all(gates) and len({name for names in gates for name in names}) == len(gates)


@pytest.mark.long(*LONG)
@pytest.mark.parametrize("way", ["zvc", "as it is", "one at a time", "plane"])
def test_the_last_tensors_stay(request, way):
    """They would still be on their way out when the backward pass asks for them."""
    _, _, operations, storages = request.getfixturevalue("more" if way in LONG else "runs")[way]
    read = {name for op in operations.values() for name in op["reads"]}
    waited_for = {name for op in operations.values() for name in op["waits"]}
    idle = {name: op for name, op in of_type(operations, "Fetch").items() if name not in read}
    spills = {op["reads"][0] for op in idle.values()}
    assert len(spills) == 2 and not waited_for & (spills | set(idle))
    stays = "compress" if WAYS[way]["codec"] else "keep"
    assert [storages[f"conv{number}"] for number in range(5)] == ["offload"] * 3 + [stays] * 2


@pytest.mark.long
def test_what_is_made_early_moves_though_it_is_read_first(more):
    storages = more["head"][3]
    assert list(storages) == ["conv0", "head", "conv1", "conv2", "conv3", "conv4"]
    assert list(storages.values()) == ["offload"] * 5 + ["keep"]


@pytest.mark.long
def test_the_forward_pass_waits_for_room_in_flight(more):
    def waiting(way):
        operations = more[way][2]
        spills = of_type(operations, "Spill")
        return [
            name for name, op in of_type(operations, "Identity").items() if set(op["waits"]) & set(spills)
        ]

    moved = len(of_type(more["one at a time"][2], "Spill")) - 2
    assert len(waiting("one at a time")) == moved - 1 and not waiting("zvc")


def test_tiers_that_do_not_fit_the_device_say_so():
    cpu, gpu = (storage.Engine(False, False, device) for device in ("CPU", "GPU"))
    assert storage.obstacle(ct.Offload(), cpu) is storage.obstacle(ct.Offload(), gpu) is None
    assert "tier='file' works there" in storage.obstacle(ct.Offload(tier="host"), cpu)
    assert "tier='host' works" in storage.obstacle(ct.Offload(tier="file"), gpu)
    assert storage.obstacle(ct.Offload(tier="host"), gpu) is None
