"""Which tensors are those of products."""

import pytest
import tensorflow as tf

from tf_comptrain.graph.gradient_operations import is_product

MADE = {
    "a convolution": (lambda x: tf.nn.conv2d(x, tf.ones((1, 1, 8, 8)), 1, "SAME"), True),
    "with a bias": (
        lambda x: tf.nn.bias_add(tf.nn.conv2d(x, tf.ones((1, 1, 8, 8)), 1, "SAME"), tf.ones(8)),
        True,
    ),
    "of sequences": (lambda x: tf.tensordot(x, tf.ones((8, 8)), 1) + tf.ones(8), True),
    "of heads": (lambda x: tf.reshape(tf.matmul(x, tf.ones((8, 8))), (-1, 4, 2, 4)) + tf.ones((2, 4)), True),
    "a ReLU of one": (lambda x: tf.nn.relu(tf.matmul(x, tf.ones((8, 8)))), False),
    "a sum with another": (lambda x: tf.matmul(x, tf.ones((8, 8))) + x, False),
    "an input": (lambda x: x + tf.ones(8), False),
    "of unknown rank": (lambda x: tf.raw_ops.PlaceholderWithDefault(input=x, shape=None) + x, False),
}


@pytest.mark.parametrize(("make", "expected"), MADE.values(), ids=MADE.keys())
def test_is_product(make, expected):
    with tf.Graph().as_default():
        assert is_product(make(tf.ones((2, 4, 4, 8)))) is expected
