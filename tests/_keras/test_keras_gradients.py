"""`_keras/gradients.py`: tf.custom_gradient, of which nothing stays."""

import gc
import weakref

import tensorflow as tf

from tf_comptrain import _keras


class Held:
    factor = 5.0


def step_with(held):
    @_keras.custom_gradient
    def fn(x):
        return 2.0 * x, lambda dy: held.factor * dy

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = fn(x)
        return y, tape.gradient(y, x)

    return step


def test_the_gradient_is_the_functions_own():
    step = step_with(Held())
    for one in (step, tf.function(step)):
        assert [float(value) for value in one(tf.constant(1.0))] == [2.0, 5.0]


def test_what_it_names_ends_with_the_graph():
    held = Held()
    ended, step = weakref.ref(held), tf.function(step_with(held))
    step(tf.constant(1.0))
    del held
    gc.collect()
    assert ended() is not None  # the graph may be differentiated again
    del step
    gc.collect()
    assert ended() is None
