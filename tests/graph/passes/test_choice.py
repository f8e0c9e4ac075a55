"""What is held by the default rule, and where an error of it goes."""

import tensorflow as tf
from toy import dense, smooth, toy

from tf_comptrain.storage import COMPRESS


def test_an_error_of_what_a_product_reads_ends_in_the_weights():
    with toy(dense) as step:
        h = step.tensors["h"]
        (kernel,) = step.chosen.kernels[h.ref()]
        assert kernel.op.type == "MatMul" and kernel.gradient.shape == (64, 64)
        assert step.chosen.ends(h.ref())


def test_an_error_of_an_argument_travels_on():
    with toy(smooth) as step:
        saved = step.chosen.choice.saved
        assert step.tensors["a"].ref() in saved and step.tensors["h"].ref() not in saved
        assert not step.chosen.ends(step.tensors["a"].ref())


def test_of_a_recorded_pass_no_gradient_is_a_kernels_alone():
    with toy(dense, recorded=True) as step:
        assert step.chosen.kernels == {}


def test_what_a_gradients_own_formula_begins_with_is_held():
    """The formula runs behind the incoming gradient: what it makes cannot be held instead of its argument."""

    def pooled(x, first, second):
        a = tf.matmul(tf.matmul(tf.sin(x), second), first)
        means = tf.reduce_mean(tf.nn.silu(a), 0)
        return tf.reduce_sum(tf.matmul(tf.matmul(means[None], second), second)), {"a": a}

    with toy(pooled) as step:
        assert step.tensors["a"].ref() in step.chosen.choice.saved
        assert step.holding("a").way == COMPRESS
