"""A TensorFlow that counts no memory: peaks read 0, and what needs them says how to count."""

import json
import os
import subprocess
import sys

import pytest

from tf_comptrain.memory import counters

UNCOUNTED = """
import json, tf_comptrain as ct
from tensorflow import keras
from tf_comptrain.cli import examination
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
model.compile("sgd", "mse", jit_compile=False)
import numpy as np
x, y = np.zeros((2, 8), "float32"), np.zeros((2, 4), "float32")
step = ct.memory.measure_step(model, x, y)
model.fit(x, y, verbose=0, callbacks=[ct.MemoryLogger()])
try:
    data = ct.elastic_batch(__import__("tensorflow").data.Dataset.from_tensor_slices((x, y)), 1)
    ct.compress_model(model)
    model.fit(data, verbose=0, callbacks=[ct.AdaptiveTraining("1GB", verbose=0)])
    refused = ""
except ValueError as error:
    refused = str(error)
found = {finding.about: finding.found for finding in examination._devices()}
print(json.dumps([step.peak_bytes, step.resting_bytes, refused, found["memory accounting"]]))
"""


@pytest.mark.long
def test_where_nothing_is_counted():
    environment = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": "-1"}
    ran = subprocess.run(
        [sys.executable, "-c", UNCOUNTED], env=environment, capture_output=True, text=True, check=True
    )
    peak, resting, refused, accounting = json.loads(ran.stdout.splitlines()[-1])
    assert peak == resting == 0
    assert refused.startswith("AdaptiveBatchSize needs") and "TF_ENABLE_ONEDNN_OPTS=1" in refused
    assert "peaks read 0" in accounting and "TF_ENABLE_ONEDNN_OPTS=1" in accounting


def test_a_piece_is_taken_once(monkeypatch):
    """Each one has a table of its own, which stays: a smaller limit, or the same one again, takes no other."""
    taken = []
    monkeypatch.setattr(counters, "_reserved", 0)
    monkeypatch.setattr(counters.tf.raw_ops, "Empty", lambda shape, **how: taken.append(shape[0]))
    for mebibytes in (2, 2, 1, 3, 2):
        counters.reserve(mebibytes << 20)
    assert taken == [2, 3]


def test_what_is_cut_from_a_reserved_piece_has_its_own_size():
    """In a process that has no other: 5 MiB are 8 of a piece that the allocator takes for them alone."""
    code = """
import tensorflow as tf
from tf_comptrain.memory import counters
counters.reserve(64 << 20)
before = counters.bytes_in_use()
x = tf.zeros([5 << 18])
print(counters.bytes_in_use() - before)
"""
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(made.stdout) == 5 << 20


@pytest.mark.parametrize("size", [0, 1, 9 << 30, 40 << 30, 1 << 60])
def test_any_size_may_be_asked_for(size):
    """Most of these have a length beyond 32 bits, and the largest is of no machine."""
    before = counters.bytes_in_use()
    counters.reserve(size)
    assert counters.bytes_in_use() == before
