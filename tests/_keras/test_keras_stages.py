"""`_keras/stages.py`: models whose graph, variables and train step are divided."""

from types import SimpleNamespace

import keras
import numpy as np
import tensorflow as tf
from tiny import batch, fit, network

from tf_comptrain import _keras

layers = keras.layers


def test_a_graph_that_somebody_else_runs():
    model, ran = network(), []
    x, _ = batch()

    def run(operation, call, *args, **kwargs):
        ran.append(operation.name)
        (placed,) = args
        return SimpleNamespace(tensor=call(placed.tensor, **kwargs))

    def enter(tensor):
        return SimpleNamespace(tensor=tensor)

    y = _keras.run_graph(model, x, enter, run, lambda placed: placed.tensor, training=True)
    assert ran == ["hidden", "last"]
    np.testing.assert_allclose(y, model(x), rtol=1e-6)


def test_calls_that_are_the_graph():
    class Own(keras.Model):
        def call(self, inputs, **kwargs):
            return 2.0 * super().call(inputs, **kwargs)

    inputs = keras.Input((3,))
    assert _keras.runs_its_graph(network())
    assert not _keras.runs_its_graph(Own(inputs, layers.Dense(2)(inputs)))
    assert not _keras.runs_its_graph(keras.Sequential([layers.Dense(2)]))


def test_masks():
    embedded = layers.Embedding(5, 3, mask_zero=True)(tf.constant([[1, 0]]))
    assert np.array_equal(_keras.mask_of(embedded), [[True, False]])
    x, mask = tf.ones((1, 2, 3)), tf.constant([[True, False]])
    assert _keras.mask_of(x) is None
    _keras.set_mask(x, None)
    assert _keras.mask_of(x) is None
    _keras.set_mask(x, mask)
    assert _keras.mask_of(x) is mask
    pooled = layers.GlobalAveragePooling1D()
    np.testing.assert_allclose(pooled(tf.stack([x[0], x[0]]) * [[[1.0], [5.0]]], mask=mask), np.ones((2, 3)))
    first, second = keras.Input((2, 3)), keras.Input((2, 3))
    model = keras.Model([first, second], layers.Add()([first, second]))
    one, other = tf.ones((1, 2, 3)), tf.ones((1, 2, 3))
    _keras.set_masks(model, [one, other], None)
    assert _keras.mask_of(one) is None
    _keras.set_masks(model, [one, other], [mask, None])
    assert _keras.mask_of(one) is mask and _keras.mask_of(other) is None


def test_slots_of_weights():
    model = network()
    model.optimizer.build(model.trainable_variables)
    found = _keras.weights_and_slots(model)
    assert [id(v) for v in found[:4]] == [id(v) for v in model.trainable_variables]
    assert {id(v) for v in found[4:]} == {id(v) for v in model.optimizer.momentums}


def test_slots_stay_where_the_weight_is():
    """Moves to another device are in `other_process.py`, whose process has two."""
    model = network()
    _keras.move_slots(model)
    assert model.optimizer.built
    weight = model.trainable_variables[0]
    before = weight.value
    _keras.move_weight(weight, weight.value.device, model.optimizer)
    assert weight.value is before
    fit(model)


def test_reductions_of_losses():
    losses = [keras.losses.MeanSquaredError(), keras.losses.MeanSquaredError(reduction="sum")]
    inputs = keras.Input((3,))
    model = keras.Model(inputs, [layers.Dense(2)(inputs), layers.Dense(2)(inputs)])
    model.compile("sgd", losses)
    assert _keras.reductions_of(model) == {"sum_over_batch_size", "sum"}
    assert _keras.reductions_of(network(compiled=False)) == set()


def test_a_train_step_that_was_set():
    model, calls = network(), []

    def step(model, data):
        calls.append(_keras.scope_says())
        return keras.Model.train_step(model, data)

    def update(update_step, *args):
        calls.append("update")
        return update_step(*args)

    _keras.build_for_step(model, *batch())
    _keras.set_step(model, step, update)
    assert _keras.step_set(model) is not None
    fit(model)
    assert calls[0] is True and calls.count("update") == 4
    _keras.reset_step(model, stays=True)  # that of a compressed model
    assert _keras.step_set(model) is None
    _keras.forget_traces(model)
    calls.clear()
    fit(model)
    assert calls == 4 * ["update"]
    _keras.set_step(model, step, update)
    _keras.reset_step(model, stays=False)
    _keras.forget_traces(model)
    calls.clear()
    fit(model)
    assert calls == []
