"""What a step that XLA compiles makes when it is needed, and not before."""

import keras
import tensorflow as tf

import tf_comptrain as ct
from tf_comptrain.graph.tiles.limits import tile_sizes

LAYERS, WIDTH, PIXELS = 6, 256, 4


def planned_bytes(monkeypatch, turns_late):
    if not turns_late:
        monkeypatch.setattr("tf_comptrain.graph.passes.xla._turn_late", lambda step: None)
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Conv2D(WIDTH, 3, padding="same", activation="relu") for _ in range(LAYERS)]
    model = keras.Sequential([keras.Input((PIXELS, PIXELS, WIDTH)), *layers])
    model.compile("sgd", "mse", jit_compile=True)
    ct.compress_model(model)
    x = tf.random.stateless_normal((2, PIXELS, PIXELS, WIDTH), (0, 1))
    return ct.memory.memory_analysis(model, x, x).temporary_bytes


def test_kernels_are_turned_when_their_layer_runs(monkeypatch):
    """Those of all layers at once would be larger than all else of this model."""
    kernel = 4 * 9 * WIDTH**2
    late = planned_bytes(monkeypatch, True)
    assert planned_bytes(monkeypatch, False) - late >= (LAYERS // 2) * kernel


def test_tiles_are_smaller_where_small_ones_cost_little():
    executor, xla, gpu = tile_sizes(False, False), tile_sizes(True, False), tile_sizes(True, True)
    assert xla.bytes < executor.bytes < gpu.bytes
    assert xla.least_bytes < executor.least_bytes
    assert gpu.of_sum > executor.of_sum
    assert gpu.part_bytes is None  # one product adds to the whole sum
