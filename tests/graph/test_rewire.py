"""Traced steps after the pass: what is held, in which order things run, and steps of many shapes."""

import numpy as np
import pytest
import tensorflow as tf
from steps import Weights, compressed_gradients, gradient_step, plain_gradients
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.compression.instrumentation import instrumentation
from tf_comptrain.graph.tensors import behind_views

RNG = np.random.default_rng(0)
X = tf.constant(RNG.normal(size=(8, 32, 64)), tf.float32)
SHAPES = ([64, 64], [64, 64], [64, 64])


def network(x, *kernels):
    """Products with GELU between them, as a layer of the user's own has them."""
    for kernel in kernels:
        x = x + tf.nn.gelu(tf.matmul(x, kernel))
    return tf.reduce_mean(tf.square(x))


def stored(crossings, storage="compress"):
    return [row for row in crossings if row.storage == storage]


def assert_close(ours, plain, tolerance=1e-5):
    for a, b in zip(ours, plain):
        assert np.linalg.norm(a - b) <= tolerance * np.linalg.norm(b)


def test_gelu_is_rebuilt_from_what_is_held():
    """The five steps of GELU and its products cross nothing: its argument does."""
    found = compressed_gradients(network, X, Weights(*SHAPES), codec="zvc")
    types = {row.op_type for row in stored(found.crossings)}
    assert types <= {"BatchMatMulV2", "AddV2"}
    assert len(stored(found.crossings)) <= 2 * len(SHAPES)
    assert_close(found.gradients, plain_gradients(network, X, Weights(*SHAPES)))


def ancestors(op):
    found, waiting = set(), [op]
    while waiting:
        current = waiting.pop()
        for before in (*(t.op for t in current.inputs), *current.control_inputs):
            if before.name not in found:
                found.add(before.name)
                waiting.append(before)
    return found


def products(x, *kernels):
    for kernel in kernels:
        x = tf.matmul(x, kernel)
    return tf.reduce_mean(tf.square(x))


PRODUCTS = ("BatchMatMulV2", "MatMul")


def test_the_three_fences():
    graph = compressed_gradients(products, X, Weights(*SHAPES)).graph
    compress = [op for op in graph.get_operations() if op.type == "Comptrain>Compress"]
    restore = [op for op in graph.get_operations() if op.type == "Comptrain>Decompress"]
    assert compress and restore
    for op in compress:  # pass-through: nothing but the compression, and its shape, reads the tensor itself
        assert {reader.type for reader in op.inputs[0].consumers()} <= {"Comptrain>Compress", "Shape"}
    for op in restore:  # the gate comes from the loss
        gate = op.inputs[2].op
        assert "gradient_tape" in gate.name or any("gradient_tape" in name for name in ancestors(gate))
    waits = 0
    for op in restore:
        # Products with what is restored run before the gate's other readers.
        first = {reader.name for reader in readers(op.outputs[0]) if reader.type in PRODUCTS}
        for other in readers(behind_views(op.inputs[2])):
            if first and other.type in PRODUCTS and other.name not in first:
                waits += bool(first & ancestors(other))
    assert waits


@pytest.mark.parametrize("kept", ["MatMul", "MatMul_1"])
def test_what_reads_a_kept_tensor_runs_before_what_leads_on(kept):
    """It is freed then; a chain that runs ahead leaves a gradient behind in each layer."""

    def named(x, *kernels):
        with tf.name_scope("net"):
            return products(x, *kernels)

    graph = compressed_gradients(named, X, Weights(*SHAPES), storage={f"net/{kept}": "keep"}).graph
    tensor = graph.get_operation_by_name(f"net/{kept}").outputs[0]
    (weights,) = [op for op in readers(tensor) if "gradient_tape" in op.name]
    gradient = behind_views(weights.inputs[1])
    others = [op for op in readers(gradient) if op.type in PRODUCTS and op is not weights]
    assert others and all(weights.name in ancestors(op) for op in others)


def readers(tensor):
    """Of a tensor, or of it in another shape."""
    found = []
    for op in tensor.consumers():
        found += readers(op.outputs[0]) if op.type in ("Reshape", "Identity") else [op]
    return found


