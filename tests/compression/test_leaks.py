"""What compressed models leave behind when they are gone: what plain Keras leaves.

With TF_COMPTRAIN_ALL_LEAKS=1 in the environment 200 traces and 40 models are compared instead of a few, which takes a
quarter of an hour.
"""

import functools
import gc
import os
import weakref

import numpy as np
import pytest
import tensorflow as tf
from models import compiled, images, layers
from tensorflow import keras
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.framework.ops import gradient_registry

import tf_comptrain as ct

ALL = os.environ.get("TF_COMPTRAIN_ALL_LEAKS") == "1"
TRACES, MODELS = (200, 40) if ALL else (8, 2)


def build():
    hidden = [
        layers.Conv2D(16, 3, activation="gelu"),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.Dropout(0.2),
        layers.LayerNormalization(),
        layers.GlobalMaxPooling2D(),
    ]
    return compiled(keras.Sequential([keras.Input((8, 8, 3)), *hidden, layers.Dense(10)]))


def collect():
    """Twice: a model's finalizer looks at its layers once more."""
    gc.collect()
    gc.collect()


def left():
    """Graphs alive, and gradient functions that TensorFlow knows by name."""
    collect()
    graphs = sum(isinstance(thing, FuncGraph) for thing in gc.get_objects())
    return graphs, len(gradient_registry.list())


def left_by_traces(compress, count):
    model = build()
    x, y = map(tf.constant, images(4, size=8))
    if compress:
        ct.compress_model(model)

    def trace():
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = model.compute_loss(y=y, y_pred=model(x, training=True))
            return tape.gradient(loss, [v.value for v in model.trainable_variables])

        tf.function(step)(x, y)

    trace()
    before = left()
    for _ in range(count):
        trace()
    return np.subtract(left(), before)


def test_traces_leave_what_those_of_plain_keras_leave():
    plain, ours = (left_by_traces(compress, TRACES) for compress in (False, True))
    assert (ours <= 1.1 * plain).all(), (ours, plain)


def left_by_models(compress, end):
    """Layers and graphs; gradient functions have names as long as the graphs, which `fit` itself leaves."""
    references = []
    before, _ = left()
    for _ in range(MODELS):
        model = build()
        if compress:
            ct.compress_model(model)
        model.fit(*images(8, size=8), verbose=0)
        references += map(weakref.ref, [model, *model.layers])
        if compress and end == "restored":
            ct.restore_model(model)
        del model
        if end == "cleared":
            keras.backend.clear_session()
    graphs = left()[0] - before
    return np.array([sum(reference() is not None for reference in references), graphs])


@functools.lru_cache
def left_by_plain_models(cleared):
    return left_by_models(False, "cleared" if cleared else "as they are")


@pytest.mark.long("as they are", "cleared")
@pytest.mark.parametrize("end", ["restored", "as they are", "cleared"])
def test_trained_models_are_freed(end):
    plain, ours = left_by_plain_models(end == "cleared"), left_by_models(True, end)
    assert (ours <= 1.1 * plain).all(), (ours, plain)


def test_a_graph_is_differentiated_after_the_function_around_it_is_gone():
    """Its gradient functions live as long as it does."""
    model = build()
    ct.compress_model(model, storage="compress")
    x = tf.constant(images(4, size=8)[0])

    @tf.function
    def inner(x):
        return tf.reduce_sum(model(x, training=True) ** 2)

    def outer(x):
        return inner(x) + tf.reduce_sum(x)

    tf.function(outer)(x)
    collect()
    with tf.GradientTape() as tape:
        loss = inner(x)
    assert all(np.isfinite(grad).all() for grad in tape.gradient(loss, model.trainable_variables))
