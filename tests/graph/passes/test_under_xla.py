"""What a step that XLA compiles makes when it is needed, and not before."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_comptrain as ct
from tf_comptrain.graph.passes import xla
from tf_comptrain.graph.tiles import limits
from tf_comptrain.graph.tiles.limits import tile_sizes

LAYERS, WIDTH, PIXELS = 6, 256, 4


def planned_bytes(monkeypatch, turns_late):
    if not turns_late:
        monkeypatch.setattr(xla, "_turn_late", lambda step: None)
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Conv2D(WIDTH, 3, padding="same", activation="relu") for _ in range(LAYERS)]
    model = keras.Sequential([keras.Input((PIXELS, PIXELS, WIDTH)), *layers])
    model.compile("sgd", "mse", jit_compile=True)
    ct.compress_model(model)
    x = tf.random.stateless_normal((2, PIXELS, PIXELS, WIDTH), (0, 1))
    return ct.memory.memory_analysis(model, x, x).temporary_bytes


def test_kernels_are_turned_when_their_layer_runs(monkeypatch):
    """Those of all layers at once would be larger than all else of this model."""
    kernel = 4 * 9 * WIDTH**2
    late = planned_bytes(monkeypatch, True)
    assert planned_bytes(monkeypatch, False) - late >= (LAYERS // 2) * kernel


def test_random_numbers_are_drawn_when_their_layer_runs():
    """Normal ones too, which are scaled and held before they meet an activation."""
    rows, width, layers = 512, 256, 6

    def planned(noise):
        keras.utils.set_random_seed(0)
        made = [
            layer for _ in range(layers) for layer in (keras.layers.Dense(width, activation="relu"), noise())
        ]
        model = keras.Sequential([keras.Input((width,)), *made, keras.layers.Dense(8)])
        model.compile("sgd", "mse", jit_compile=True)
        ct.compress_model(model)
        return ct.memory.memory_analysis(model, tf.ones((rows, width)), tf.ones((rows, 8))).temporary_bytes

    noisy = planned(lambda: keras.layers.GaussianDropout(0.3))
    assert noisy <= planned(keras.layers.Identity) + 3 * 4 * rows * width


def test_tiles_are_smaller_where_small_ones_cost_little():
    executor, xla, gpu = tile_sizes(False, False), tile_sizes(True, False), tile_sizes(True, True)
    assert xla.bytes < executor.bytes < gpu.bytes
    assert xla.least_bytes < executor.least_bytes
    assert gpu.of_sum > executor.of_sum
    assert gpu.part_bytes is None  # one product adds to the whole sum
    assert executor.of(tf.bfloat16).bytes < executor.of(tf.float32).bytes == executor.bytes
    assert executor.of(tf.float16).least_bytes < executor.least_bytes
    assert xla.of(tf.bfloat16) == xla and gpu.of(tf.bfloat16) == gpu


def gradients(layer, x, how=None):
    """Of a function of a layer, and the graph of the step: compressed with these arguments, or plain and eagerly."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input(x.shape[1:]), layer()])
    model.build((None, *x.shape[1:]))
    if how is not None:
        ct.compress_model(model, **how)

    def step(x):
        with tf.GradientTape() as tape:
            y = model(x)
            loss = tf.reduce_sum(
                y * tf.sin(tf.reshape(tf.range(tf.cast(tf.size(y), tf.float32)), tf.shape(y)))
            )
        return tape.gradient(loss, model.trainable_variables)

    if how is None:
        return [g.numpy() for g in step(x)], None
    compiled = tf.function(step, jit_compile=True)
    return [g.numpy() for g in compiled(x)], compiled.get_concrete_function(x).graph


@pytest.mark.parametrize("samples", [1, 3, 8])
@pytest.mark.parametrize(
    "layer, operation, groups",
    [
        (lambda: keras.layers.Conv2D(8, 3, 2, "same"), "Conv2DBackpropFilter", 4),
        (lambda: keras.layers.DepthwiseConv2D(3, 1, "same"), "DepthwiseConv2dNativeBackpropFilter", 2),
        (lambda: keras.layers.DepthwiseConv2D((1, 5), 2, depth_multiplier=3), "Depthwise", 2),
    ],
    ids=["samples", "channels", "several_of_each_channel"],
)
def test_gradients_of_kernels_by_groups_are_plains(layer, operation, groups, samples, monkeypatch):
    monkeypatch.setattr(xla, "_LEAST_IN_PARTS", 1)
    x = tf.random.stateless_normal((samples, 9, 9, 40), (0, 1))
    plain, _ = gradients(layer, x)
    found, graph = gradients(layer, x, {})
    for ours, theirs in zip(found, plain):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5 * np.abs(theirs).max())
    parts = [op for op in graph.get_operations() if op.type.startswith(operation) and "group" in op.name]
    assert len(parts) == groups


@pytest.mark.parametrize(
    "layer, how",
    [
        (lambda: keras.layers.Conv2D(8, 3), {"codec": "zvc"}),
        (lambda: keras.layers.Conv2D(8, 3), {"storage": "keep"}),
        (lambda: keras.layers.DepthwiseConv2D(3), {"storage": "keep"}),
    ],
    ids=["lossless", "kept", "kept_depthwise"],
)
def test_what_is_to_be_exact_is_not_added_up_in_another_order(layer, how, monkeypatch):
    monkeypatch.setattr(xla, "_LEAST_IN_PARTS", 1)
    _, graph = gradients(layer, tf.ones((2, 9, 9, 40)), how)
    assert not [op for op in graph.get_operations() if "group" in op.name]