def normalized(x):
    return x * tf.math.rsqrt(tf.reduce_mean(x * x, -1, keepdims=True) + 1e-6)


def attention(x, *kernels):
    q, k, v = (tf.matmul(normalized(x), kernel) for kernel in kernels)
    return tf.reduce_mean(tf.square(tf.matmul(tf.nn.softmax(tf.matmul(q, k, transpose_b=True)), v)))


def gated(x, *kernels):
    for up, gate, down in zip(kernels[::3], kernels[1::3], kernels[2::3]):
        h = normalized(x)
        x = tf.matmul(tf.matmul(h, up) * tf.sigmoid(tf.matmul(h, gate)), down)
    return tf.reduce_mean(tf.square(x))


@pytest.mark.parametrize(("loss", "shapes"), [(attention, SHAPES), (gated, 6 * ([64, 64],))])
def test_a_stream_is_restored_once(loss, shapes):
    """For queries, keys and values; for both halves of a gated unit, and for the product behind it."""
    found = compressed_gradients(loss, X, Weights(*shapes), codec="zvc")
    of_type = [op.type for op in found.graph.get_operations()]
    assert of_type.count("Comptrain>Compress") >= 3
    assert of_type.count("Comptrain>Decompress") == of_type.count("Comptrain>Compress")
    assert_close(found.gradients, plain_gradients(loss, X, Weights(*shapes)))


IMAGES = tf.constant(RNG.normal(size=(8, 12, 12, 16)), tf.float32)
POOLINGS = {
    "tf": lambda x: tf.nn.max_pool2d(x, 3, 2, "SAME"),
    "keras.ops": lambda x: keras.ops.max_pool(x, 2),
    "1d": lambda x: tf.nn.max_pool1d(x[:, :, 0], 2, 2, "VALID"),
    "argmax": lambda x: tf.nn.max_pool_with_argmax(x, 2, 2, "VALID")[0],
    "3d": lambda x: tf.nn.max_pool3d(x[:, None], (1, 2, 2), (1, 2, 2), "VALID"),
}


def pooled(pooling):
    def loss(x, kernel):
        y = pooling(tf.tanh(tf.matmul(x, kernel)))
        return tf.reduce_sum(tf.sin(tf.tile(tf.reshape(y, [8, -1]), [1, 16])) ** 2)

    return loss


@pytest.mark.parametrize("pooling", POOLINGS.values(), ids=POOLINGS)
def test_a_pooling_holds_positions(pooling):
    loss, weights = pooled(pooling), Weights([16, 16])
    found = compressed_gradients(loss, IMAGES, weights, codec="zvc")
    assert_close(found.gradients, plain_gradients(loss, IMAGES, weights, traced=True))
    (row,) = [row for row in found.crossings if row.readers[0].startswith("MaxPool")]
    assert row.storage == "bitmask" and row.bits in (1, 2, 4)
    operations = found.graph.get_operations()
    assert "Comptrain>MaxPoolGrad" in {op.type for op in operations}
    of_tensorflow = [
        op for op in operations if op.type in ("MaxPool", "MaxPool3D", "MaxPoolGrad", "MaxPool3DGrad")
    ]
    readers = {reader for op in of_tensorflow for tensor in op.outputs for reader in tensor.consumers()}
    assert readers <= set(of_tensorflow)  # so that none of them runs


def test_a_pooling_that_is_differentiated_twice_or_kept_is_plain():
    loss, weights = pooled(POOLINGS["tf"]), Weights([16, 16])

    def scoped(x, kernel):
        with tf.name_scope("net"):
            return loss(x, kernel)

    found = compressed_gradients(scoped, IMAGES, weights, storage={"net/MaxPool2d": "keep"})
    assert not any(op.type == "Comptrain>MaxPool" for op in found.graph.get_operations())

    def penalty(x, kernel):
        with tf.GradientTape() as tape:
            tape.watch(x)
            inner = loss(x, kernel)
        return tf.reduce_sum(tf.square(tape.gradient(inner, x)))

    found = compressed_gradients(penalty, IMAGES, weights, codec="zvc")
    assert_close(found.gradients, plain_gradients(penalty, IMAGES, weights), 1e-4)


