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
    environment = dict(os.environ, PYTHONPATH=str(HERE.parent.parent), TF_CPP_MIN_LOG_LEVEL="2")
    command = [sys.executable, str(HERE / "mirrored.py"), str(request.param)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
@pytest.mark.parametrize("fit", ["fit", "ct.fit"])
def test_kept_tensors_give_the_same_weights(runs, fit):
    np.testing.assert_allclose(runs["keep"][fit]["loss"], runs["one"]["loss"], rtol=1e-6)
    np.testing.assert_allclose(runs["keep"][fit]["weights"], runs["one"]["weights"], rtol=0, atol=1e-6)


def test_xla_is_refused_for_several_replicas(runs):
    assert "compiled with jit_compile=False under a strategy of several replicas" in runs["xla"]


def test_an_absolute_bound_is_that_of_every_replica(runs):
    """Their sites are made while the first is traced."""
    for of_replica in runs["bounds"]:
        np.testing.assert_allclose(of_replica, np.full(len(runs["bounds"][0]), 1e-6), rtol=1e-6)
    assert len(runs["bounds"]) > 1 and len(runs["bounds"][0]) >= 2


@pytest.mark.parametrize("fit", ["fit", "ct.fit"])
@pytest.mark.parametrize("way", ["stream", "recompute"])
def test_losses_follow_one_device(runs, way, fit):
    np.testing.assert_allclose(runs[way][fit]["loss"], runs["one"]["loss"], rtol=SPREAD)
    assert runs[way][fit]["weights"] != runs["one"]["weights"]
