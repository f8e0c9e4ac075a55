"""A model on two and four devices of one process: what one device makes of the same batches."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
PLACES = [(2, place) for place in ("stages", "microbatches", "data")]
PLACES += [(4, place) for place in ("hybrid", "rows", "channels")]
WAYS = ("keep", "stream", "recompute")
# The others are long, and in a process of their own.
SHORT = ("stages/keep", "stages/stream", "microbatches/recompute", "data/keep", "data/stream")
SPREAD = 0.05  # bounds are relative to sigma, and each part of a batch has its own


@pytest.fixture(scope="module")
def runs():
    found = {}

    def of(count, run=SHORT[0]):
        asked = SHORT
        if count == 4 or run not in SHORT:
            asked = [f"{place}/{way}" for devices, place in PLACES if devices == count for way in WAYS]
            asked = [each for each in asked if count == 4 or each not in SHORT]
        if (count, *asked) not in found:
            environment = dict(os.environ, PYTHONPATH=str(HERE.parent.parent), TF_CPP_MIN_LOG_LEVEL="2")
            command = [sys.executable, str(HERE / "staged.py"), str(count), *asked]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[-3000:]
            found[(count, *asked)] = json.loads(done.stdout.splitlines()[-1])
        return found[(count, *asked)]

    return of


@pytest.mark.long(but=["2-stages", "2-data"])
@pytest.mark.parametrize(("count", "place"), PLACES)
def test_kept_tensors_give_the_same_training(runs, count, place):
    made = runs(count, f"{place}/keep")
    one, found = made["one"], made[f"{place}/keep"]
    np.testing.assert_allclose(found["loss"], one["loss"], rtol=1e-6)
    np.testing.assert_allclose(found["accuracy"], one["accuracy"], rtol=1e-6)
    np.testing.assert_allclose(found["weights"], one["weights"], rtol=0, atol=1e-6)


@pytest.mark.long(but=["2-stages-stream", "2-microbatches-recompute", "2-data-stream"])
@pytest.mark.parametrize("way", ["stream", "recompute"])
@pytest.mark.parametrize(("count", "place"), PLACES)
def test_losses_follow_one_device(runs, count, place, way):
    made = runs(count, f"{place}/{way}")
    one, found = made["one"], made[f"{place}/{way}"]
    np.testing.assert_allclose(found["loss"], one["loss"], rtol=SPREAD)
    assert found["weights"] != one["weights"]


def test_a_stage_that_reads_a_tensor_of_another_is_sent_its_stream(runs):
    """16 x 6 x 6 x 8 values of float32, for the gradient of the next stage's weights; kept, it has them already."""
    sent = runs(2)["border_bytes"]
    assert sent["keep"] == []
    assert len(sent["stream"]) == 1 and 0 < sent["stream"][0] < 16 * 6 * 6 * 8 * 4 / 4


def test_weights_are_updated_where_they_are(runs):
    """Of two convolutions, and of two and a dense layer: a kernel and a bias each."""
    updates = runs(2)["updates"]["stages"]
    assert (updates["CPU:0"], updates["CPU:1"], updates["readers"]) == (4, 6, [])


def test_devices_of_a_stage_share_its_weights(runs):
    """About as many bytes on each as one weight allows, updated there."""
    updates = runs(2)["updates"]["data"]
    held = updates["held"].values()
    assert min(updates["CPU:0"], updates["CPU:1"]) > 0 and updates["CPU:0"] + updates["CPU:1"] == 10
    assert updates["readers"] == [] and max(held) < 0.7 * sum(held)
