"""`ct.distribute.fit` by two processes: what each makes, and what becomes of one when the other is killed."""

import concurrent.futures
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import training_worker
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.distribute import cluster, launching, meeting, worker

HERE = Path(__file__).resolve().parent
# The others are to stop within this many seconds of a worker's death; TensorFlow notices after ten without a heartbeat.
STOPS_WITHIN_S = 60


def for_workers(patch):
    patch.setenv("PYTHONPATH", str(HERE.parent.parent))
    patch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")


def command(scenario, folder):
    folder.mkdir(exist_ok=True)
    return [sys.executable, str(HERE / "training_worker.py"), scenario, str(folder)]


def trained(scenario, folder, workers=2):
    """What each worker found."""
    log = folder.parent / f"{folder.name}.log"
    with log.open("w") as out:
        status = launching.launch(
            command(scenario, folder), launching.free_addresses(workers), range(workers), out=out
        )
    assert status == 0, log.read_text()[-3000:]
    return [json.loads((folder / f"{k}.json").read_text()) for k in range(workers)]


def close(found, expected, tolerance=1e-6):
    for name, values in expected["logs"].items():
        np.testing.assert_allclose(found["logs"][name], values, rtol=tolerance, err_msg=name)
    for weight, other in zip(found["weights"], expected["weights"]):
        np.testing.assert_allclose(weight, other, rtol=0, atol=tolerance)


