"""When weights are updated: what decays them, adds to their gradients, or fills a slot is not made early."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain import _keras
from tf_comptrain.memory.batches import random_batch

layers = keras.layers
WIDTH = 256  # a weight is of 256 kB


def network(optimizer, regularizer=None, shared=False):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((WIDTH,))
    dense = [layers.Dense(WIDTH, "relu", kernel_regularizer=regularizer) for _ in range(3)]
    x = inputs
    for layer in [dense[0]] * 3 if shared else dense:
        x = layer(x)
    model = keras.Model(inputs, layers.Dense(1)(x))
    model.compile(optimizer, "mse", jit_compile=False)
    return model


def graph_of_step(model):
    found = []
    with _keras.on_gradients(lambda backward: found.append(backward.graph)):
        model.train_on_batch(*random_batch(model, 512))
    return found[-1]


def ancestors(op):
    found, waiting = {}, [op]
    while waiting:
        for before in (*(t.op for t in waiting[-1].inputs), *waiting.pop().control_inputs):
            if before.name not in found:
                found[before.name] = before
                waiting.append(before)
    return found


def is_large(op):
    return any(output.shape.num_elements() == WIDTH**2 for output in op.outputs if output.shape.rank == 2)


def gradients_of_kernels(graph):
    return [
        op
        for op in graph.get_operations()
        if "gradient_tape" in op.name and op.type == "MatMul" and is_large(op)
    ]


ASSIGNMENTS = (
    "AssignAddVariableOp",
    "AssignSubVariableOp",
    "ResourceApplyAdam",
    "ResourceApplyGradientDescent",
)


def assignments(graph):
    """Of weights' size."""
    return [op for op in graph.get_operations() if op.type in ASSIGNMENTS and is_large(op.inputs[-1].op)]


@pytest.mark.parametrize("optimizer", ["adamw", "lion"])
def test_a_weight_decays_when_its_gradient_is_there(optimizer):
    model = network(keras.optimizers.get(optimizer))
    model.optimizer.weight_decay = 0.1
    ct.compress_model(model)
    graph = graph_of_step(model)
    changed = [
        op for op in graph.get_operations() if op.type == "AssignSubVariableOp" and is_large(op.inputs[1].op)
    ]
    gradients = {op.name for op in gradients_of_kernels(graph)}
    assert len(gradients) == 3
    assert len(changed) == {"adamw": 3, "lion": 6}[optimizer]  # Adam's update is one operation
    assert all(gradients & ancestors(op).keys() for op in changed)


def test_one_slot_is_filled_after_the_other():
    """Of the six tensors of a weight's size that AMSGrad makes, two are there at once."""
    model = network(keras.optimizers.Adam(amsgrad=True))
    ct.compress_model(model)
    graph = graph_of_step(model)
    assigned = assignments(graph)
    assert len(assigned) == 9
    for first, second, third in zip(*[iter(assigned)] * 3):
        assert first.name in ancestors(second)
        assert second.name in ancestors(third)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("regularizer", [keras.regularizers.L2(0.1), keras.regularizers.L1L2(0.1, 0.1)])
def test_the_gradient_of_a_regularizer_is_made_with_the_one_that_it_is_added_to(regularizer, shared):
    plain, model = network("sgd", regularizer, shared), network("sgd", regularizer, shared)
    plain.run_eagerly = True  # which takes less time than a trace
    ct.compress_model(model, error_bound=1e-6)
    graph = graph_of_step(model)
    gradients = {op.name for op in gradients_of_kernels(graph)}
    early = [
        op
        for op in graph.get_operations()
        if op.name.startswith("gradient_tape/") and op.type in ("Mul", "Sign") and is_large(op)
    ]
    assert early and all(gradients & ancestors(op).keys() for op in early)
    x, y = random_batch(model, 512)
    plain.set_weights(model.get_weights())
    for one in (plain, model):
        one.train_on_batch(x, y)
    for ours, kept in zip(model.get_weights(), plain.get_weights()):
        np.testing.assert_allclose(ours, kept, rtol=1e-4, atol=1e-6)


def test_an_update_comes_after_the_weights_readers_and_before_the_next_gradient():
    model = network("sgd")
    ct.compress_model(model)
    graph = graph_of_step(model)
    updates, gradients = assignments(graph), gradients_of_kernels(graph)
    assert len(updates) == len(gradients) == 3
    for update in updates:
        reads = [op for op in update.inputs[0].consumers() if op.type == "ReadVariableOp"]
        readers = [reader for op in reads for reader in op.outputs[0].consumers()]
        assert readers and {reader.name for reader in readers} <= ancestors(update).keys()
    ordered = sorted(gradients, key=lambda op: len(ancestors(op)))
    for before, after in zip(ordered, ordered[1:]):
        done = [update.name for update in updates if before.name in ancestors(update)]
        assert set(done) & ancestors(after).keys()


def test_bits_are_those_of_plain_keras_where_that_is_asked():
    """TensorFlow's optimizer leaves what waits as it is, and rounds otherwise: nothing more waits."""
    model = network("sgd", keras.regularizers.L2(0.1))
    ct.compress_model(model, codec="zvc")
    graph = graph_of_step(model)
    assert not any(op.type.startswith("ResourceApply") for op in graph.get_operations())
    names = {op.name for op in graph.get_operations() if op.type == "AssignSubVariableOp"}
    assert all(not names & ancestors(op).keys() for op in gradients_of_kernels(graph))


def test_addends_that_lead_to_the_rest_of_a_sum_are_left_alone():
    """A weight scales what it is added to: to wait for the rest would be to wait for itself."""

    class Scaled(layers.Layer):
        def build(self, shape):
            self.w = self.add_weight(shape=(WIDTH, WIDTH))

        def call(self, x):
            self.add_loss(tf.reduce_sum(self.w * tf.stop_gradient(tf.reduce_mean(x))))
            return tf.matmul(tf.matmul(x, self.w), self.w)

    inputs = keras.Input((WIDTH,))
    model = keras.Model(inputs, layers.Dense(1)(Scaled()(inputs)))
    model.compile("sgd", "mse", jit_compile=False)
    ct.compress_model(model)
    model.fit(*random_batch(model, 512), batch_size=256, verbose=0)
    assert np.isfinite(model.get_weights()[0]).all()
