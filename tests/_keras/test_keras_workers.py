"""`_keras/workers.py`: several processes that train one model; and what else needs a process of its own."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf
from tiny import batch, network

from tf_comptrain import _keras


def _free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="module")
def workers():
    """What `other_process.py` says of each of two workers."""
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(2)]
    started = []
    for number in range(2):
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": number}}
        command = [sys.executable, str(Path(__file__).with_name("other_process.py"))]
        environment = {**os.environ, "TF_CONFIG": json.dumps(config), "CUDA_VISIBLE_DEVICES": ""}
        started.append(
            subprocess.Popen(
                command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        )
    try:
        outputs = [process.communicate(timeout=120) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (_, errors) in zip(started, outputs):
        assert process.returncode == 0, errors
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]


@pytest.mark.long
def test_workers_connect(workers):
    assert [found["has run"] for found in workers] == [[False, True]] * 2
    assert [found["are workers"] for found in workers] == [True, True]
    assert [found["number"] for found in workers] == [0, 1]


@pytest.mark.long
def test_workers_tell_each_other(workers):
    for found in workers:
        assert found["largest"] == 13
        assert found["from first"] == "what the first has"
        assert found["of all"] == [[[0, 1], [0.5]], [[10, 11], [1.5]]]


@pytest.mark.long
def test_values_of_other_processes(workers):
    assert [found["parts"] for found in workers] == [[True, False], [False, True]]
    for found in workers:
        assert found["values"] == [0.0, 1.0, 7.0]


@pytest.mark.long
def test_weights_move_to_another_device(workers):
    for found in workers:
        moved, first, last = found["devices"]
        assert moved == 2 * [True]  # the weight and its slot
        assert first == last == 2 * [False]  # another weight
        assert found["values kept"] and found["weight left alone"]


def test_one_process_has_no_others():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    assert not _keras.are_workers(strategy) and _keras.has_run()
    assert _keras.largest(strategy, 5) == 5


def test_the_functions_of_steps_are_the_makers():
    model, made = network(), []

    def make(step):
        made.append(step)
        return lambda iterator: {"loss": tf.constant(4.0)}

    _keras.set_step_maker(model, make)
    model.make_train_function()
    assert model.train_function(iter([batch()])) == {"loss": 4.0}
    model.make_test_function()
    assert [step.__name__ for step in made] == ["train_step", "test_step"]


def test_optional_parts_of_a_batch_are_none():
    x, y = batch()
    step = _keras.optionals_as_none(network(), lambda data: data)
    given = x, {"y": y, "weight": tf.experimental.Optional.empty(None)}
    found = step(given)
    assert found[0] is x and found[1]["y"] is y and found[1]["weight"] is None
