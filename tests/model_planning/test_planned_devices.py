"""A plan over devices, carried out."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent


def of_process(*arguments):
    environment = dict(os.environ, PYTHONPATH=str(HERE.parent.parent), TF_CPP_MIN_LOG_LEVEL="2")
    command = [sys.executable, str(HERE / "planned_devices.py"), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def smaller():
    return of_process("smaller")


def test_where_everything_fits_it_trains_as_on_one_device():
    runs = of_process()
    kept = runs["kept"]
    assert not kept["storage"] and kept["held"] == ["keep"]
    assert {number for numbers in kept["devices"] for number in numbers} == {0, 1}
    np.testing.assert_allclose(kept["loss"], runs["one"]["loss"], rtol=1e-5)
    np.testing.assert_allclose(kept["weights"], runs["one"]["weights"], rtol=1e-5, atol=1e-4)


@pytest.mark.long
def test_under_less_memory_it_trains_compressed_or_in_parts(smaller):
    held = smaller["held"]
    assert ("compress" in held["held"]) == bool(held["storage"])
    assert held["storage"] or held["microbatches"] > smaller["kept"]["microbatches"]
    np.testing.assert_allclose(held["loss"], smaller["one"]["loss"], rtol=0.05)


@pytest.mark.long
def test_what_does_not_fit_is_not_applied(smaller):
    assert "over the 100 kB that it was made for: plan with more memory or devices" in smaller["too small"]
