"""Two and four devices of one process, by MirroredStrategy: what one device makes of the same batches."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
# Bounds are relative to sigma, and each replica's tensors have their own: the same law, other errors.
SPREAD = 0.05


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.long)])
def runs(request):
    return of_process(request.param, "stream")


def of_process(devices, *ways):
    environment = dict(os.environ, PYTHONPATH=str(HERE.parent.parent), TF_CPP_MIN_LOG_LEVEL="2")
    command = [sys.executable, str(HERE / "mirrored.py"), str(devices), *ways]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module", params=[2, 4])
def more(request):
    return of_process(request.param, "keep", "recompute")


@pytest.mark.long
@pytest.mark.parametrize("fit", ["fit", "ct.fit"])
def test_kept_tensors_give_the_same_weights(more, fit):
    np.testing.assert_allclose(more["keep"][fit]["loss"], more["one"]["loss"], rtol=1e-6)
    np.testing.assert_allclose(more["keep"][fit]["weights"], more["one"]["weights"], rtol=0, atol=1e-6)


def test_xla_is_refused_for_several_replicas(runs):
    assert "compiled with jit_compile=False under a strategy of several replicas" in runs["xla"]


def test_an_absolute_bound_is_that_of_every_replica(runs):
    """Their sites are made while the first is traced."""
    for of_replica in runs["bounds"]:
        np.testing.assert_allclose(of_replica, np.full(len(runs["bounds"][0]), 1e-6), rtol=1e-6)
    assert len(runs["bounds"]) > 1 and len(runs["bounds"][0]) >= 2


def assert_follows(found, one):
    np.testing.assert_allclose(found["loss"], one["loss"], rtol=SPREAD)
    assert found["weights"] != one["weights"]


@pytest.mark.parametrize("fit", ["fit", "ct.fit"])
def test_losses_follow_one_device(runs, fit):
    assert_follows(runs["stream"][fit], runs["one"])


@pytest.mark.long
@pytest.mark.parametrize("fit", ["fit", "ct.fit"])
def test_losses_of_recompute_follow_one_device(more, fit):
    assert_follows(more["recompute"][fit], more["one"])
