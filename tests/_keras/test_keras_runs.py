"""`_keras/runs.py`: what stands around the train function, and the gradient that a step takes."""

import numpy as np
import pytest
import tensorflow as tf
from tiny import batch, fit, network

from tf_comptrain import _keras


def test_runs_stand_around_the_train_function():
    model, order = network(), []

    def run(name):
        def around(train_function, iterator):
            order.append(name)
            return train_function(iterator)

        return around

    _keras.around_runs(model, "inner", run("inner"))
    _keras.around_runs(model, "outer", run("outer"))
    fit(model)
    assert order == ["outer", "inner"]
    _keras.forget_runs(model, "inner")
    _keras.forget_traces(model)
    fit(model)
    assert order == ["outer", "inner", "outer"]
    _keras.forget_runs(model)
    _keras.forget_traces(model)
    fit(model)
    assert order == ["outer", "inner", "outer"]


def test_runs_of_a_model_that_was_trained_before():
    model, ran = network(), []
    fit(model)
    _keras.forget_traces(model)
    _keras.around_runs(
        model, "each", lambda train_function, iterator: ran.append(1) or train_function(iterator)
    )
    fit(model, epochs=2)
    assert len(ran) == 2


@pytest.mark.parametrize("again", [False, True])
def test_an_act_after_the_first_steps(again):
    model, acts = network(), []

    def act(runs):
        acts.append((int(model.optimizer.iterations), runs, model.train_function))
        return again and len(acts) == 1

    _keras.after_first_steps(model, (2, 3), act)
    fit(model, steps=2)
    assert (model.train_function is not acts[0][2]) == again
    fit(model, steps=4)
    assert [found[:2] for found in acts] == ([(2, 2), (4, 2), (5, 3)] if again else [(2, 2), (3, 3)])


def test_gradients_of_the_loss():
    model = network()
    model.get_layer("last").kernel.regularizer = lambda weight: tf.reduce_sum(weight)
    x, y = batch()
    before = model.get_weights()
    found = _keras.loss_gradients(model, (x, y))
    variables = [variable.value for variable in model.trainable_variables]
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2) + tf.reduce_sum(model.get_layer("last").kernel)
    for gradient, expected in zip(found, tape.gradient(loss, variables)):
        np.testing.assert_allclose(gradient, expected, rtol=1e-5)
    assert all(np.array_equal(*pair) for pair in zip(before, model.get_weights()))


@pytest.mark.long("2")
@pytest.mark.parametrize("at_once", [1, 2])
def test_each_compiled_step_passes_the_hook(at_once):
    model, batches = network(jit_compile=True, steps_per_execution=at_once), []
    other = network()  # on the executor
    fit(model)  # made before

    def hook(of, train_function, data):
        assert of in (model, other)
        batches.append(tuple(data[0].shape))
        return train_function([data])

    with _keras.step_hook(hook):
        losses = fit(model, steps=3).history["loss"]
        model.train_on_batch(*(part.numpy() for part in batch(2)))
        fit(other)
    assert batches == [(4, 3), (4, 3), (4, 3), (2, 3), (4, 3)] and np.isfinite(losses).all()
    assert model.optimizer.iterations == 5
    fit(model)
    fit(other)
    assert len(batches) == 5


def test_a_lowered_step_is_traced_once_for_that_and_for_running():
    traces = []

    class Counted(tf.keras.layers.Layer):
        def call(self, x):
            traces.append(x.shape)
            return x

    inputs = tf.keras.Input((3,))
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(2)(Counted()(inputs)))
    model.compile("sgd", "mse", jit_compile=True)
    model.optimizer.build(model.trainable_variables)
    model.make_train_function()
    traces.clear()
    data = batch(4)
    program = _keras.lowered_step(model, model.train_function, data)
    assert isinstance(program, bytes) and program
    model.train_function([data])
    assert len(traces) == 1
