"""What leaves the device's memory in a step and comes back, from TensorFlow's profiler."""

import json
import types

import numpy as np
import pytest
from models import chain
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.memory.movement import BACK, OUT, transfers_of
from tf_comptrain.memory.profile import Recorded

BATCH, SIZE, FILTERS = 16, 64, 16
TENSOR = BATCH * SIZE * SIZE * FILTERS * 4


def batch():
    x = np.random.default_rng(0).normal(size=(BATCH, SIZE, SIZE, FILTERS)).astype("float32")
    return x, np.zeros((BATCH, FILTERS), "float32")


@pytest.fixture(scope="module")
def offloading(tmp_path_factory):
    model = chain(8, size=SIZE, filters=FILTERS)
    # The forward pass waits for each tensor to be written, so that every one is.
    storage = ct.Offload(codec=None, folder=tmp_path_factory.mktemp("spill"), inflight=1)
    ct.compress_model(model, storage=storage)
    weights = model.get_weights()
    found = ct.memory.transfers(model, *batch())
    for ours, before in zip(model.get_weights(), weights):
        np.testing.assert_array_equal(ours, before)
    return found, storage.traffic()


def test_what_moved(offloading):
    """What is asked back while it is being written is not read."""
    found, traffic = offloading
    out = [transfer for transfer in found.moved if transfer.direction == OUT]
    back = [transfer for transfer in found.moved if transfer.direction == BACK]
    assert back and {t.site for t in back} <= {t.site for t in out} <= set(traffic)
    assert all(t.bytes == t.plain_bytes == TENSOR for t in found.moved)
    assert all(t.start_s < t.end_s for t in found.moved)
    written = {t.site: t.end_s for t in out}
    assert all(t.start_s > written[t.site] for t in back)
    starts = [t.start_s for t in found.moved]
    assert starts == sorted(starts)


def test_hidden_and_exposed(offloading):
    found, _ = offloading
    assert 0 < found.hidden_s <= found.moving_s
    assert found.hidden_s + found.exposed_s == pytest.approx(found.moving_s)
    assert found.moving_s <= sum(t.end_s - t.start_s for t in found.moved) + 1e-9
    ends = [time for span in found.computing for time in span]
    assert ends == sorted(ends) and ends[0] == 0


def test_table_json_and_picture(offloading, tmp_path):
    found, _ = offloading
    table = str(found)
    assert all(transfer.site in table for transfer in found.moved)
    assert "hidden behind computation" in table
    stored = json.loads(found.to_json())
    assert len(stored["moved"]) == len(found.moved)
    assert stored["moving_s"] == pytest.approx(stored["hidden_s"] + stored["exposed_s"])
    found.plot(tmp_path / "transfers.png")
    assert (tmp_path / "transfers.png").read_bytes().startswith(b"\x89PNG")


def test_nothing_moves_where_nothing_is_offloaded(tmp_path):
    model = chain(2, size=SIZE, filters=FILTERS)
    ct.compress_model(model, storage="compress")
    found = ct.memory.transfers(model, *batch())
    assert found.moved == () and found.moving_s == 0 and found.computing
    assert "something moved in 0.0: 0.0 hidden" in str(found)
    found.plot(tmp_path / "nothing.png")


def test_a_model_that_is_not_compiled():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="compile"):
        ct.memory.transfers(model, 2)


def recorded(line, name, start_ms, end_ms, plane="/device:GPU:0", **values):
    fields = [types.SimpleNamespace(metadata_id=key, value=value) for key, value in values.items()]
    for field in fields:
        field.WhichOneof = lambda _: "value"
    return Recorded(
        plane, line, name, start_ms * 10**9, (end_ms - start_ms) * 10**9, fields, {key: key for key in values}
    )


def test_copies_of_a_gpu():
    """Kernels compute; copies of 64 KiB and more move; other planes and derived lines do not count."""
    details = "kind_src:device kind_dst:pinned size:%d dest:0 async:1"
    events = [
        recorded("Stream #13(Kernel)", "conv", 10, 14),
        recorded("Stream #13(Kernel)", "relu", 13, 16),
        recorded("Stream #13(Memset)", "Memset", 16, 20),
        recorded("Stream #13(Kernel)", "conv_backward", 20, 24),
        recorded("Stream #14(MemcpyD2H)", "MemcpyD2H", 12, 18, memcpy_details=details % (1 << 20)),
        recorded("Stream #14(MemcpyD2H)", "MemcpyD2H", 18, 19, memcpy_details=details % 4),
        recorded("Stream #15(MemcpyH2D)", "MemcpyH2D", 17, 21, memcpy_details=details % (1 << 20)),
        recorded("TensorFlow Ops", "conv", 0, 40),
        recorded("executor", "conv:Conv2D", 0, 40, plane="/host:CPU"),
        *(recorded("TensorFlow Ops", "conv", 0, 90, plane="/device:GPU:1") for _ in range(9)),
        recorded("Stream #13(Kernel)", "conv", 0, 9, plane="/device:GPU:1"),
    ]
    found = transfers_of(events, True, "model", 8, 1)
    np.testing.assert_allclose(found.computing, [(0, 0.006), (0.010, 0.014)])
    assert [(t.direction, t.bytes) for t in found.moved] == [(OUT, 1 << 20), (BACK, 1 << 20)]
    assert found.moving_s == pytest.approx(0.009)  # from 12 to 21
    assert found.hidden_s == pytest.approx(0.005)  # 12 to 16, 20 to 21
    assert "all copies" in str(found) and "moved in one step" in str(found)


def test_who_waits_for_bytes_does_not_compute():
    moved = {"site": "conv1", "plain_bytes": 1 << 20, "bytes": 1 << 20, "plane": "/host:CPU"}
    events = [
        recorded("executor", "conv:Conv2D", 0, 10, plane="/host:CPU"),
        recorded("executor", "fetch:Comptrain>Fetch", 10, 20, plane="/host:CPU"),
        recorded("reader", "comptrain_offload_in", 8, 20, **moved),
    ]
    found = transfers_of(events, False, "model", 8, 2)
    assert (found.hidden_s, found.exposed_s) == pytest.approx((0.002, 0.010))
    assert "moved in 2 steps" in str(found)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_profile_without_operations(on_gpu):
    """As of a GPU whose counters a container may not read: the host's operations are no measure of it."""
    events = [recorded("executor", "conv:Conv2D", 0, 10, plane="/host:CPU")] if on_gpu else []
    with pytest.raises(RuntimeError, match="no operation.*CUPTI" if on_gpu else "no operation"):
        transfers_of(events, on_gpu, "model", 8, 1)
