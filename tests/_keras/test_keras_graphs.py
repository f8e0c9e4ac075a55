"""`_keras/graphs.py`: a graph that is being traced, changed."""

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from tf_comptrain import _keras


@pytest.fixture
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def run(graph, *tensors):
    with tf.compat.v1.Session(graph=graph) as session:
        return session.run(tensors)


def test_device_of_an_operation(graph):
    op = tf.exp(tf.ones(2)).op
    _keras.set_device(op, "/device:CPU:0")
    assert op.device == "/device:CPU:0"


def test_an_input_is_another_tensor(graph):
    y = tf.constant(1.0) - tf.constant(2.0)
    _keras.set_input(y.op, 1, tf.constant(5.0))
    assert run(graph, y) == (-4.0,)


def test_operations_wait(graph):
    early, late = tf.constant(1.0).op, tf.exp(tf.constant(2.0)).op
    _keras.wait_for(late, [early])
    assert late.control_inputs == [early]
    _keras.wait_for_nothing(late)
    assert late.control_inputs == []


def test_operations_wait_for_another(graph):
    old, new, third = (tf.constant(float(k)).op for k in range(3))
    x = tf.constant(1.0)
    with tf.control_dependencies([old, third]):
        waits = tf.exp(x).op
    assert _keras.operations_waiting_for(old) == [waits]
    _keras.wait_instead(old, new)
    assert set(waits.control_inputs) == {new, third} and _keras.operations_waiting_for(old) == []


def test_an_operation_runs_again(graph):
    y = tf.linalg.matmul(tf.ones((2, 3)), tf.ones((4, 3)), transpose_b=True)
    (again,) = _keras.run_again(y.op, [2.0 * y.op.inputs[0], y.op.inputs[1]], "late")
    assert again.op.type == y.op.type and again.shape == y.shape and again.name.startswith("late/")
    first, second = run(graph, y, again)
    assert np.array_equal(second, 2.0 * first)
    wider = tf.compat.v1.placeholder_with_default(tf.ones((5, 3)), (None, 3))
    (other,) = _keras.run_again(y.op, [wider, y.op.inputs[1]], "wide", shaped=False)
    assert other.shape.as_list() == [None, 4]


def test_what_a_function_reads_from_outside():
    variable, tensor, other = tf.Variable(1.0), tf.ones(2), tf.ones(2)
    found = {}

    @tf.function
    def outer(x):
        @tf.function
        def inner(x):
            y = x * variable
            found["graph"] = tf.compat.v1.get_default_graph()
            return y

        return inner(x + tf.reduce_sum(tensor))

    outer(tf.constant(1.0))
    outside = _keras.captured_from_outside(found["graph"])
    assert {id(variable.handle), id(tensor)} <= outside and id(other) not in outside


def test_variables_that_a_function_reads():
    variable, unread = tf.Variable(1.0), tf.Variable(2.0)
    graph = tf.function(lambda x: x * variable).get_concrete_function(tf.ones(2)).graph
    ((name, device),) = _keras.captured_variables(graph, [variable, unread]).items()
    assert graph.get_operation_by_name(name).type == "Placeholder"
    assert device == variable.device


def test_what_is_kept_with_a_graph():
    class Made:
        pass

    graph = tf.Graph()
    owner = Made()
    made = _keras.kept_with(graph, owner, Made)
    assert _keras.kept_with(graph, owner, Made) is made
    assert _keras.kept_with(graph, graph, Made) is not made  # another owner
    seen = []
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    strategy.run(lambda graph=graph, seen=seen: seen.append(_keras.kept_with(graph, owner, Made)))
    assert seen == [made]  # replica 0
    ended = weakref.ref(made)
    del graph, made, seen
    gc.collect()
    assert ended() is None


def test_body_of_a_loop():
    found = {}

    @tf.function
    def looped(x):
        y = tf.while_loop(lambda x: x < 9.0, lambda x: 2.0 * x, [x])[0]
        while y.op.type == "Identity":
            y = y.op.inputs[0]
        found["loop"], found["other"] = _keras.loop_body(y.op), _keras.loop_body((2.0 * y).op)
        found["outputs"] = len(y.op.outputs)
        return y

    looped(tf.constant(1.0))
    assert found["other"] is None
    assert "Mul" in [op.type for op in found["loop"].get_operations()]
    assert len(found["loop"].outputs) == found["outputs"]


def test_an_operation_runs_outside_of_its_graph(graph):
    joined = tf.concat([tf.constant([1, 2]), tf.constant([3])], 0)
    several = tf.raw_ops.TopKV2(input=tf.constant([1.0, 3.0, 2.0]), k=2)
    (whole,) = _keras.run_eagerly(joined.op, [[4, 5], [6], 0])
    values, places = _keras.run_eagerly(several.values.op, [[5.0, 7.0, 6.0], 2])
    assert whole.numpy().tolist() == [4, 5, 6]
    assert values.numpy().tolist() == [7.0, 6.0] and places.numpy().tolist() == [1, 2]


def test_what_waits_for_one_operation_waits_for_another_or_for_none(graph):
    first, second, third = (tf.constant(value).op for value in (1.0, 2.0, 3.0))
    with tf.control_dependencies([first]):
        moved, freed = (tf.exp(third.outputs[0]).op for _ in range(2))
    _keras.wait_instead(first, second, free=[freed.name])
    assert moved.control_inputs == [second] and freed.control_inputs == []


def test_the_order_is_kept():
    def config():
        options = context.context().function_call_options
        return tf.compat.v1.ConfigProto.FromString(options.config_proto_serialized)

    before = config()
    with _keras.order_kept():
        rewriting = config().graph_options.rewrite_options
        assert rewriting.arithmetic_optimization == rewriting.OFF
        assert tf.function(lambda x: x * 2.0 + x * 3.0)(tf.constant(2.0)) == 10.0
    assert config() == before
