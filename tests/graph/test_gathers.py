"""Rows of an embedding that are looked up again in the backward pass: the table is not held for them."""

import numpy as np
import tensorflow as tf
from steps import Weights
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.memory.explain import trace_model

ROWS, WIDTH, BATCH = 40000, 64, 16384
TABLE_BYTES = ROWS * WIDTH * 4
INDICES = np.random.default_rng(0).integers(0, ROWS, BATCH).astype("int32")


def product(x, u, v):
    u, v = tf.convert_to_tensor(u), tf.convert_to_tensor(v)  # as Keras' Embedding reads them
    return tf.reduce_sum(tf.tanh(tf.reduce_sum(tf.gather(u, x) * tf.gather(v, x), -1)))


def gradients(loss, model, compress):
    """(gradients, types of what the gradient operations read) of one traced step."""
    if compress:
        ct.compress_model(model, error_bound=1e-7, check=False)

    @tf.function(autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            value = loss(x, *(part.value for part in model.parts))
        found = tape.gradient(value, [part.value for part in model.parts])
        return [tf.convert_to_tensor(gradient) for gradient in found]

    x = tf.constant(INDICES % model.parts[0].shape[0])
    values = [gradient.numpy() for gradient in step(x)]
    operations = step.get_concrete_function(x).graph.get_operations()
    reads = [op for op in operations if op.type == "Mul" and op.name.startswith("gradient_tape")]
    return values, {tensor.op.type for op in reads for tensor in op.inputs}


def test_rows_are_looked_up_in_the_variable():
    plain, _ = gradients(product, Weights((ROWS, WIDTH), (ROWS, WIDTH)), compress=False)
    found, lookups = gradients(product, Weights((ROWS, WIDTH), (ROWS, WIDTH)), compress=True)
    assert "ResourceGather" in lookups and "GatherV2" not in lookups
    for ours, expected in zip(found, plain):
        np.testing.assert_array_equal(ours, expected)


def test_not_where_the_variable_changes_before_the_backward_pass():
    def made(compress):
        model = Weights((100, WIDTH), (100, WIDTH))

        def changed(x, u, v):
            loss = product(x, u, v)
            with tf.control_dependencies([loss]):
                for part in model.parts:
                    part.value.assign_add(tf.ones_like(part.value))
            return loss

        return gradients(changed, model, compress)

    (plain, _), (found, lookups) = made(False), made(True)
    assert "ResourceGather" not in lookups
    for ours, expected in zip(found, plain):
        np.testing.assert_allclose(ours, expected, atol=1e-5 * np.abs(expected).max())


def embedding_product():
    inputs = [keras.Input((), dtype="int32") for _ in range(2)]
    u, v = (keras.layers.Embedding(ROWS, WIDTH)(x) for x in inputs)
    model = keras.Model(inputs, keras.ops.sum(u * v, -1))
    # Its rows are scattered into: from then on each reading of a table copies it.
    model.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=True), jit_compile=False)
    return model


def test_tables_are_not_held_until_the_backward_pass():
    model = embedding_product()
    ct.compress_model(model, check=False)
    x, y = [tf.constant(INDICES), tf.constant(INDICES[::-1])], tf.ones([BATCH])
    model.train_on_batch(x, y)
    trace = trace_model(model, x, y)
    backward = [k for k, event in enumerate(trace.events) if event.op.startswith("gradient_tape")]
    assert backward
    for k in backward:
        tables = [event for event in trace.live_at(k) if event.requested_bytes >= TABLE_BYTES]
        assert len(tables) < 2  # one that is just being read, maybe
