"""A recurrence written out in Python: what it makes again for a gradient is a few turns, and not all before."""

import numpy as np
import tensorflow as tf
from steps import Weights, compressed_gradients, plain_gradients

from tf_comptrain.graph.tiles.sizes import KnownSizes

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


def test_what_is_made_again_is_made_of_few_held_tensors():
    weights = Weights([WIDTH, WIDTH], [WIDTH], [WIDTH])
    operations = compressed_gradients(loss, X, weights).graph.get_operations()
    assert sum(op.type == "Comptrain>Decompress" for op in operations) <= 6 * TURNS


def test_sizes_of_a_long_row_of_operations_are_found():
    @tf.function(input_signature=[tf.TensorSpec([None, None, 8])])
    def row(x):
        for _ in range(1500):
            x = x + tf.tanh(x)
        return tf.reshape(x, [tf.shape(x)[0], 16, 8])

    y = row.get_concrete_function().outputs[0]
    assert KnownSizes().of(y) == (None, 16, 8)
