"""Formulas of activation functions that kernels stand in for: whichever way they are written, and no others."""

import math

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras
from tiled_steps import made_whole, run

import tf_comptrain as ct
from tf_comptrain import _keras
from tf_comptrain.graph.tiles import limits

WIDTH = 192
ROOT = math.sqrt(2 / math.pi)
WRITTEN = {
    "tanh_gelu": [
        lambda x: tf.nn.gelu(x, approximate=True),
        lambda x: keras.ops.gelu(x, approximate=True),
        lambda x: 0.5 * x * (1.0 + tf.tanh(ROOT * (x + 0.044715 * x * x * x))),
        lambda x: x * (0.5 * (1.0 + tf.tanh(ROOT * (x + 0.044715 * tf.pow(x, 3))))),
        lambda x: x * tf.sigmoid(2 * ROOT * x * (1 + 0.044715 * tf.square(x))),
    ],
    "gelu": [
        lambda x: tf.nn.gelu(x),
        lambda x: keras.activations.gelu(x),
        lambda x: 0.5 * x * (1.0 + tf.math.erf(x / math.sqrt(2))),
        lambda x: x * (0.5 * tf.math.erfc(-x * math.sqrt(0.5))),
    ],
    "silu": [
        lambda x: tf.nn.silu(x),
        lambda x: keras.activations.silu(x),
        lambda x: x * tf.sigmoid(x),
    ],
}
CASES = [(kernel, number) for kernel, ways in WRITTEN.items() for number in range(len(ways))]
OTHERS = {
    "another constant": lambda x: 0.5 * x * (1.0 + tf.tanh(ROOT * (x + 0.05 * x * x * x))),
    "quick": lambda x: x * tf.sigmoid(1.702 * x),
    "of a divisor": lambda x: x / (1.0 + tf.exp(-x)),  # which is exact, and so held as it is
    "tanh": lambda x: tf.tanh(x),
    "bounded": lambda x: x * tf.sigmoid(tf.minimum(x, 40.0)),
    "of two": lambda x: x * tf.sigmoid(tf.reverse(x, [0])),
}


def network(function, dtype="float32"):
    """Of a gated unit, in which other gradients stand around the function's."""

    def loss(x, up, gate, down):
        x, up, gate, down = (tf.cast(value, dtype) for value in (x, up, gate, down))
        with tf.name_scope("held/unit/"):
            made = function(tf.matmul(x, up)) * tf.matmul(x, gate)
        return tf.reduce_mean(tf.square(tf.cast(tf.matmul(made, down), tf.float32)))

    return loss


def trained(function, dtype="float32", rows=None, jit=False, **how):
    x = tf.constant(np.random.default_rng(0).normal(size=(64, WIDTH)), tf.float32)
    shapes = [(WIDTH, WIDTH)] * 3
    how = how or {"error_bound": 1e-5}
    return run(network(function, dtype), x, shapes, [rows, WIDTH], jit, **how)[:3]


def kernels_of(function):
    """Types of this package's operations for activations among those that a run needs, each once for each run of it."""
    made = [tensor.op.type for tensor in made_whole(function)]
    return sorted(kind for kind in made if kind.removesuffix("Grad") in NAMES.values())


NAMES = {"tanh_gelu": "Comptrain>TanhGelu", "gelu": "Comptrain>Gelu", "silu": "Comptrain>Silu"}


def assert_close(ours, plain, tolerance):
    for own, its in zip(ours[1], plain[1]):
        assert np.linalg.norm(own - its) <= tolerance * np.linalg.norm(its)


