"""What is known of a step before any pass."""

import tensorflow as tf
from toy import dense, toy


def test_forward_and_backward_pass_are_told_apart():
    with toy(dense) as toy_step:
        step, h = toy_step.step, toy_step.tensors["h"]
        gradient = toy_step.op("ReluGrad")
        assert not step.is_late(h.op) and step.is_late(gradient)
        assert step.made_at(h.op) == step.places[h.op.name]
        assert step.made_at(gradient) < step.backward.start


def narrow(x, first, second):
    """Next to nothing is made after h, but by a product."""
    h = tf.tanh(tf.matmul(x, first))
    y = tf.matmul(h, second[:, :4])
    return tf.reduce_sum(tf.square(y)), {"h": h, "y": y}


def test_what_a_product_follows_is_not_needed_at_once():
    with toy(narrow) as toy_step:
        assert not toy_step.step.is_needed_at_once(toy_step.tensors["h"])
        assert toy_step.step.is_needed_at_once(toy_step.tensors["y"])
