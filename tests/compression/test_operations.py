"""Operations of keras.ops in functional graphs: held as the layers of their kind are."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from models import gradients, layers
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.compression.instrumentation import instrumentation

ops = keras.ops
SHAPE = (9, 9, 8)
# name: operation on two tensors and a gate [1, 1, 8]
CASES = {
    "multiply": lambda x, y, gate: x * y,
    "multiply_gate": lambda x, y, gate: ops.multiply(gate, y),
    "square_of_one": lambda x, y, gate: x * x,
    "matmul": lambda x, y, gate: ops.matmul(x, ops.swapaxes(y, 2, 3)),
    "einsum": lambda x, y, gate: ops.einsum("bhwc,bhvc->bhwv", x, y),
    "relu": lambda x, y, gate: ops.relu(x),
    "relu6": lambda x, y, gate: ops.relu6(4 * x),
    "leaky_relu": lambda x, y, gate: ops.leaky_relu(x, 0.1),
    "clip": lambda x, y, gate: ops.clip(ops.relu(x), 0.0, 0.5),
    "hard_tanh": lambda x, y, gate: ops.hard_tanh(2 * x),
    "maximum": lambda x, y, gate: ops.maximum(x, y),
    "maximum_broadcast": lambda x, y, gate: ops.maximum(x, gate),
    "minimum_constant": lambda x, y, gate: ops.minimum(0.25, x),
    "absolute": lambda x, y, gate: ops.abs(ops.relu(x) - ops.relu(y)),
    "max_pool": lambda x, y, gate: ops.max_pool(x, 2, strides=1, padding="same"),
    "where": lambda x, y, gate: ops.where(x > 0, x, y),
    "tanh": lambda x, y, gate: ops.tanh(x),
    "sigmoid": lambda x, y, gate: ops.sigmoid(x),
    "silu": lambda x, y, gate: ops.silu(x),
    "gelu": lambda x, y, gate: ops.gelu(3 * x),
    "gelu_exact": lambda x, y, gate: ops.gelu(3 * x, approximate=False),
    "softmax": lambda x, y, gate: y * ops.softmax(x * y, axis=1),  # a bias would shift all, a mean be constant
    "elu": lambda x, y, gate: ops.elu(x, alpha=0.5),
    "exp": lambda x, y, gate: ops.exp(x),
    "square": lambda x, y, gate: ops.square(x),
    "cube": lambda x, y, gate: x**3,
    "variance": lambda x, y, gate: ops.var(x, axis=(1, 2), keepdims=True),
    "layer_norm": lambda x, y, gate: ops.layer_normalization(x),
}  # fmt: skip


def branch(inputs, operation, name):
    """The operation between what convolutions make and what one reads, so that its gradient travels on."""
    x, y = (layers.Conv2D(8, 3, padding="same", name=f"{name}_{side}")(inputs) for side in ("left", "right"))
    gate = layers.GlobalAveragePooling2D(keepdims=True)(y)
    return layers.GlobalAveragePooling2D()(layers.Conv2D(4, 1, name=f"{name}_after")(operation(x, y, gate)))


def build(operations):
    keras.utils.set_random_seed(0)
    inputs = keras.Input(SHAPE)
    found = [branch(inputs, operation, name) for name, operation in operations.items()]
    return compiled(keras.Model(inputs, layers.Concatenate()(found) if len(found) > 1 else found[0]))


def compiled(model):
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def data(model):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, *model.input_shape[1:])).astype("float32")
    return x, rng.normal(size=(8, *model.output_shape[1:])).astype("float32")


@functools.lru_cache
def of_all():
    """Gradients of a model with a branch for each operation: plain, and with a tight bound."""
    plain = build(CASES)
    _, expected = gradients(plain, *data(plain))
    model = build(CASES)
    report = ct.compress_model(model, error_bound=1e-6)
    _, ours = gradients(model, *data(model))
    assert sum(row.storage in ("compress", "bitmask") for row in report.rows) > len(CASES)
    return expected, ours


@pytest.mark.parametrize("case", CASES)
def test_a_tight_bound_gives_plain_gradients(case):
    expected, ours = of_all()
    kernels = [name for name in expected if name.startswith(f"{case}_")]
    assert len(kernels) >= 4
    for name in kernels:
        scale = np.abs(expected[name]).max()
        np.testing.assert_allclose(ours[name], expected[name], rtol=1e-4, atol=1e-5 * scale)


def test_held_bytes_fall():
    def build(kind):
        keras.utils.set_random_seed(0)
        x = inputs = keras.Input((16, 16, 32))
        for _ in range(4):
            x = ops.gelu(layers.Conv2D(32, 3, padding="same")(x))
            x = ops.maximum(x * ops.sigmoid(layers.Conv2D(32, 3, padding="same")(x)), -0.1)
        return compiled(keras.Model(inputs, layers.GlobalAveragePooling2D()(x), name=kind))

    plain, model = build("plain"), build("ours")
    x, y = (tf.constant(part) for part in data(plain))
    ct.compress_model(model)
    held = {m.name: ct.memory.saved_bytes(m, x, y) for m in (plain, model)}
    assert held["ours"] < held["plain"] / 3.5
    ct.restore_model(model)
    assert ct.memory.saved_bytes(model, x, y) == held["plain"]


@pytest.mark.parametrize(
    "operation",
    [
        lambda x, y, gate: x / ops.exp(y),
        lambda x, y, gate: ops.normalize(x),
    ],
    ids=["quotient", "unit"],
)
def test_divisors_are_kept_with_a_reason(operation):
    report = ct.compress_model(build({"case": operation}))
    notes = [row.note for row in report.rows if row.storage == "keep"]
    assert any("without bound" in note or "very value" in note for note in notes), report.rows


def test_storage_by_name_and_class():
    relu = type(ops.relu(keras.Input((3,)))._keras_history.operation)
    model = build({"case": lambda x, y, gate: ops.relu(x) * y})
    names = {type(op).__name__: op.name for op in model.operations}
    report = ct.compress_model(model, storage={relu: "keep", names["Multiply"]: "keep"})
    assert {row.note for row in report.skipped} == {"storage='keep'"}
    assert {row.layer_class for row in report.skipped} >= {"Relu", "BiasAdd"}


def test_nested_models_and_files(tmp_path):
    inner_input = keras.Input(SHAPE)
    inner = keras.Model(inner_input, ops.gelu(layers.Conv2D(8, 3, padding="same")(inner_input)), name="inner")
    inputs = keras.Input(SHAPE)
    model = compiled(keras.Model(inputs, layers.GlobalAveragePooling2D()(inner(inputs) * inner(inputs))))
    ct.compress_model(model)
    x, y = data(model)
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))


def test_an_operation_of_the_user():
    class Scale(keras.Operation):
        def call(self, x):
            return x * tf.sigmoid(x)

        def compute_output_spec(self, x):
            return keras.KerasTensor(x.shape, x.dtype)

    ct.register_rule(Scale)(ct.rules.FromInput())
    model = build({"case": lambda x, y, gate: Scale()(x)})
    ct.compress_model(model)
    assert [site.kind for site in instrumentation(model).own_sites().values()] == ["nonlinear"]
    model.train_on_batch(*data(model))
    assert all(site.read_state().stream_bytes for site in instrumentation(model).sites().values())
