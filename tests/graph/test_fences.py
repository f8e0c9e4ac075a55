"""The three fences, asserted on the graph that runs: after Grappler's optimization."""

import numpy as np
import pytest
from models import chain, gradients, optimized_graph
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain import codecs, storage
from tf_comptrain.graph import rewire
from tf_comptrain.graph.held.streams_of_step import StreamsOfStep


def source(name):
    """Node name of an input like '^node' or 'node:1'."""
    return name.lstrip("^").split(":")[0]


def ancestors(graph, name):
    found, waiting = set(), [name]
    while waiting:
        for parent in map(source, graph[waiting.pop()].input):
            if parent in graph and parent not in found:
                found.add(parent)
                waiting.append(parent)
    return found


def of_type(graph, *kinds):
    return [node for node in graph.values() if node.op in kinds]


def train_graph(depth=4, activation="relu", codec="plane"):
    model = chain(depth, activation, size=8)
    ct.compress_model(model, codec=codec)
    x = np.random.default_rng(0).normal(size=(2, 8, 8, 32)).astype("float32")
    return optimized_graph(model, x, np.zeros((2, 32), "float32"))


def unordered(graph):
    """What is out of order in the graph, as text; empty when all three fences hold."""
    found = []
    compress = {node.name: node for node in of_type(graph, "Comptrain>Compress")}
    stored = {source(node.input[0]): node.name for node in compress.values()}
    for node in graph.values():
        for name in node.input:
            if source(name) in stored and node.name not in compress and not name.startswith("^"):
                found.append(f"{node.name} ({node.op}) reads {name}, not what compress passes through")
    backward_convs = of_type(graph, "Conv2DBackpropInput", "Conv2DBackpropFilter")
    forward = {n for node in compress.values() for n in ancestors(graph, node.name)} | set(compress)
    for node in of_type(graph, "Comptrain>Decompress"):
        if source(node.input[2]) in forward:
            found.append(f"{node.name} is gated by {node.input[2]}, which the forward pass computes")
    for weight in backward_convs:
        if weight.op != "Conv2DBackpropFilter":
            continue
        dy = weight.input[2]
        for node in backward_convs:
            sibling = node.op == "Conv2DBackpropInput" and source(node.input[2]) == source(dy)
            if sibling and weight.name not in ancestors(graph, node.name):
                found.append(f"{node.name} does not wait for {weight.name}")
    return found


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_the_executed_graph_is_in_order(activation):
    graph = train_graph(activation=activation)
    assert len(of_type(graph, "Comptrain>Compress")) == 3  # the batch is not held
    assert len(of_type(graph, "Comptrain>Decompress")) >= 3
    assert len(of_type(graph, "Conv2DBackpropInput")) == 3
    assert unordered(graph) == []


def test_products_of_a_reshaped_gradient_are_in_order():
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((16, 64))
    for _ in range(3):
        x = keras.layers.Dense(64, activation="tanh")(x)
    model = keras.Model(inputs, x)
    model.compile(keras.optimizers.SGD(1e-3), "mse")
    ct.compress_model(model)
    x = np.random.default_rng(0).normal(size=(8, 16, 64)).astype("float32")
    graph = optimized_graph(model, x, x)
    products = of_type(graph, "MatMul")
    of_inputs = {source(node.input[0]): node.name for node in products if node.attr["transpose_b"].b}
    of_weights = {source(node.input[1]): node.name for node in products if node.attr["transpose_a"].b}
    shared = set(of_inputs) & set(of_weights)
    assert len(shared) == 2 and all(graph[name].op == "Reshape" for name in shared)
    biases = {source(node.input[0]): node.name for node in of_type(graph, "BiasAddGrad")}
    for dy in shared:
        before = ancestors(graph, of_inputs[dy])
        assert of_weights[dy] in before
        assert biases[source(graph[dy].input[0])] in before


@pytest.mark.parametrize(
    "noise", [keras.layers.GaussianDropout, keras.layers.Dropout, keras.layers.GaussianNoise]
)
def test_random_numbers_wait_for_what_they_meet(noise):
    """The executor would draw those of all layers first. Of each but the first a product comes before."""
    layers = [layer for _ in range(4) for layer in (keras.layers.Dense(512, activation="relu"), noise(0.3))]
    model = keras.Sequential([keras.Input((512,)), *layers, keras.layers.Dense(8)])
    model.compile("sgd", "mse", jit_compile=False)
    ct.compress_model(model)
    graph = optimized_graph(model, np.ones((64, 512), "float32"), np.zeros((64, 8), "float32"))
    drawn = of_type(graph, "StatelessRandomNormalV2", "StatelessRandomUniformV2", "Comptrain>Dropout")
    products = [sum("MatMul" in graph[name].op for name in ancestors(graph, node.name)) for node in drawn]
    assert sorted(products) == [1, 2, 3, 4]


@pytest.mark.parametrize("penalty, times", [("l2", 1.25), ("l1", 1.8)])
def test_penalties_of_activations_wait_for_what_they_are_added_to(penalty, times):
    """Their own gradient is a number, which is there when the backward pass begins. l1 holds the signs as well."""

    def planned(penalty):
        keras.utils.set_random_seed(0)
        made = [
            keras.layers.Dense(256, activation="tanh", activity_regularizer=penalty, use_bias=False)
            for _ in range(8)
        ]
        model = keras.Sequential([keras.Input((256,)), *made])
        model.compile("sgd", "mse", jit_compile=True)
        ct.compress_model(model)
        x = np.random.default_rng(0).normal(size=(512, 256)).astype("float32")
        return ct.memory.memory_analysis(model, x, x).temporary_bytes

    assert planned(penalty) <= times * planned(None)