def test_of_a_resized_image_nothing_is_held():
    def loss(x, kernel):
        return pooled(lambda h: tf.image.resize(h, [24, 24]))(x, kernel)

    found = compressed_gradients(loss, IMAGES, Weights([16, 16]), codec="zvc")
    assert not [row for row in found.crossings if "ResizeBilinearGrad" in row.readers]
    assert_close(found.gradients, plain_gradients(loss, IMAGES, Weights([16, 16])))


def test_what_tensorflow_has_wait_for_a_gradient_is_held_before_it():
    """The derivative of a logarithm waits in TensorFlow's gradient, with its argument alive as it is."""

    def loss(x, first, second):
        h = tf.math.log(2.0 + tf.tanh(tf.matmul(x, first)) ** 3)
        return tf.reduce_sum(tf.tile(tf.matmul(h, second), [1, 1, 8]) ** 2)

    shapes = [64, 64], [64, 64]
    found = compressed_gradients(loss, X, Weights(*shapes), codec="zvc")
    assert "Reciprocal" in {row.op_type for row in stored(found.crossings)}
    assert "keep" not in {row.storage for row in found.crossings}
    made = [op for op in found.graph.get_operations() if op.type == "Comptrain>Compress"]
    behind = {name for op in made for name in ancestors(op)}
    assert made and not any(name.startswith("gradient_tape") and "MatMul" in name for name in behind)
    assert_close(found.gradients, plain_gradients(loss, X, Weights(*shapes)))


BEHIND = {
    "reshape": lambda y: tf.reshape(y, [-1, 12 * 12 * 16]),
    "sequence": lambda y: tf.reshape(y, [-1, 144, 16]),
    "transpose": lambda y: tf.reshape(tf.transpose(y, [0, 2, 1, 3]), [-1, 12 * 12 * 16]),
}


@pytest.mark.parametrize("size", [8, None])
@pytest.mark.parametrize("codec", ["plane", "zvc", "rans"])
@pytest.mark.parametrize("view", BEHIND.values(), ids=BEHIND)
def test_a_relu_that_is_read_behind_a_view_is_held_once(view, codec, size):
    def loss(x, kernel, weight):
        y = view(tf.nn.relu(tf.tensordot(x, kernel, 1)))
        return tf.reduce_sum(tf.tile(tf.tensordot(y, weight, 1), [16] + [1] * (y.shape.rank - 1)) ** 2)

    weight = [16, 40] if view is BEHIND["sequence"] else [12 * 12 * 16, 40]
    signature = [tf.TensorSpec([size, 12, 12, 16])]
    found = compressed_gradients(
        loss, IMAGES, Weights([16, 16], weight), {"input_signature": signature}, codec=codec
    )
    rows = [row for row in found.crossings if row.storage != "keep"]
    assert [(row.op_type, row.storage) for row in rows if "relu" in row.name.lower()] == [
        ("Relu", "compress")
    ]
    assert sum(row.sample_bytes == 12 * 12 * 16 * 4 for row in rows) == 1
    if codec == "zvc":
        plain = plain_gradients(loss, IMAGES, Weights([16, 16], weight))
        assert_close(found.gradients, plain, 1e-4)


def test_two_gradients_of_a_step_share_positions():
    loss, weights = pooled(POOLINGS["tf"]), Weights([16, 16])

    def twice(model):
        @tf.function(autograph=False)
        def step(x):
            kernel = model.parts[0].value
            with tf.GradientTape(persistent=True) as tape:
                value = loss(x, kernel)
                double = 2.0 * value
            return tape.gradient(value, kernel), tape.gradient(double, kernel)

        return step

    plain = [g.numpy() for g in twice(weights)(IMAGES)]
    ct.compress_model(weights, codec="zvc")
    step = twice(weights)
    assert_close([g.numpy() for g in step(IMAGES)], plain)
    types = [op.type for op in step.get_concrete_function(IMAGES).graph.get_operations()]
    assert types.count("Comptrain>MaxPool") == 1 and types.count("Comptrain>MaxPoolGrad") == 2


