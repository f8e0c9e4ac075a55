"""Gradients of means, which are broadcast where they are added up."""

import numpy as np
import pytest
import tensorflow as tf
from models import optimized_graph
from tensorflow import keras
from tensorflow.keras import layers

import tf_comptrain as ct
from tf_comptrain import _keras
from tf_comptrain.graph.broadcasts import narrow_broadcasts

SHAPE = (4, 32, 32, 16)
X = np.random.default_rng(0).normal(1.0, 0.5, SHAPE).astype("float32")
W = np.random.default_rng(1).normal(size=SHAPE).astype("float32")


def traced(function, narrow, shape=SHAPE, dtype=tf.float32):
    """The gradient of the sum of `function(tanh(x)) W` as a concrete function, rewired or not."""

    def hook(backward):
        if narrow:
            narrow_broadcasts(backward)
        return {}

    @tf.function(input_signature=[tf.TensorSpec(shape, dtype)], autograph=False)
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(tf.tanh(x))  # so that what the tape returns is not the sum itself
        return tape.gradient(y, x, output_gradients=tf.cast(W, dtype))

    with _keras.on_gradients(hook):
        return gradient.get_concrete_function()


def sources_of(*operations):
    """All that operations come from or wait for, and themselves."""
    found, waiting = {}, list(operations)
    while waiting:
        op = waiting.pop()
        if op.name not in found:
            found[op.name] = op
            waiting += [*(tensor.op for tensor in op.inputs), *op.control_inputs]
    return list(found.values())


def repeated(function):
    """Operations that repeat, of those that what is returned comes from."""
    found = sources_of(*(tensor.op for tensor in function.graph.outputs))
    return [op for op in found if op.type in ("Tile", "BroadcastTo")]


def normalized(x, axes=(0, 1, 2)):
    mean, variance = tf.nn.moments(x, axes, keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-3)


# Of four tensors oneDNN's sum has an order of its own: one unit in the last place of what is added up.
FUNCTIONS = {
    "batch normalization": (normalized, 0),
    "four tensors": (lambda x: x * x - tf.reduce_mean(x, (1, 2), keepdims=True) * x, 1),
}


@pytest.fixture(params=[True, False], ids=["optimized", "not optimized"])
def arithmetic_optimization(request):
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": request.param})
    yield
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": True})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", [SHAPE, (None, *SHAPE[1:])], ids=["batch", "unknown batch"])
@pytest.mark.parametrize(("function", "units"), FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_gradients_are_the_same_bits_and_nothing_is_repeated(
    function, units, shape, dtype, arithmetic_optimization
):
    dtype = tf.as_dtype(dtype)
    plain, ours = (traced(function, narrow, shape, dtype) for narrow in (False, True))
    assert repeated(plain) and not repeated(ours)
    x = tf.cast(X, dtype)
    expected, found = (np.asarray(gradient(x), np.float64) for gradient in (plain, ours))
    unit = np.abs(W).max() * 4 * float(np.finfo(dtype.as_numpy_dtype).eps if dtype != tf.bfloat16 else 2**-7)
    np.testing.assert_allclose(found, expected, rtol=0, atol=units * unit)


def corner(x):
    """What is averaged has less than 64 KiB."""
    part = x[:, :2, :2]
    return x + tf.pad(
        part * part - tf.reduce_mean(part, (1, 2), keepdims=True), [[0, 0], [0, 30], [0, 30], [0, 0]]
    )


@pytest.mark.parametrize("axes", [(3,), (1, 2)], ids=["layer", "instance"])
def test_where_each_sample_has_a_mean_of_its_own(axes):
    plain, ours = (traced(lambda x: normalized(x, axes), narrow) for narrow in (False, True))
    assert len(repeated(plain)) == 2 and not repeated(ours)
    np.testing.assert_array_equal(plain(tf.constant(X)), ours(tf.constant(X)))


LEFT = {
    "nothing of the full size": lambda x: (
        tf.reduce_mean(x, 1, keepdims=True) + tf.reduce_mean(x, 2, keepdims=True)
    ),
    "read by a product": lambda x: x * tf.reduce_mean(tf.matmul(x, tf.ones((16, 16))), 1, keepdims=True),
    "small": corner,
    "nine means": lambda x: tf.add_n(
        [x * tf.reduce_mean(x * k, (1, 2), keepdims=True) for k in range(1, 10)]
    ),
}


@pytest.mark.parametrize("function", LEFT.values(), ids=LEFT.keys())
def test_what_cannot_be_broadcast_stays(function):
    plain, ours = (traced(function, narrow) for narrow in (False, True))
    assert len(repeated(plain)) == len(repeated(ours)) > 0
    np.testing.assert_array_equal(plain(tf.constant(X)), ours(tf.constant(X)))


def test_waits_go_over_to_what_stands_in():
    """An operation that waits for a sum, or that a sum waits for, does so after as before."""
    seen = {}

    def hook(backward):
        total = next(op for op in backward.graph.get_operations()[backward.start :] if op.type == "AddN")
        with tf.control_dependencies([total]):
            seen["after"] = tf.no_op("after")
        seen["before"] = tf.no_op("before")
        _keras.wait_for(total, [seen["before"]])
        readers = len(total.outputs[0].consumers())
        narrow_broadcasts(backward)
        (seen["instead"],) = seen["after"].control_inputs
        assert readers and not total.outputs[0].consumers() and seen["instead"].type == "AddV2"
        return {}

    @tf.function(autograph=False)
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = normalized(tf.nn.relu(x))
        return tape.gradient(y, x, output_gradients=tf.constant(W))

    with _keras.on_gradients(hook):
        gradient.get_concrete_function(tf.constant(X))
    assert seen["before"] in sources_of(seen["instead"])


def test_what_waited_for_before_repeating_is_waited_for():
    with tf.Graph().as_default() as graph:
        first = tf.no_op("first")
        with tf.control_dependencies([first]):
            repeated = tf.tile(tf.random.normal((1, 32, 32, 1)), (4, 1, 1, 16))
        total = tf.identity(tf.raw_ops.AddN(inputs=[tf.random.normal(SHAPE), repeated, repeated * 2.0]))
        narrow_broadcasts(
            _keras.BackwardPass(graph, 0, len(graph.get_operations()), (), (), (), False, False)
        )
    before = sources_of(total.op)
    assert first in before and repeated.op not in before


def test_a_train_step_of_batch_normalizations_repeats_nothing():
    keras.utils.set_random_seed(0)
    parts = [
        part for _ in range(2) for part in (layers.Conv2D(16, 3, padding="same"), layers.BatchNormalization())
    ]
    model = keras.Sequential([keras.Input(SHAPE[1:]), *parts, layers.ReLU()])
    model.compile("sgd", "mse", jit_compile=False)
    ct.compress_model(model, storage="offload")
    nodes = optimized_graph(model, X, W).values()
    assert sum(node.op == "Comptrain>Fence" for node in nodes) == 2
    assert not [node.name for node in nodes if node.op in ("Tile", "BroadcastTo") and "norm" in node.name]
