"""A recurrence written out in Python: what it makes again for a gradient is a few turns, and not all before."""

import numpy as np
import tensorflow as tf
from steps import Weights, compressed_gradients, plain_gradients

TURNS, WIDTH = 24, 64
X = tf.constant(np.random.default_rng(0).normal(size=(32, TURNS, WIDTH)), tf.float32)


def loss(x, into, decay, scale):
    x, state, made = tf.matmul(x, into), tf.zeros((32, WIDTH)), []
    decay = tf.sigmoid(decay)
    for turn in range(TURNS):
        state = state * decay + (1.0 - decay) * x[:, turn]
        made.append(tf.reduce_mean(tf.tanh(state * scale)))
    return tf.add_n(made)


def test_the_row_of_operations_that_run_again_is_short():
    weights = Weights([WIDTH, WIDTH], [WIDTH], [WIDTH])
    plain = plain_gradients(loss, X, weights)
    found = compressed_gradients(loss, X, weights)
    for ours, its in zip(found.gradients, plain):
        assert np.linalg.norm(ours - its) <= 0.1 * np.linalg.norm(its)
    again = [op for op in found.graph.get_operations() if op.name.startswith("rebuilt/")]
    assert len(again) <= 20 * TURNS
    assert any(row.storage == "compress" for row in found.crossings)
