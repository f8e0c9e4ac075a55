"""Wide inner layers run by tiles of rows in either pass: loss and gradients are the same, none of them is whole."""

import numpy as np
import pytest
import tensorflow as tf
import tiled_steps
from tensorflow import keras
from tiled_steps import assert_same, made_whole

import tf_comptrain as ct
from tf_comptrain.graph.tiles import limits, loop
from tf_comptrain.graph.tiles.tiling import tiling_of

SAMPLES, STEPS, WIDTH, INNER = 3, 40, 16, 64
ROWS = SAMPLES * STEPS
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(limits, "LEAST_BYTES", 1 << 14)
    monkeypatch.setattr(limits, "TILE_BYTES", 1 << 13)  # 32 rows, so that the last tile has too many


def gelu(x, weights):
    h = tf.nn.gelu(tf.nn.bias_add(tf.matmul(x, weights[0]), weights[1]), approximate=True)
    return tf.matmul(h, weights[2])


def relu(x, weights):
    return tf.matmul(tf.nn.relu(tf.matmul(x, weights[0]) + weights[1]), weights[2])


def gated(x, weights):
    return tf.matmul(tf.nn.silu(tf.matmul(x, weights[0])) * tf.matmul(x, weights[1]), weights[2])


def by_keras(x, weights):
    h = keras.ops.silu(keras.ops.matmul(x, weights[0]) + weights[1])
    return tf.matmul(tf.nn.softplus(h), weights[2])


LAYERS = {f.__name__: f for f in (gelu, gated, by_keras)}


def shapes_of(layer):
    second = [WIDTH, INNER] if layer is gated else [INNER]
    return [[WIDTH, INNER], second, [INNER, WIDTH]] * 2


PARTS = [f"held/{n}" for n in range(5)]  # names of all that is beside the layers


def network(layer):
    def run(x, *weights):
        for n, block in enumerate((weights[:3], weights[3:6])):
            with tf.name_scope(PARTS[2 * n]):
                flat = tf.reshape(x, [-1, WIDTH])
            made = layer(flat, block)
            with tf.name_scope(PARTS[2 * n + 1]):
                x = tf.math.tanh(x + tf.reshape(made, [-1, STEPS, WIDTH]))
        with tf.name_scope(PARTS[4]):
            return tf.reduce_mean(tf.sin(x) * tf.range(1.0 * WIDTH) / WIDTH)

    return run


def data():
    return tf.constant(RNG.normal(size=(SAMPLES, STEPS, WIDTH)), tf.float32)


def spec(dynamic=True):
    return [None if dynamic else SAMPLES, STEPS, WIDTH]


def run(layer, jit=False, dynamic=True, **how):
    how = how or ({"storage": dict.fromkeys(PARTS, "keep")} if jit else {"codec": "zvc"})
    return tiled_steps.run(network(layer), data(), shapes_of(layer), spec(dynamic), jit, **how)


def whole_layers(function):
    """What a run makes that has the inner values of all rows, and is no weight."""
    return [
        tensor
        for tensor in made_whole(function)
        if tensor.shape.rank > 1 and tensor.shape[-1] == INNER and tensor.shape[0] not in (WIDTH, INNER)
    ]


@pytest.mark.long("*-XLA-*", but=["gated-XLA-any_batch"])
@pytest.mark.parametrize("dynamic", [True, False], ids=["any_batch", "one_batch"])
@pytest.mark.parametrize("jit", [False, True], ids=["executor", "XLA"])
@pytest.mark.parametrize("layer", LAYERS)
def test_loss_and_gradients_are_plains(layer, jit, dynamic):
    plain, tiled, function, crossings = run(LAYERS[layer], jit, dynamic)
    assert_same(plain, tiled)
    assert whole_layers(function) == []
    assert [crossing.storage for crossing in crossings].count("tile") >= 2
    assert not any(crossing.storage == "compress" and crossing.shape[-1] == INNER for crossing in crossings)


def by_dense(codec=None):
    """Trained on five samples in batches of three; its weights, and the report."""
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((STEPS, WIDTH))
    h = keras.layers.Dense(INNER, "gelu")(keras.layers.LayerNormalization()(x))
    x = keras.layers.LayerNormalization()(x + keras.layers.Dense(WIDTH)(h))
    model = keras.Model(inputs, keras.layers.GlobalAveragePooling1D()(x))
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    report = ct.compress_model(model, codec=codec) if codec else None
    random = np.random.default_rng(0)
    x, y = (random.normal(size=(5, *sizes)).astype(np.float32) for sizes in ((STEPS, WIDTH), (WIDTH,)))
    model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(SAMPLES), epochs=2, verbose=0)
    return model.get_weights(), report


def test_batches_of_a_dataset_whose_last_one_is_smaller(monkeypatch):
    """Where only a run says how many samples there are, tiles have as many rows as elsewhere."""
    tilings = []
    cut = tiling_of
    monkeypatch.setattr(loop, "tiling_of", lambda *args: tilings.append(cut(*args)) or tilings[-1])
    plain, _ = by_dense()
    ours, report = by_dense("zvc")
    assert "tile" in [row.storage for row in report.rows]
    assert tilings and all(tiling.samples is None for tiling in tilings)
    for its, own in zip(plain, ours):
        np.testing.assert_allclose(own, its, atol=1e-5)


def test_errors_are_those_of_the_bound():
    plain, tiled, function, _ = run(gelu, storage="compress")
    assert whole_layers(function) == []
    norms = [(np.linalg.norm(ours - its), np.linalg.norm(its)) for ours, its in zip(tiled[1], plain[1])]
    assert 0 < max(error / norm for error, norm in norms) < 0.1


def test_signs_of_a_relu_are_held_as_bits():
    plain, ours, function, crossings = run(relu, storage="compress")
    assert whole_layers(function)
    assert "tile" not in [crossing.storage for crossing in crossings]
    assert_same(plain, ours, 0.1)


def test_what_is_to_be_kept_is_bit_equal():
    plain, kept, function, _ = run(gelu, storage="keep")
    for ours, its in zip(kept[1], plain[1]):
        np.testing.assert_array_equal(ours, its)
    assert whole_layers(function)
