"""Where a constant or trained weights make a function steep, the bound follows."""

import numpy as np
import pytest
import tensorflow as tf
from steps import Weights, compressed_gradients, gradient_step, plain_gradients

import tf_comptrain as ct
from tf_comptrain.compression.instrumentation import instrumentation
from tf_comptrain.storage import DEFAULT_BOUNDS

RNG = np.random.default_rng(0)
STEEP = {
    "softmax": lambda y: tf.nn.softmax(30.0 * y),
    "temperature": lambda y: tf.nn.softmax(y / 0.05),
    "read_besides": lambda y: tf.nn.softmax(30.0 * y) + tf.matmul(y, y, transpose_b=True)[..., :16],
    "of_a_function": lambda y: tf.nn.softmax(30.0 * tf.tanh(y)),
    "tangent": lambda y: tf.tanh(20.0 * y),
    "sine": lambda y: tf.sin(8.0 * y) * y,
}


def steps_of(loss, x, model, jit):
    function = {"jit_compile": jit}
    found = compressed_gradients(loss, x, model, function)
    pairs = zip(found.gradients, plain_gradients(loss, x, model))
    return found, [np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in pairs]


def weights(shapes, scales):
    model = Weights(*shapes)
    for part, scale in zip(model.parts, scales):
        part.assign(scale * RNG.normal(size=part.shape) / np.sqrt(part.shape[0]))
    return model


@pytest.mark.parametrize("jit", [False, True], ids=["executor", "XLA"])
@pytest.mark.parametrize("name", STEEP)
def test_a_constant_before_a_function(name, jit):
    x = tf.constant(RNG.normal(size=(16, 64, 16)), tf.float32)

    def loss(x, first):
        made = STEEP[name](tf.matmul(x, first))
        return tf.reduce_mean(tf.square(tf.tile(made, [1, 1, 8]) - tf.range(8.0 * made.shape[-1]) / 100.0))

    _, errors = steps_of(loss, x, weights([[16, 16]], [1.0]), jit)
    assert max(errors) <= 0.2


def attention(x, first, queries, keys, values, last):
    h = tf.tanh(tf.matmul(x, first))
    q, k, v = (tf.matmul(h, w) for w in (queries, keys, values))
    probabilities = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / 4.0)
    made = tf.matmul(tf.matmul(probabilities, v), last)
    return tf.reduce_mean(tf.sin(tf.tile(made, [1, 1, 8])) * tf.range(128.0) / 64.0)


@pytest.mark.long("16-*")
@pytest.mark.parametrize("jit", [False, True], ids=["executor", "XLA"])
@pytest.mark.parametrize("length", [16, 64])  # softmax is held, and made again from queries and keys
def test_attention_with_queries_ten_times_larger(length, jit):
    errors = []
    for _ in range(4):
        x = tf.constant(RNG.normal(size=(16, length, 16)), tf.float32)
        model = weights([[16, 16]] * 5, [1.0, 10.0, 1.0, 1.0, 1.0])
        errors.append(steps_of(attention, x, model, jit)[1])
    assert max(np.mean(errors, axis=0)) <= 0.2


def test_ordinary_attention_has_the_default_bounds():
    """A constant below one leaves bounds as they are."""
    x = tf.constant(RNG.normal(size=(16, 64, 16)), tf.float32)
    model = weights([[16, 16]] * 5, [1.0] * 5)
    ct.compress_model(model)
    gradient_step(attention, model).get_concrete_function(x)
    sites = instrumentation(model).held.sites.values()
    assert "nonlinear" in {site.kind for site in sites}
    assert all(site.bound == DEFAULT_BOUNDS[site.kind] for site in sites)


def test_a_bound_that_was_asked_for_stays():
    x = tf.constant(RNG.normal(size=(16, 64, 16)), tf.float32)
    model = weights([[16, 16]], [1.0])
    ct.compress_model(model, error_bound=ct.ErrorBound(0.05))
    gradient_step(
        lambda x, w: tf.reduce_mean(STEEP["read_besides"](tf.matmul(x, w)) ** 2), model
    ).get_concrete_function(x)
    assert {site.bound.value for site in instrumentation(model).held.sites.values()} == {0.05}
