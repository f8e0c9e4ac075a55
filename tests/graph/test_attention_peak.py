"""The scores of an attention, which are made again in the backward pass, are there once at a time."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.memory.explain import trace_model

BATCH, HEADS, LENGTH = 8, 4, 256
SCORES_BYTES = BATCH * HEADS * LENGTH**2 * 4


@pytest.fixture(scope="module", params=[0.0, 0.1])
def attention(request):
    """(model, batch): an attention without and with dropout, which Keras computes in two ways."""
    inputs = keras.Input((LENGTH, 32))
    x = keras.layers.MultiHeadAttention(HEADS, 8, dropout=request.param)(inputs, inputs)
    model = keras.Model(inputs, keras.layers.Dense(8)(inputs + x))
    model.compile("sgd", "mse", jit_compile=False)
    ct.compress_model(model, check=False)
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(size=(BATCH, LENGTH, 32)).astype("float32"))
    return model, (x, tf.zeros((BATCH, LENGTH, 8)))


def test_one_copy_of_the_scores_is_alive(attention):
    model, batch = attention
    model.train_on_batch(*batch)
    trace = trace_model(model, *batch)
    at_once = [
        [
            event.op
            for event in trace.live_at(k)
            if "rebuilt/" in event.op and event.requested_bytes >= SCORES_BYTES
        ]
        for k in range(len(trace.events))
    ]
    assert any(at_once)
    assert max(map(len, at_once)) == 1, max(at_once, key=len)


def test_scores_are_made_again_when_their_first_reader_is_done(attention):
    """The gradient of the values reads them first, and what makes the gradient of the probabilities waits for it."""
    model, batch = attention
    step = tf.function(lambda x, y: model.train_step((x, y)), autograph=False)
    graph = step.get_concrete_function(*batch).graph
    operations = {op.name: op for op in graph.get_operations()}
    again = [op for op in operations.values() if op.type == "Softmax" and op.name.startswith("rebuilt/")]
    assert again
    assert not any(op.type == "Transpose" and op.name.startswith("rebuilt/") for op in operations.values())
    of_values, *later = (op for first in again[:1] for t in first.outputs for op in t.consumers())
    if len(again) > 1:  # a second time, for the gradient of the softmax
        assert not later and any(of_values in op.control_inputs for op in operations.values())


def test_a_product_made_transposed_has_the_same_gradient():
    def scores(q, k):
        return tf.transpose(tf.matmul(k, q, transpose_b=True), [0, 2, 1])

    class Attention(keras.Model):
        def __init__(self):
            super().__init__()
            init = keras.initializers.RandomNormal(0.3, seed=1)
            self.w = [self.add_weight(shape=(16, 16), initializer=init) for _ in range(3)]

        def call(self, x):
            q, k, v = (tf.matmul(x, w.value) for w in self.w)
            return tf.matmul(tf.nn.softmax(scores(q, k)), v)

    x = tf.constant(np.random.default_rng(0).normal(size=(8, 64, 16)).astype("float32"))
    found = []
    for compress in (False, True):
        model = Attention()
        if compress:
            ct.compress_model(model, error_bound=1e-6, check=False)

        @tf.function(autograph=False)
        def step(x, model=model):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(x) ** 2)
            return tape.gradient(loss, [w.value for w in model.w])

        found.append([gradient.numpy() for gradient in step(x)])
        names = [op.name for op in step.get_concrete_function(x).graph.get_operations()]
    assert any(name.startswith("rebuilt/transposed") for name in names)
    for ours, plain in zip(found[1], found[0]):
        np.testing.assert_allclose(ours, plain, atol=1e-4 * np.abs(plain).max())