def test_a_stream_is_gated_by_what_a_penalty_is_added_to():
    model = chain(4, "tanh", size=8)
    for layer in model.layers:
        layer.activity_regularizer = keras.regularizers.L2(0.1)
    ct.compress_model(model)
    x = np.random.default_rng(0).normal(size=(2, 8, 8, 32)).astype("float32")
    graph = optimized_graph(model, x, np.zeros((2, 32), "float32"))
    assert unordered(graph) == []
    products = {node.name for node in of_type(graph, "Conv2DBackpropInput")}
    gates = {source(node.input[2]) for node in of_type(graph, "Comptrain>Decompress")}
    assert sum(bool(products & ({gate} | ancestors(graph, gate))) for gate in gates) >= len(gates) - 1


def test_tensorflows_optimizer_takes_what_is_rebuilt():
    """It fails, for the whole step, on a Pow with a control input; where it does not it makes products of this one."""
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((16, 64))
    for _ in range(3):
        x = keras.layers.Dense(64, activation=lambda x: keras.ops.tanh(x + x**3))(x)
    model = keras.Model(inputs, x)
    model.compile(keras.optimizers.SGD(1e-3), "mse")
    ct.compress_model(model)
    x = np.random.default_rng(0).normal(size=(8, 16, 64)).astype("float32")
    graph = optimized_graph(model, x, x)
    assert any(name.startswith("rebuilt/") for name in graph)
    assert not of_type(graph, "Pow")


def test_codec_b_decodes_a_relu_output_once(monkeypatch):
    graph = train_graph(codec="rans")
    assert len(of_type(graph, "Comptrain>Decompress")) == len(of_type(graph, "Comptrain>Compress")) == 3
    assert not of_type(graph, "Comptrain>StreamMaskGrad")
    assert unordered(graph) == []
    decode_for_masks(monkeypatch)
    assert len(of_type(train_graph(codec="rans"), "Comptrain>StreamMaskGrad")) == 3


def decode_for_masks(monkeypatch):
    """Has the same streams decoded once more where a mask is wanted."""
    monkeypatch.setattr(codecs, "dithered", lambda codec, mask, xla: codec)
    monkeypatch.setattr(codecs.get("rans"), "mask_of_restored", False)


def test_decoding_once_gives_the_same_gradients(monkeypatch):
    def found():
        model = chain(4, "relu", size=8)
        ct.compress_model(model, codec="rans")
        x = np.random.default_rng(0).normal(size=(2, 8, 8, 32)).astype("float32")
        return gradients(model, x, np.zeros((2, 32), "float32"))[1]

    once = found()
    decode_for_masks(monkeypatch)
    twice = found()
    for a, b in zip(once.values(), twice.values(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_without_the_gate_the_graph_is_out_of_order(monkeypatch):
    restore = storage.Held.restore
    monkeypatch.setattr(storage.Held, "restore", lambda self, gate: restore(self, self.stream))
    assert any("is gated by" in line for line in unordered(train_graph()))


def test_without_the_pass_through_the_graph_is_out_of_order(monkeypatch):
    hold = StreamsOfStep.hold
    monkeypatch.setattr(
        StreamsOfStep, "hold", lambda self, tensor, *how: (tensor, hold(self, tensor, *how)[1])
    )
    assert any("not what compress passes through" in line for line in unordered(train_graph()))


def test_without_the_weight_gradient_first_the_graph_is_out_of_order(monkeypatch):
    monkeypatch.setattr(rewire, "EXECUTOR", rewire.EXECUTOR._replace(order=lambda *unused: {}))
    assert any("does not wait for" in line for line in unordered(train_graph()))


def test_each_weight_is_updated_in_place_after_its_own_gradient_only():
    model = chain(4, size=8)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    ct.compress_model(model)
    x = np.random.default_rng(0).normal(size=(2, 8, 8, 32)).astype("float32")
    graph = optimized_graph(model, x, np.zeros((2, 32), "float32"))
    gradients = {node.name for node in of_type(graph, "Conv2DBackpropFilter", "BiasAddGrad")}
    updates = of_type(graph, "ResourceApplyKerasMomentum")
    waits = [len(ancestors(graph, node.name) & gradients) for node in updates]
    assert len(gradients) == len(waits) == 8
    assert min(waits) >= 1 and len(set(waits)) >= 4  # nor all at the end of the step


def test_each_weight_is_updated_after_its_own_gradient_only():
    """As Keras writes it, where its bits are asked for."""
    model = chain(4, size=8)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    ct.compress_model(model, codec="zvc")
    x = np.random.default_rng(0).normal(size=(2, 8, 8, 32)).astype("float32")
    graph = optimized_graph(model, x, np.zeros((2, 32), "float32"))
    gradients = {node.name for node in of_type(graph, "Conv2DBackpropFilter", "BiasAddGrad")}
    products = [  # momentum * m and learning rate * gradient
        node
        for node in of_type(graph, "Mul")
        if "sgd" in node.name and any(graph[source(i)].op == "ReadVariableOp" for i in node.input)
    ]
    waits = [len(ancestors(graph, node.name) & gradients) for node in products]
    assert len(gradients) == 8 and len(waits) == 16
    assert (
        waits.count(0) == 4
    )  # at the start of the step: momentum of the biases, which are vectors, and no other
    assert len(set(waits)) >= 4  # nor all at its end
