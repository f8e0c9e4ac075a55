"""`ct.distribute.fit` by two processes: what each makes, and what becomes of one when the other is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import training_worker

import tf_comptrain as ct
from tf_comptrain.distribute import cluster, launching

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


def test_a_killed_worker_ends_the_others_and_a_restart_makes_the_same_weights(alike, tmp_path, monkeypatch):
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
    whole = {**alike[0]["whole"]}
    assert whole.pop("events") == [[]] * 4
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


@pytest.mark.parametrize(
    "config",
    ["no json", "[]", '{"cluster": {"worker": ["a:1", "b:2"]}}',
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
