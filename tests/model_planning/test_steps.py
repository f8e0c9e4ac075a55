"""Steps that a plan is made from."""

from models import compiled
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.memory.batches import batch_of
from tf_comptrain.model_planning import steps


def test_a_batch_of_before_is_counted_once(monkeypatch):
    """The first step starts without one, and ends with one."""
    calls = [
        (20, 100, 1.0),
        (12, 108, 1.0),
        (11, 108, 1.0),
    ]  # (over the resting level, resting level, seconds)
    monkeypatch.setattr(steps, "measure_calls", lambda step, count: [step(), calls][1])
    model = compiled(keras.Sequential([keras.Input((8,)), keras.layers.Dense(10)]), jit_compile=False)
    ct.compress_model(model)
    x, y = batch_of(model, 4, None)
    assert steps.measure(model, x, y, {}, profile=False).peak_bytes == 12
    calls[2] = 13, 107, 1.0
    assert steps.measure(model, x, y, {}, profile=False).peak_bytes == 13
