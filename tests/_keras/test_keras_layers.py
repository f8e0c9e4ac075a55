"""`_keras/layers.py`: calls and overrides of layers, and the graph they form."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiny import batch, network

from tf_comptrain import _keras

layers = keras.layers


def test_call_is_overridden_and_restored():
    layer, x = layers.Dense(2), tf.ones((1, 3))
    own = layer(x)
    _keras.set_call(layer, lambda x: tf.fill((1, 2), 7.0))
    assert _keras.has_own_call(layer)
    assert np.array_equal(layer(x), [[7.0, 7.0]])
    assert _keras.class_call(layer) is layers.Dense.call
    _keras.reset_call(layer)
    assert not _keras.has_own_call(layer)
    assert np.array_equal(layer(x), own)


def test_variables_are_saved_along(tmp_path):
    layer = layers.Dense(2)
    layer(tf.ones((1, 3)))
    _keras.save_along(layer, lambda: {"extra": tf.Variable(5.0)})
    tf.saved_model.save(layer, str(tmp_path / "along"))
    checkpoint = tf.train.Checkpoint(layer=layer).save(str(tmp_path / "checkpoint"))
    _keras.save_alone(layer)
    tf.saved_model.save(layer, str(tmp_path / "alone"))
    assert tf.saved_model.load(str(tmp_path / "along")).extra == 5.0
    assert not hasattr(tf.saved_model.load(str(tmp_path / "alone")), "extra")
    assert not any("extra" in name for name, _ in tf.train.list_variables(checkpoint))


def test_parameters_of_a_call():
    class Scaled(layers.Layer):
        def call(self, x, scale=2.0):
            return scale * x

    assert [(p.name, p.default) for p in _keras.call_parameters(Scaled())][1:] == [("scale", 2.0)]


def test_messages_grow_in_place():
    errors = tf.errors.InvalidArgumentError(None, None, "rank 2"), ValueError("rank 2"), KeyError(3)
    for error in errors:
        _keras.add_to_message(error, "in layer 'a'")
    assert errors[0].message == "rank 2\nin layer 'a'"
    assert str(errors[1]) == "rank 2\nin layer 'a'"
    assert errors[2].args == (3,)


def test_layers_inside():
    inner = keras.Sequential([keras.Input((3,)), layers.Dense(2, name="deep")], name="inner")
    outer = keras.Sequential([keras.Input((3,)), inner, layers.ReLU(name="last")])
    named = [layer.name for layer in _keras.sublayers(outer)]
    assert set(named) >= {"inner", "deep", "last"} and len(named) == len(set(named))
    assert "deep" not in [layer.name for layer in _keras.direct_sublayers(outer)]
    assert {"inner", "last"} <= {layer.name for layer in _keras.direct_sublayers(outer)}


def test_attributes_at_any_depth():
    layer, held = layers.Layer(), [tf.Variable(float(k)) for k in range(3)]
    layer.one, layer.several = held[0], {"a": [held[1]], "b": ({"c": held[2]},)}
    found = {id(value) for value in _keras.attributes(layer)}
    assert {id(variable) for variable in held} <= found


def test_losses_that_a_call_added():
    layer = layers.Dense(2, activity_regularizer="l2")
    outer = keras.Sequential([layer])
    assert _keras.losses_of_calls(outer) == 0
    outer(tf.ones((1, 3)))
    assert _keras.losses_of_calls(layer) == _keras.losses_of_calls(outer) == 1


def test_traces_are_forgotten():
    model = network()
    for make in (model.make_train_function, model.make_test_function, model.make_predict_function):
        make()
    _keras.forget_traces(model)
    assert not any((model.train_function, model.test_function, model.predict_function))
    model.test_function(
        iter([(np.zeros((2, *model.input_shape[1:])), np.zeros((2, *model.output_shape[1:])))])
    )
    assert model.test_function


def test_what_compile_settled_on():
    assert _keras.jit_compile(network(jit_compile=True))
    assert not _keras.jit_compile(network(jit_compile=False))
    assert not _keras.jit_compile(network(compiled=False))


def test_the_engine_is_set_after_compile():
    model = network(jit_compile=False)
    model.make_train_function()
    _keras.set_jit_compile(model, True)
    assert _keras.jit_compile(model) and not model.train_function


def test_layers_that_xla_does_not_take():
    model = network()
    assert _keras.layers_without_xla(model) == []
    model.get_layer("last").supports_jit = False
    assert _keras.layers_without_xla(model) == ["last"]


def test_layers_are_numbered_anew():
    before = layers.ReLU().name
    with _keras.names_anew():
        assert [layers.ReLU().name for _ in range(2)] == ["re_lu", "re_lu_1"]
    assert layers.ReLU().name not in (before, "re_lu")


def test_scope_of_a_strategy():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        model = network()
    for one, expected in ((model, strategy), (network(), tf.distribute.get_strategy())):
        with _keras.strategy_scope(one):
            assert tf.distribute.get_strategy() is expected


def graph_with_operations():
    inputs = keras.Input((3,))
    x = layers.Dense(3, name="dense")(inputs)
    return keras.Model(inputs, keras.ops.exp(x) * x)


def test_calls_of_a_graph():
    model = graph_with_operations()
    calls = list(_keras.graph_calls(model))
    assert [type(operation).__name__ for operation, _, _ in calls] == [
        "InputLayer", "Dense", "Exp", "Multiply",
    ]  # fmt: skip
    _, inputs, outputs = calls[-1]
    assert [id(tensor) for tensor in inputs] == [id(calls[2][2][0]), id(calls[1][2][0])]
    assert outputs[0] is model.outputs[0]


def test_operations_that_are_no_layers():
    found = _keras.graph_operations(graph_with_operations())
    assert {type(operation).__name__ for operation in found} == {"Exp", "Multiply"}
    assert all(isinstance(operation, _keras.OPERATION) for operation in found)
    assert isinstance(layers.ReLU(), _keras.OPERATION)


def test_the_functional_model_inside():
    sequential = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    inside = _keras.functional_of(sequential)
    assert inside is not sequential and len(list(_keras.graph_calls(inside))) == 2
    functional = network()
    assert _keras.functional_of(functional) is functional


def test_specs_of_inputs():
    inputs = {"a": keras.Input((3,), name="a"), "b": keras.Input((2,), dtype="int32", name="b")}
    specs = _keras.input_specs(keras.Model(inputs, layers.Dense(1)(inputs["a"])))
    assert specs["b"] == tf.TensorSpec((None, 2), tf.int32) and specs["a"].shape == (None, 3)
    assert _keras.input_specs(layers.Dense(1)) is None


@pytest.mark.parametrize("graph", [False, True])
def test_outputs_pass_a_hook(graph):
    layer, x = layers.ReLU(), tf.ones((2, 2))
    call = tf.function(layer) if graph else layer
    with _keras.layer_output_hook(lambda layer, output: 3.0 * output):
        assert np.array_equal(call(x), 3.0 * x)
        assert layers.ReLU()(keras.Input((2,))).shape == (None, 2)  # no tensor
    assert np.array_equal(layer(x), x)


def test_train_functions_are_traced_with_the_hook():
    model, seen = network(), []
    model.make_train_function()
    before = model.train_function

    def hook(layer, output):
        seen.append(layer.name)
        return output

    with _keras.layer_output_hook(hook):
        model.make_train_function()
        assert model.train_function is not before
        x, y = batch()
        model.train_function(iter([(x, y)]))
    assert {"hidden", "last"} <= set(seen)