@pytest.fixture(scope="module")
def alike(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        for_workers(patch)
        return trained("alike", tmp_path_factory.mktemp("workers") / "alike")


@pytest.mark.long
def test_two_workers_know_the_same_and_make_what_one_does(alike):
    first, second = alike
    assert first == second
    alone = training_worker.outcome(training_worker.fit(training_worker.network(norm=False, storage="keep")))
    close(first["keep"], alone)
    np.testing.assert_allclose(first["stream"]["logs"]["loss"], alone["logs"]["loss"], rtol=0.05)
    assert np.isfinite(first["odd"]["logs"]["loss"]).all()
    assert len(first["compressed"]["bounds"]) > 4
    assert first["stopped"] == 2
    assert first["batches"] == [32, 32]
    assert first["files"] == ["log.csv", "model.keras"]


@pytest.mark.long
def test_a_killed_worker_ends_the_others_and_a_restart_makes_the_same_weights(tmp_path, monkeypatch):
    for_workers(monkeypatch)
    folder, addresses = tmp_path / "killed", launching.free_addresses(2)
    with (tmp_path / "first.log").open("w") as log:
        workers = [
            subprocess.Popen(
                command("killed", folder),
                env=dict(os.environ, TF_CONFIG=launching.config_of(addresses, k)),
                stdout=log if k == 0 else subprocess.DEVNULL,
                stderr=subprocess.STDOUT,
            )
            for k in range(2)
        ]
        try:
            checkpoint = folder / "checkpoint" / "training.ckpt"
            begun = time.monotonic()
            while not checkpoint.exists() and workers[0].poll() is None and time.monotonic() < begun + 200:
                time.sleep(0.1)
            time.sleep(1)  # some steps more
            assert [worker.poll() for worker in workers] == [None, None]
            workers[1].send_signal(signal.SIGKILL)
            assert workers[0].wait(STOPS_WITHIN_S) not in (0, None)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    assert "UnavailableError" in (tmp_path / "first.log").read_text()
    first, second = trained("goes_on", folder)
    assert first == second
    assert first.pop("events")[0][0][0] == "resumed"
    whole, other = trained("goes_on", tmp_path / "whole")
    assert whole == other and whole.pop("events") == [[]] * 4
    assert first == whole


def test_workers_are_connected_before_anything_runs(monkeypatch):
    tf.constant(1)
    monkeypatch.setattr(cluster, "_connected", None)
    monkeypatch.setenv("TF_CONFIG", launching.config_of(["a:1", "b:2"], 0))
    with pytest.raises(RuntimeError, match=r"Call ct.distribute.connect\(\) first"):
        ct.distribute.fit(training_worker.network(), *training_worker.data())


def test_without_workers_it_is_fit_alone(tmp_path):
    build = training_worker.network()
    history = training_worker.fit(build, checkpoint_dir=tmp_path / "run")
    assert ct.distribute.is_first_worker()
    again = training_worker.fit(build, checkpoint_dir=tmp_path / "run")  # complete: nothing to do
    for ours, theirs in zip(again.model.get_weights(), history.model.get_weights()):
        np.testing.assert_array_equal(ours, theirs)


def test_what_an_optimizer_does_alone_is_refused_or_said(caplog):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    for how in ({"use_ema": True}, {"gradient_accumulation_steps": 2}):
        model.compile(keras.optimizers.SGD(**how), "mse", jit_compile=False)
        with pytest.raises(ValueError, match=f"must be without `{next(iter(how))}`"):
            worker._check_model(model)
    model.compile(keras.optimizers.SGD(clipnorm=0.5), "mse", jit_compile=False)
    worker._check_model(model)
    assert "clipnorm=0.5 clips" in caplog.text


@pytest.mark.parametrize(
    ("config", "first"),
    [
        ({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 0}}, True),
        ({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}, False),
        ({"cluster": {"chief": ["c:1"], "worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}, False),
        ({"cluster": {"chief": ["c:1"], "worker": ["a:1"]}, "task": {"type": "chief", "index": 0}}, True),
    ],
)
def test_which_worker_is_the_first(monkeypatch, config, first):
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    assert ct.distribute.is_first_worker() is first


@pytest.mark.long
def test_workers_that_were_given_something_else_say_so(tmp_path, monkeypatch):
    for_workers(monkeypatch)
    said = trained("given_something_else", tmp_path / "given")
    assert said[0] == said[1]
    wanted = {
        "batch": "`batch_size` differs: 16 on worker 0, 18 on worker 1",
        "length": "the number of samples differs: 96 on worker 0, 95 on worker 1",
        "types": "types and shapes of the samples differs: digests ",
        "values": "the first batch differs: digests ",
    }
    assert said[0].keys() == wanted.keys()
    for name, words in wanted.items():
        assert words in said[0][name]


@pytest.mark.parametrize(
    ("addresses", "problem"),
    [
        (["localhost", "localhost:2"], "each worker's own host:port. Received: 'localhost'."),
        (["a:0", "b:2"], "Received: 'a:0'"),
        (["a:port", "b:2"], "Received: 'a:port'"),
        (["a:1", "a:1"], "Received: 'a:1' twice"),
    ],
)
def test_addresses_that_cannot_be_met_at(addresses, problem, monkeypatch):
    monkeypatch.setattr(cluster, "_connected", None)
    monkeypatch.setenv("TF_CONFIG", launching.config_of(addresses, 0))
    with pytest.raises(ValueError, match=problem):
        ct.distribute.connect()


def test_who_is_waited_for_is_said_and_not_for_ever(monkeypatch, caplog):
    monkeypatch.setattr(meeting, "_WORD_S", 0.2)
    addresses = launching.free_addresses(2)
    with pytest.raises(
        TimeoutError, match=f"Worker 0 has waited 1 s for worker 1 .{addresses[1]}.*timeout_s"
    ):
        meeting.meet(addresses, 0, 1.0)
    assert f"Worker 0 waits for worker 1 ({addresses[1]}), for " in caplog.text


def test_workers_that_come_at_different_times_meet():
    """TensorFlow's server listens where a worker that has met the others did."""
    addresses = launching.free_addresses(3)
    met = threading.Barrier(3)

    def come(number):
        meeting.meet(addresses, number, 60.0)
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("", int(addresses[number].rpartition(":")[2])))
            server.listen()
            met.wait(60)

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        list(pool.map(come, range(3)))


def test_a_port_in_use_is_named():
    (address,) = launching.free_addresses(1)
    with socket.socket() as other:
        other.bind(("", int(address.rpartition(":")[2])))
        other.listen()
        with pytest.raises(
            OSError, match=f"{address}, this worker's address in TF_CONFIG, cannot be listened at"
        ):
            meeting.meet([address, "localhost:1"], 0, 1.0)


@pytest.mark.parametrize(
    "config",
    ["no json", "[]",
     '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": -1}}',
     '{"cluster": {"worker": ["a:1", "b:2"]}}',
     '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 2}}'],
)  # fmt: skip
def test_bad_cluster(monkeypatch, config):
    monkeypatch.setattr(cluster, "_connected", None)
    monkeypatch.setenv("TF_CONFIG", config)
    with pytest.raises(ValueError, match="TF_CONFIG must be JSON such as"):
        ct.distribute.connect()


def test_what_build_must_be():
    with pytest.raises(TypeError, match="`build` must be a function"):
        ct.distribute.fit(training_worker.network()(), *training_worker.data())
    with pytest.raises(TypeError, match="must be a compiled keras.Model"):
        ct.distribute.fit(lambda: None, *training_worker.data())