def convolved(x):
    return keras.layers.ReLU()(keras.layers.Conv2D(32, 3, padding="same")(x))


def residual(x):
    for _ in range(2):
        x = keras.layers.ReLU()(keras.layers.Add()([x, keras.layers.Conv2D(32, 3, padding="same")(x)]))
    return x


def pooled_beside(x):
    pooled = []
    for _ in range(2):
        x = convolved(x)
        pooled.append(keras.layers.GlobalAveragePooling2D(keepdims=True)(x))
    return keras.layers.Multiply()([x, *pooled])


def read_three_times(x):
    return keras.layers.Add()([convolved(x), convolved(x), convolved(x)])


@pytest.mark.parametrize("network, sums", [(residual, 2), (pooled_beside, 0), (read_three_times, 0)])
def test_a_relu_adds_up_gradients_that_are_tensors_anyway(network, sums):
    """A sum of others, and of what is broadcast, XLA makes as it writes it."""

    def step_of(x):
        return network(convolved(x))

    x = tf.random.stateless_normal((4, 16, 16, 32), (0, 1))
    inputs = keras.Input(x.shape[1:])
    model = keras.Model(inputs, step_of(inputs))
    ct.compress_model(model, error_bound=1e-3)

    @tf.function(jit_compile=True)
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(x, training=True)))
        return tape.gradient(loss, model.trainable_variables)

    found = [g.numpy() for g in step(x)]
    terms = [
        op.get_attr("N")
        for op in step.get_concrete_function(x).graph.get_operations()
        if op.type == "Comptrain>StreamMaskGrad"
    ]
    assert [n for n in terms if n > 1] == [2] * sums
    ct.restore_model(model)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(model(x, training=True)))
    for gradient, exact in zip(found, tape.gradient(loss, model.trainable_variables)):
        np.testing.assert_allclose(gradient, exact, rtol=0.02, atol=0.02 * np.abs(exact).max())


def attention(steps, width, words):
    tokens = keras.Input((steps,), dtype="int32")
    x = keras.layers.Embedding(words, width)(tokens)
    for _ in range(2):
        x = x + keras.layers.MultiHeadAttention(2, width // 2)(x, x)
        x = x + keras.layers.Dense(width, activation="gelu")(keras.layers.LayerNormalization()(x))
    return keras.Model(tokens, keras.layers.Dense(words)(x))


def test_nothing_waits_for_a_copy_in_another_order(monkeypatch):
    """What a fence or a decoder reads is in memory: of the gradients that tiles made, not of their transpositions."""
    monkeypatch.setattr(limits, "LEAST_BYTES", 1 << 14)
    monkeypatch.setattr(limits, "TILE_BYTES", 1 << 13)
    model = attention(steps=64, width=16, words=8)
    ct.compress_model(model)

    @tf.function(jit_compile=True)
    def step(tokens):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(tokens, training=True)))
        return tape.gradient(loss, model.trainable_variables)

    operations = step.get_concrete_function(tf.zeros((4, 64), tf.int32)).graph.get_operations()
    late = ("Comptrain>Fence", "Comptrain>Decompress")
    read = [op for op in operations if op.type in late and any(t.consumers() for t in op.outputs)]
    inputs = [tensor.op for op in read for tensor in op.inputs]
    assert any(made_by(op).type == "TensorListStack" for op in inputs)
    assert not [op for op in inputs if op.type == "Transpose"]
    passed = [t for op in read for t, out in zip(op.inputs, op.outputs) if not out.consumers()]
    assert not [t for t in passed if made_by(t.op).type == "Comptrain>Compress" and t.dtype == tf.float32]


def made_by(op):
    """The operation behind changes of shape and order."""
    while op.type in ("Reshape", "Transpose", "Slice"):
        op = op.inputs[0].op
    return op


def test_an_embedding_is_looked_up_again():
    """And not taken from the forward pass, for all of the step."""
    model = attention(steps=64, width=64, words=16)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=True)
    ct.compress_model(model)
    tokens = tf.zeros((16, 64), tf.int32)
    alive = ct.memory.memory_analysis(model, tokens, tokens).buffers
    assert not [buffer for buffer in alive if buffer.op.startswith(model.name) and "GatherV2" in buffer.op]


@pytest.mark.parametrize("storage", ["keep", "fused"])
def test_no_operation_overwrites_what_it_reads_behind_a_fence(storage):
    """Each turn of a recurrence reads a part of its gates, and the gradient of the gates all of them."""
    x = tf.random.stateless_normal((32, 4, 64), (0, 1))

    def gradients(**how):
        keras.utils.set_random_seed(0)
        gate = keras.layers.Dense(64, "sigmoid", bias_initializer=keras.initializers.Constant(4.0))
        model = keras.Sequential([keras.Input((4, 64)), Recurrence(gate), keras.layers.Dense(1)])
        if how:
            ct.compress_model(model, **how)

        @tf.function(jit_compile=True)
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x)))
            return tape.gradient(loss, model.trainable_variables)

        return step(x)

    for ours, plain in zip(gradients(storage=storage), gradients()):
        np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-6)


class Recurrence(keras.layers.Layer):
    """The mean of the states h <- gate h + new."""

    def __init__(self, gate):
        super().__init__()
        self.gate, self.new = gate, keras.layers.Dense(64)

    def call(self, x):
        gate, new = self.gate(x), self.new(x)
        h, states = tf.zeros_like(new[:, 0]), []
        for turn in range(x.shape[1]):
            h = gate[:, turn] * h + new[:, turn]
            states.append(h)
        return tf.reduce_mean(tf.stack(states, 1), 1)
