"""Wide inner layers run by tiles of rows in either pass: loss and gradients are the same, none of them is whole."""

import numpy as np
import pytest
import tensorflow as tf
from steps import Weights
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.compression.instrumentation import instrumentation
from tf_comptrain.graph.tiles import limits, loop

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


def model_of(layer):
    model = Weights(*shapes_of(layer))
    rng = np.random.default_rng(2)
    for part in model.parts:
        part.assign(rng.normal(size=part.shape) / part.shape[0] ** 0.5)
    return model


def step_of(model, loss, jit, dynamic):
    shape = [None if dynamic else SAMPLES, STEPS, WIDTH]

    @tf.function(autograph=False, jit_compile=jit, input_signature=[tf.TensorSpec(shape)])
    def step(x):
        with tf.GradientTape() as tape:
            value = loss(x, *(part.value for part in model.parts))
        return value, tape.gradient(value, [part.value for part in model.parts])

    return step


def run(layer, jit=False, dynamic=True, **how):
    """What a step returns, plain and compressed, the graph of the second, and how tensors are held."""
    x = tf.constant(RNG.normal(size=(SAMPLES, STEPS, WIDTH)), tf.float32)
    plain = step_of(model_of(layer), network(layer), jit, dynamic)(x)
    model = model_of(layer)
    ct.compress_model(
        model,
        check=False,
        **(how or ({"storage": dict.fromkeys(PARTS, "keep")} if jit else {"codec": "zvc"})),
    )
    step = step_of(model, network(layer), jit, dynamic)
    made = step(x)
    return plain, made, step.get_concrete_function(), instrumentation(model).held.crossings


def whole_layers(function):
    """What a run makes that has the inner values of all rows."""
    found, seen = [], set()
    waiting = [t.op for t in function.graph.outputs]
    while waiting:
        op = waiting.pop()
        if op.name not in seen:
            seen.add(op.name)
            waiting += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
            found += [t for t in op.outputs if t.shape.rank and t.shape[-1] == INNER and is_of_rows(t)]
    return found


def is_of_rows(tensor):
    is_weight = tensor.shape[0] in (WIDTH, INNER) or tensor.shape.rank < 2
    return tensor.dtype.is_floating and not is_weight and not tensor.op.name.startswith(loop.TILES_SCOPE)


def assert_same(plain, tiled, tolerance=1e-5):
    np.testing.assert_allclose(tiled[0], plain[0], rtol=1e-6, atol=1e-8)
    for ours, its in zip(tiled[1], plain[1]):
        assert np.linalg.norm(ours - its) <= tolerance * np.linalg.norm(its)


@pytest.mark.parametrize("dynamic", [True, False], ids=["any_batch", "one_batch"])
@pytest.mark.parametrize("jit", [False, True], ids=["executor", "XLA"])
@pytest.mark.parametrize("layer", LAYERS)
def test_loss_and_gradients_are_plains(layer, jit, dynamic):
    plain, tiled, function, crossings = run(LAYERS[layer], jit, dynamic)
    assert_same(plain, tiled)
    assert whole_layers(function) == []
    assert [crossing.storage for crossing in crossings].count("tile") >= 2
    assert not any(crossing.storage == "compress" and crossing.shape[-1] == INNER for crossing in crossings)


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
    model = model_of(gelu)
    ct.compress_model(model, check=False, storage="keep")
    x = tf.constant(RNG.normal(size=(SAMPLES, STEPS, WIDTH)), tf.float32)
    steps = [step_of(each, network(gelu), False, True)(x) for each in (model_of(gelu), model)]
    for its, ours in zip(*(gradients for _, gradients in steps)):
        np.testing.assert_array_equal(ours, its)
