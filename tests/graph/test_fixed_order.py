"""Large operations of a plan's step run one after the other, so that its memory is that of every trace."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain import _keras
from tf_comptrain.compression.instrumentation import compressed_models
from tf_comptrain.graph.order import ancestors
from tf_comptrain.graph.passes import fixed_order
from tf_comptrain.memory.batches import random_batch

layers = keras.layers
SIDE = 128  # a matrix is of 64 kB


def ordered(function, *shapes):
    """The graph of a function whose large operations run in one order, and those."""
    graphs = []

    def traced(*args):
        graph = tf.compat.v1.get_default_graph()
        graphs.append(graph)
        _keras.when_ordered(graph, fixed_order.fix_order)
        return function(*args)

    with _keras.on_gradients(lambda backward: {}):
        tf.function(traced, autograph=False).get_concrete_function(*map(tf.TensorSpec, shapes))
    return graphs[0], large_operations(graphs[0])


def large_operations(graph):
    return [op for op in graph.get_operations() if fixed_order.makes_a_large_tensor(op)]


def comes_before(graph, first, second):
    names = {op.name for op in graph.get_operations()}
    return first.name in ancestors([second], names)


def pairs_without_order(graph, operations):
    return [
        (a.name, b.name)
        for a in operations
        for b in operations
        if a.name < b.name and not comes_before(graph, a, b) and not comes_before(graph, b, a)
    ]


def test_branches_run_one_after_the_other():
    graph, large = ordered(lambda x: [tf.exp(x), tf.sin(x), tf.reduce_sum(tf.cos(x))], [SIDE, SIDE])
    assert [op.type for op in large] == ["Exp", "Sin", "Cos"]
    assert pairs_without_order(graph, large) == []


def test_what_frees_more_than_it_makes_comes_first():
    """Of two products the first is made small before the second is made."""

    def step(x):
        first, second = tf.matmul(x, x), tf.matmul(x, x, transpose_a=True)
        sums = [tf.reduce_sum(tf.reshape(each, [-1, SIDE, 1, SIDE]), 0) for each in (second, first)]
        return [tf.reduce_max(each) for each in sums]

    graph, large = ordered(step, [4 * SIDE, 4 * SIDE])
    products = [op for op in large if op.type == "MatMul"]
    sums = {op.inputs[0].op.inputs[0].op.name: op for op in large if op.type == "Sum"}
    assert comes_before(graph, sums[products[0].name], products[1])


def test_each_device_has_an_order_of_its_own():
    def step(x):
        with tf.device("CPU:0"):
            here = tf.exp(x)
        return [here, tf.sin(x), tf.cos(x)]

    graph, (exp, sin, cos) = ordered(step, [SIDE, SIDE])
    assert comes_before(graph, sin, cos)
    assert not comes_before(graph, exp, sin) and not comes_before(graph, sin, exp)


def test_nothing_runs_that_nobody_asks_for():
    def step(x):
        tf.cos(x)
        return [tf.exp(x), tf.sin(x)]

    graph, large = ordered(step, [SIDE, SIDE])
    (unused,) = (op for op in large if op.type == "Cos")
    assert not any(comes_before(graph, unused, op) for op in large if op is not unused)


def test_a_variable_is_read_before_it_changes():
    """TensorFlow orders what touches a variable; the order of large operations goes with that."""
    weight = tf.Variable(tf.ones([SIDE, SIDE]))

    def step(x):
        before = weight.read_value()
        weight.assign(weight * 2.0)
        return tf.matmul(x, before), weight + x

    with _keras.on_gradients(lambda backward: {}):

        @tf.function(autograph=False)
        def run(x):
            _keras.when_ordered(tf.compat.v1.get_default_graph(), fixed_order.fix_order)
            return step(x)

        product, total = run(tf.eye(SIDE))
    np.testing.assert_array_equal(product, tf.ones([SIDE, SIDE]))
    np.testing.assert_array_equal(total, 2 * tf.ones([SIDE, SIDE]) + tf.eye(SIDE))


def network():
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((16, 16, 32))
    for _ in range(2):
        y = layers.Conv2D(32, 3, padding="same", activation="relu")(x)
        x = layers.Add()([layers.Conv2D(32, 1)(x), layers.BatchNormalization()(y)])
    model = keras.Model(inputs, layers.Dense(4)(layers.GlobalAveragePooling2D()(x)))
    model.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=False)
    return model


@pytest.mark.parametrize(("codec", "plan"), [("plane", True), ("plane", False), ("zvc", True)])
def test_the_steps_of_plans_are_ordered_unless_bits_are_asked_for(codec, plan):
    model, graphs = network(), []
    ct.compress_model(model, codec=codec, check=False)
    compressed_models[model].held.wishes.is_plan = plan
    with _keras.on_gradients(lambda backward: graphs.append(backward.graph)):
        model.train_on_batch(*random_batch(model, 16))
    graph = graphs[-1]
    operations = graph.get_operations()
    live = ancestors([op for op in operations if op.op_def.is_stateful], {op.name for op in operations})
    large = [op for op in large_operations(graph) if op.name in live]
    assert (pairs_without_order(graph, large) == []) is (plan and codec == "plane")
