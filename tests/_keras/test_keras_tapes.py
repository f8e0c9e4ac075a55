"""`_keras/tapes.py`: where in a graph each backward pass stands."""

import numpy as np
import pytest
import tensorflow as tf

from tf_comptrain import _keras


def gradient(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.exp(x) * tf.sin(x)
    return tape.gradient(y, x)


def test_a_hook_is_told_of_a_backward_pass():
    told, eager = [], []
    x = tf.constant([1.0, 2.0])
    with _keras.on_gradients(told.append, eager.extend):
        plain = gradient(x)
        traced = tf.function(gradient)(x)
    tf.function(gradient)(x)  # behind it
    assert len(eager) == 1 and eager[0] is x
    (backward,) = told
    assert isinstance(backward, _keras.BackwardPass)
    types = [op.type for op in backward.operations()]
    assert "Cos" in types and "Sin" not in types  # the gradient, and nothing of the forward pass
    assert backward.seeds[0].op.type == "OnesLike" or backward.seeds[0].op.type == "Const"
    assert backward.sources[0].graph is backward.graph and len(backward.gradients) == 1
    assert not backward.recorded and not backward.xla
    assert np.array_equal(plain, traced)


def test_a_hook_replaces_gradients():
    def hook(backward):
        (dx,) = backward.gradients
        return {dx.name: 100.0 * dx}

    x = tf.constant([1.0, 2.0])
    with _keras.on_gradients(hook):
        replaced = tf.function(gradient)(x)
    np.testing.assert_allclose(replaced, 100.0 * gradient(x), rtol=1e-6)


def test_a_second_gradient_is_recorded():
    told = []

    def second(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            dx = gradient(x)
        return tape.gradient(dx, x)

    with _keras.on_gradients(told.append):
        tf.function(second)(tf.constant([1.0, 2.0]))
    assert [backward.recorded for backward in told] == [True, False]


def test_xla_is_seen_in_the_trace():
    found = []

    def ask(x):
        found.append(_keras.under_xla())
        return 2.0 * x

    for jit_compile in (True, False):
        tf.function(ask, jit_compile=jit_compile).get_concrete_function(tf.ones(2))
    assert found == [True, False] and not _keras.under_xla()


def test_tapes_say_where_they_began():
    _keras.note_tapes()
    found = []

    @tf.function
    def inside(x):
        with tf.GradientTape():
            found.extend(_keras.graphs_of_tapes())
            found.append(tf.compat.v1.get_default_graph())
        return x

    with tf.GradientTape() as tape:
        inside(tf.ones(2))
        with tape.stop_recording():
            assert _keras.graphs_of_tapes() == []
    assert _keras.graphs_of_tapes() == []
    assert len(found) == 3 and found[1] is found[2] and found[0] is not found[1]


def traced(told, then):
    """Traces a function that has `told` told of its end, and then does something in the trace."""

    @tf.function(autograph=False)
    def step(x):
        y = tf.exp(x)
        _keras.at_end_of_trace(y.graph, told.append)
        return then(y)

    with _keras.on_gradients(lambda backward: {}):
        return step(tf.constant([1.0, 2.0]))


def test_the_end_of_a_trace_knows_what_is_returned():
    told = []
    traced(told, lambda y: (y + 1.0, tf.constant(2)))
    ((first, second),) = told
    assert {first.op.inputs[0].op.type, second.op.inputs[0].op.type} == {"AddV2", "Const"}


def test_a_trace_that_fails_has_no_end():
    def stop(y):
        raise ValueError("stopped")

    told = []
    with pytest.raises(ValueError, match="stopped"):
        traced(told, stop)
    assert told == []


def test_a_trace_is_ended_early_once():
    told = []

    def end(y):
        _keras.end_trace(y.graph, [y])
        assert told == [[y]]
        return y

    traced(told, end)
    assert len(told) == 1


def test_a_tape_does_not_see_what_is_made_unrecorded():
    x = tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        with _keras.stop_recording():
            unseen = x * x
        y = x * unseen
    assert tape.gradient(y, x) == 4.0


def test_what_is_done_once_a_graph_is_ordered_sees_that_order():
    counter, told, kinds = tf.Variable(0.0), [], ("AssignAddVariableOp", "ReadVariableOp")

    def ordered(graph, returned):
        add, read = (next(op for op in graph.get_operations() if op.type == kind) for kind in kinds)
        told.append((add in read.control_inputs, [tensor.shape.rank for tensor in returned]))

    @tf.function(autograph=False)
    def step(x):
        counter.assign_add(1.0)
        for _ in range(2):
            _keras.when_ordered(tf.compat.v1.get_default_graph(), ordered)
        return x, counter.read_value()

    with _keras.on_gradients(lambda backward: {}):
        step(tf.constant([1.0, 2.0]))
    assert told == [(True, [1, 0])]