@pytest.mark.parametrize("rows", [64, None], ids=["all_sizes", "any_batch"])
@pytest.mark.parametrize(("kernel", "number"), CASES)
def test_a_kernel_runs_whichever_way_it_is_written(kernel, number, rows):
    """Forward, again for the gradients of the last matrix and of the gate, and its gradient; and no formula beside."""
    plain, ours, function = trained(WRITTEN[kernel][number], rows=rows)
    name = NAMES[kernel]
    assert kernels_of(function) == [name, name, name, f"{name}Grad"]
    left = {tensor.op.type for tensor in made_whole(function)}
    assert not left & {"Tanh", "TanhGrad", "Sigmoid", "SigmoidGrad", "Erf", "Erfc", "Exp"}
    assert_close(ours, plain, 1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kernel", WRITTEN)
def test_of_sixteen_bits(kernel, dtype):
    plain, ours, function = trained(WRITTEN[kernel][0], dtype, error_bound=1e-3)
    assert len(kernels_of(function)) == 4
    assert_close(ours, plain, 0.05 if dtype == "bfloat16" else 0.01)


@pytest.mark.parametrize("name", OTHERS)
def test_another_function_stays(name):
    plain, ours, function = trained(OTHERS[name])
    assert kernels_of(function) == []
    assert_close(ours, plain, 1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_another_function_of_sixteen_bits_stays(dtype):
    """x sigmoid(1.702 x) is 0.02 from GELU, a few units in the last place of these types."""
    assert kernels_of(trained(OTHERS["quick"], dtype, error_bound=1e-3)[2]) == []


def test_a_constant_is_no_number_of_an_operation():
    trained(lambda x: x * tf.sigmoid(x))
    _, _, function = trained(lambda x: 0.0 * tf.sigmoid(x) + tf.tanh(x))
    assert kernels_of(function) == []


def test_functions_that_differ_in_a_number_are_told_apart():
    first, second = WRITTEN["tanh_gelu"][2], OTHERS["another constant"]
    plain, ours, function = trained(lambda x: second(first(x)))
    assert "Comptrain>TanhGelu" in kernels_of(function)
    assert "Tanh" in {tensor.op.type for tensor in made_whole(function)}
    assert_close(ours, plain, 1e-4)


@pytest.mark.parametrize(
    "how",
    [{"codec": "zvc"}, {"storage": {"held/unit": "keep"}}, {"jit": True}],
    ids=["lossless", "keep", "XLA"],
)
def test_where_it_stays_as_it_is_written(how):
    plain, ours, function = trained(WRITTEN["tanh_gelu"][0], **{"error_bound": None, **how})
    assert kernels_of(function) == []
    assert_close(ours, plain, 0.1)


def test_what_is_read_elsewhere_is_made_by_its_formula():
    seen = []

    def function(x):
        tanh = tf.tanh(ROOT * (x + 0.044715 * x * x * x))
        seen.append(tanh)
        return 0.5 * x * (1.0 + tanh) + tf.stop_gradient(tf.reverse(tanh, [0]))

    plain, ours, function = trained(function)
    assert "Comptrain>TanhGelu" not in kernels_of(function)
    assert_close(ours, plain, 1e-4)


def test_in_loops_over_tiles(monkeypatch):
    """Wide inner layers: one loop forward, and one backward that makes the layer again."""
    monkeypatch.setattr(limits, "LEAST_BYTES", 1 << 14)
    monkeypatch.setattr(limits, "TILE_BYTES", 1 << 13)
    shapes = [(16, 64), (64, 16), (16, 16)]

    def loss(x, up, down, last):
        made = tf.matmul(tf.nn.gelu(tf.matmul(x, up), approximate=True), down)
        return tf.reduce_mean(tf.sin(tf.matmul(tf.tanh(made), last)))

    x = tf.constant(np.random.default_rng(0).normal(size=(256, 16)), tf.float32)
    plain, ours, function, _ = run(loss, x, shapes, [256, 16], error_bound=1e-5)
    bodies = [
        _keras.loop_body(op) for op in function.graph.get_operations() if _keras.loop_body(op) is not None
    ]
    kinds = [[op.type for op in body.get_operations()] for body in bodies]
    assert sorted("Comptrain>TanhGelu" in kind for kind in kinds) == [True, True]
    assert sorted("Comptrain>TanhGeluGrad" in kind for kind in kinds) == [False, True]
    assert_close(ours, plain, 1e-4)


def test_gradients_of_gradients():
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(WIDTH), keras.layers.Dense(1)])
    ct.compress_model(model, check=False)
    x = tf.random.stateless_normal([64, WIDTH], [0, 1])

    @tf.function
    def second():
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = model.layers[-1](
                    tf.nn.gelu(model.layers[0](x, training=True), approximate=True), training=True
                )
            penalty = tf.reduce_mean(tf.square(inner.gradient(y, x)))
        return outer.gradient(penalty, model.trainable_variables[:1])

    assert kernels_of(second.get_concrete_function()) == []
    assert np.isfinite(second()[0].numpy()).all()


def softmax_loss(softmax):
    """Of an attention without heads."""

    def loss(x, queries, keys, values):
        with tf.name_scope("held/unit/"):
            scores = tf.matmul(tf.matmul(x, queries), tf.matmul(x, keys), transpose_b=True)
            made = tf.matmul(softmax(0.1 * scores), tf.matmul(x, values))
        return tf.reduce_mean(tf.square(made))

    return loss


SOFTMAX = "Comptrain>SoftmaxGrad"


@pytest.mark.parametrize(
    ("softmax", "count"),
    [
        (tf.nn.softmax, 1),
        (keras.activations.softmax, 1),
        (lambda x: tf.nn.softmax(tf.nn.softmax(x)), 2),
        (lambda x: tf.nn.softmax(x, axis=0), 1),  # TensorFlow makes a softmax over rows of the transposed
        (lambda x: tf.exp(x) / tf.reduce_sum(tf.exp(x), -1, True), 0),
    ],
    ids=["tensorflow", "keras", "two", "columns", "by hand"],
)
def test_the_gradient_of_a_softmax_is_one_operation(softmax, count):
    x = tf.constant(np.random.default_rng(0).normal(size=(256, WIDTH)), tf.float32)
    shapes = [(WIDTH, WIDTH)] * 3
    plain, ours, function = run(softmax_loss(softmax), x, shapes, [256, WIDTH], False, error_bound=1e-5)[:3]
    assert [tensor.op.type for tensor in made_whole(function)].count(SOFTMAX) == count
    assert_close(ours, plain, 1e-3)  # the stream has the same bound for small probabilities


def test_the_gradient_of_a_softmax_stays_where_bits_are_asked_for():
    x = tf.constant(np.random.default_rng(0).normal(size=(256, WIDTH)), tf.float32)
    shapes = [(WIDTH, WIDTH)] * 3
    loss = softmax_loss(tf.nn.softmax)
    plain, ours, function = run(loss, x, shapes, [256, WIDTH], False, codec="zvc")[:3]
    assert SOFTMAX not in {tensor.op.type for tensor in made_whole(function)}
    assert_close(ours, plain, 1e-6)