def test_without_variables_of_a_compressed_model_nothing_changes():
    compressed, other = Weights(*SHAPES), Weights(*SHAPES)
    ct.compress_model(compressed)
    step = gradient_step(network, other)
    types = {op.type for op in step.get_concrete_function(X).graph.get_operations()}
    assert not any(name.startswith("Comptrain>") for name in types)


def test_gradients_of_tensors_that_are_no_loss():
    """The first incoming gradient is one that the tape was given, or ones."""

    def outputs(x, first, second):
        h = tf.tanh(tf.matmul(x, first))
        return [h * tf.sin(h), tf.matmul(tf.nn.gelu(h), second)]

    found = compressed_gradients(outputs, X, Weights([64, 64], [64, 64]), codec="zvc")
    assert stored(found.crossings)
    assert_close(found.gradients, plain_gradients(outputs, X, Weights([64, 64], [64, 64])))


def test_storage_keep_is_bit_equal():
    plain = plain_gradients(network, X, Weights(*SHAPES), traced=True)
    model = Weights(*SHAPES)
    ct.compress_model(model, storage="keep")
    ours = [g.numpy() for g in gradient_step(network, model)(X)]
    assert all(np.array_equal(a, b) for a, b in zip(ours, plain))


def test_restored_models_are_plain():
    model = Weights(*SHAPES)
    ct.compress_model(model)
    ct.restore_model(model)
    types = {op.type for op in gradient_step(network, model).get_concrete_function(X).graph.get_operations()}
    assert not any(name.startswith("Comptrain>") for name in types)


def test_sites_keep_their_names_and_states_from_trace_to_trace():
    model = Weights(*SHAPES)
    ct.compress_model(model)
    gradient_step(network, model)(X)
    held = instrumentation(model).held
    names, used = list(held.sites), held.table.used
    sigmas = [site.read_state().running_sigma for site in held.sites.values()]
    assert all(sigma > 0 for sigma in sigmas)
    gradient_step(network, model)(X)
    assert list(held.sites) == names and held.table.used == used


def test_a_bound_holds_and_can_change_without_a_trace():
    model = Weights(*SHAPES)
    ct.compress_model(model, error_bound=ct.ErrorBound(0.2))
    step = gradient_step(network, model)
    step(X)
    site = next(iter(instrumentation(model).held.sites.values()))
    bytes_before = site.read_state().stream_bytes
    site.set_bound(1e-4)
    step(X)
    assert site.read_state().bound_used == pytest.approx(1e-4)
    assert site.read_state().stream_bytes > 1.5 * bytes_before
    assert step.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_types(dtype):
    def loss(x, *kernels):
        kernels = [tf.cast(kernel, dtype) for kernel in kernels]
        return tf.cast(network(tf.cast(x, dtype), *kernels), tf.float32)

    found = compressed_gradients(loss, X, Weights(*SHAPES), codec="zvc")
    assert any(row.dtype == dtype for row in stored(found.crossings))
    assert_close(found.gradients, plain_gradients(loss, X, Weights(*SHAPES)), 2e-2)


def test_under_xla():
    found = compressed_gradients(network, X, Weights(*SHAPES), function={"jit_compile": True})
    assert stored(found.crossings)
    assert "Comptrain>Fence" in {op.type for op in found.graph.get_operations()}
    assert_close(found.gradients, plain_gradients(network, X, Weights(*SHAPES)), 0.15)


def persistent(model):
    """A GAN's step: one forward pass, the first part updated before the second's gradient is taken."""
    first, second, third = (part.value for part in model.parts)
    with tf.GradientTape(persistent=True) as tape:
        loss = network(X, first, second, third)
        other = -tf.reduce_mean(network(X, first, second))
    one = tape.gradient(loss, [third])
    model.parts[2].assign_sub(0.5 * one[0])
    return one + tape.gradient(other, [first, second])


