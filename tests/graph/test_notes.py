"""Why a tensor is kept: the report says the reason that holds."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.compression.instrumentation import instrumentation
from tf_comptrain.graph.crossings import NEEDED_AT_ONCE

layers = keras.layers
X = np.random.default_rng(0).normal(size=(32, 16, 64)).astype("float32")


class Block(keras.Model):
    """A product with a weight, and what `made` makes of it."""

    def __init__(self, made):
        super().__init__()
        self.w = self.add_weight(shape=(64, 64), name="w")
        self.made = made

    def call(self, x):
        return self.made(tf.matmul(x, self.w.value), self.w.value)


def notes(made, constant=False):
    """{type of the operation: note} of what is kept in a step of a `Block`; its data may be a constant of the step."""
    model = Block(made)
    ct.compress_model(model, check=False)

    @tf.function(autograph=False)
    def gradients(x=None):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(X if constant else x))
        return tape.gradient(loss, [model.w.value])

    gradients() if constant else gradients(tf.constant(X))
    return {row.layer_class: row.note for row in instrumentation(model).report.rows if row.storage == "keep"}


def test_what_the_backward_pass_begins_with_is_said_to_be_that():
    assert notes(lambda y, w: tf.nn.softplus(y)) == {"BatchMatMulV2": NEEDED_AT_ONCE}


def test_a_gradient_without_bound_is_said_to_be_that():
    found = notes(lambda y, w: tf.matmul(tf.sqrt(tf.abs(y)) * tf.tanh(y), w))
    assert found and all("grows without bound" in note for note in found.values())


def test_of_constants_and_weights_no_activation_is_made():
    kept = notes(lambda y, w: tf.matmul(tf.tanh(y), w), constant=True)
    assert kept and set(kept.values()) <= {"made of weights and constants alone", NEEDED_AT_ONCE}
    assert "made of weights and constants alone" in kept.values()


def test_what_is_read_at_once_is_said_to_be_that_also_where_it_is_exact():
    assert notes(lambda y, w: tf.tanh(y), constant=True) == {"Tanh": NEEDED_AT_ONCE}


def test_a_mask_of_an_attention_is_made_of_constants():
    x = inputs = keras.Input((64, 64))
    x = layers.MultiHeadAttention(4, 16)(x, x, use_causal_mask=True)
    model = keras.Model(inputs, layers.Dense(8)(x))
    (mask,) = (row for row in ct.compress_model(model).rows if row.layer_class == "LogicalAnd")
    assert mask.note == "made of constants alone" and mask.predicted_bytes == 4 * 64 * 64


def test_the_argument_of_a_loss_that_gathers_is_read_at_once():
    """Between the logarithms and the loss stand a broadcast and reshapes, which make nothing new."""
    targets = np.zeros((32, 16, 1), "int32")

    def gathered(y, w):
        return keras.ops.take_along_axis(keras.ops.log_softmax(y, -1), targets, -1)

    assert notes(gathered) == {"LogSoftmax": NEEDED_AT_ONCE}
