"""Gradients of a function of a model's weights, plain and rewired, in traced steps."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.compression.instrumentation import instrumentation


class Found(NamedTuple):
    """A rewired step: its gradients, its graph before TensorFlow's optimizer, and what crossed."""

    gradients: list
    graph: tf.Graph
    crossings: tuple
    model: Any


class Weights(keras.Model):
    """A model that is nothing but weights of these shapes, with the same values each time."""

    def __init__(self, *shapes):
        super().__init__()
        rng = np.random.default_rng(1)
        self.parts = [self.add_weight(shape=shape, name=f"w{k}") for k, shape in enumerate(shapes)]
        for part, shape in zip(self.parts, shapes):
            part.assign(rng.normal(size=shape) * 0.3 + 0.5)


def gradient_step(loss, model, **function):
    @tf.function(autograph=False, **function)
    def step(x):
        with tf.GradientTape() as tape:
            value = loss(x, *(part.value for part in model.parts))
        return tape.gradient(value, [part.value for part in model.parts])

    return step


def plain_gradients(loss, x, model, traced=False):
    """Eagerly by default, which takes less time than a trace and rounds in other places."""
    step = gradient_step(loss, model)
    return [g.numpy() for g in (step if traced else step.python_function)(x)]


def compressed_gradients(loss, x, model, function=None, **how):
    """A `Found`; the model is restored."""
    ct.compress_model(model, **how)
    step = gradient_step(loss, model, **(function or {}))
    try:
        gradients = [g.numpy() for g in step(x)]
        graph = step.get_concrete_function(x).graph
        return Found(gradients, graph, instrumentation(model).held.crossings, model)
    finally:
        ct.restore_model(model)