def accumulated(model):
    parts = [part.value for part in model.parts]
    total = [tf.zeros_like(part) for part in parts]
    for half in tf.split(X, 2):
        with tf.GradientTape() as tape:
            loss = network(half, *parts)
        total = [a + b for a, b in zip(total, tape.gradient(loss, parts))]
    return total


def penalty(model):
    """Second order: the norm of an input gradient is part of the loss."""
    parts = [part.value for part in model.parts]
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(X)
            loss = network(X, *parts)
        loss += tf.reduce_sum(tf.square(inner.gradient(loss, X))) * 10.0
    return outer.gradient(loss, parts)


def recomputed(model):
    parts = [part.value for part in model.parts]
    with tf.GradientTape() as tape:
        h = tf.recompute_grad(lambda x: tf.nn.gelu(tf.matmul(x, parts[0])))(X)
        loss = network(h, *parts[1:])
    return tape.gradient(loss, parts[1:])


def branch(model):
    parts = [part.value for part in model.parts]

    def gradients():
        with tf.GradientTape() as tape:
            loss = network(X, *parts)
        return tape.gradient(loss, parts)

    return tf.cond(tf.reduce_sum(X) > -1e9, gradients, lambda: [tf.zeros_like(part) for part in parts])


def with_rectifiers(model):
    parts = [part.value for part in model.parts]
    with tf.GradientTape() as tape:
        h = X
        for part in parts:
            h = tf.nn.relu(tf.matmul(h, part)) + tf.nn.leaky_relu(h)
        loss = tf.reduce_mean(tf.square(h))
    return tape.gradient(loss, parts)


@pytest.mark.parametrize("step", [persistent, accumulated, penalty, recomputed, branch, with_rectifiers])
def test_steps_of_many_shapes(step):
    def run(**how):
        model = Weights(*SHAPES)
        ct.compress_model(model, **how)
        function = tf.function(lambda: step(model), autograph=False)
        gradients = [g.numpy() for g in function()]
        return gradients, function.get_concrete_function().graph

    plain = [g.numpy() for g in step(Weights(*SHAPES))]
    exact, graph = run(codec="zvc")
    assert_close(exact, plain)
    lossy, _ = run(codec="plane")
    assert_close(lossy, plain, 0.3)
    functions = [graph, *(f.graph for f in graph._functions.values() if hasattr(f, "graph"))]
    types = {op.type for g in functions for op in g.get_operations()}
    assert step is branch or any(name.startswith("Comptrain>") for name in types)


class Custom(keras.layers.Layer):
    """No rule knows it."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]))

    def call(self, x):
        return x + keras.ops.gelu(keras.ops.matmul(x, self.kernel))


def custom_model():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((32, 64))
    x = inputs
    for k in range(4):
        x = Custom(name=f"block{k}")(x)
    model = keras.Model(inputs, keras.layers.Dense(4, name="head")(x))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def test_fit_holds_what_layers_without_a_rule_save():
    model, reference = custom_model(), custom_model()
    ct.compress_model(model)
    y = np.zeros((8, 32, 4), "float32")
    ours = model.fit(X, y, epochs=3, verbose=0).history["loss"]
    plain = reference.fit(X, y, epochs=3, verbose=0).history["loss"]
    np.testing.assert_allclose(ours, plain, rtol=0.02)
    assert ct.memory.saved_bytes(model, X, y) < 0.5 * ct.memory.saved_bytes(reference, X, y)
    rows = ct.report(model).rows
    assert any("block1" in row.layer and row.storage == "compress" for row in rows)


def test_a_layer_of_choice_keeps_its_tensors():
    model = custom_model()
    ct.compress_model(model, storage={"block1": "keep"})
    model.train_on_batch(X, np.zeros((8, 32, 4), "float32"))
    rows = [row for row in ct.report(model).rows if "block1" in row.layer and row.value_bytes]
    assert rows and all(row.storage == "keep" for row in rows)
    assert any(row.storage == "compress" for row in ct.report(model).rows if "block3" in row.layer)
