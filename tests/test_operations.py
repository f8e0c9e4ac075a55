"""Operations of keras.ops in functional graphs: held as the layers of their kind are."""

import numpy as np
import pytest
import tensorflow as tf
from models import gradients, layers
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.model import instrumentation

ops = keras.ops
SHAPE = (9, 9, 8)
# name: (operation on two tensors and a gate [1, 1, 8], class, streams, whether its gradients are exact)
CASES = {
    "multiply": (lambda x, y, gate: x * y, "Multiply", 2, False),
    "multiply_gate": (lambda x, y, gate: ops.multiply(gate, y), "Multiply", 1, False),
    "square_of_one": (lambda x, y, gate: x * x, "Multiply", 1, False),
    "matmul": (lambda x, y, gate: ops.matmul(x, ops.swapaxes(y, 2, 3)), "Matmul", 2, False),
    "einsum": (lambda x, y, gate: ops.einsum("bhwc,bhvc->bhwv", x, y), "Einsum", 2, False),
    "relu": (lambda x, y, gate: ops.relu(x), "Relu", 0, True),
    "relu6": (lambda x, y, gate: ops.relu6(4 * x), "Relu6", 0, True),
    "leaky_relu": (lambda x, y, gate: ops.leaky_relu(x, 0.1), "LeakyRelu", 0, True),
    "clip": (lambda x, y, gate: ops.clip(ops.relu(x), 0.0, 0.5), "Clip", 0, True),
    "hard_tanh": (lambda x, y, gate: ops.hard_tanh(2 * x), "HardTanh", 0, True),
    "maximum": (lambda x, y, gate: ops.maximum(x, y), "Maximum", 0, True),
    "maximum_broadcast": (lambda x, y, gate: ops.maximum(x, gate), "Maximum", 0, True),
    "minimum_constant": (lambda x, y, gate: ops.minimum(0.25, x), "Minimum", 0, True),
    "absolute": (lambda x, y, gate: ops.abs(ops.relu(x) - ops.relu(y)), "Absolute", 0, True),
    "max_pool": (lambda x, y, gate: ops.max_pool(x, 2, strides=1, padding="same"), "MaxPool", 0, True),
    "where": (lambda x, y, gate: ops.where(x > 0, x, y), "Where", 0, True),
    "tanh": (lambda x, y, gate: ops.tanh(x), "Tanh", 1, False),
    "sigmoid": (lambda x, y, gate: ops.sigmoid(x), "Sigmoid", 1, False),
    "silu": (lambda x, y, gate: ops.silu(x), "Silu", 1, False),
    "gelu": (lambda x, y, gate: ops.gelu(3 * x), "Gelu", 1, False),
    "gelu_exact": (lambda x, y, gate: ops.gelu(3 * x, approximate=False), "Gelu", 1, False),
    "softmax": (lambda x, y, gate: ops.softmax(x, axis=1), "Softmax", 1, False),
    "elu": (lambda x, y, gate: ops.elu(x, alpha=0.5), "Elu", 1, False),
    "exp": (lambda x, y, gate: ops.exp(x), "Exp", 1, False),
    "square": (lambda x, y, gate: ops.square(x), "Square", 1, False),
    "cube": (lambda x, y, gate: x**3, "Power", 1, False),
    "variance": (lambda x, y, gate: ops.var(x, axis=(1, 2), keepdims=True), "Var", 1, False),
    "layer_norm": (lambda x, y, gate: ops.layer_normalization(x), "LayerNorm", 1, False),
}  # fmt: skip


def build(operation):
    """The operation between what convolutions make and what one reads, so that its gradient travels on."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input(SHAPE)
    x, y = (layers.Conv2D(8, 3, padding="same", name=name)(inputs) for name in ("left", "right"))
    gate = layers.GlobalAveragePooling2D(keepdims=True)(y)
    z = layers.Conv2D(4, 1, name="after")(operation(x, y, gate))
    return compiled(keras.Model(inputs, layers.GlobalAveragePooling2D()(z)))


def compiled(model):
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def data(model):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, *model.input_shape[1:])).astype("float32")
    return x, rng.normal(size=(4, *model.output_shape[1:])).astype("float32")


@pytest.mark.parametrize(
    ("case", "graph"),
    [(case, True) for case in CASES]
    + [(case, False) for case in ("multiply_gate", "maximum_broadcast", "gelu")],
)
def test_a_tight_bound_gives_plain_gradients(case, graph):
    operation, kind, streams, exact = CASES[case]
    plain = build(operation)
    loss, expected = gradients(plain, *data(plain), graph=graph)
    model = build(operation)
    # Convolutions in the model are plain, so that what is looked at is the operation alone.
    report = ct.compress_model(model, error_bound=1e-6, storage={layers.Conv2D: "keep"})
    assert [row for row in report.rows if row.layer_class == kind and row.storage != "keep"]
    ours_loss, ours = gradients(model, *data(model), graph=graph)
    np.testing.assert_allclose(ours_loss, loss, rtol=1e-6)
    for name, value in expected.items():
        # TensorFlow fuses the gradients of a kernel and a bias, and sums in another order, where it can.
        tolerance = 1e-6 if exact and name.endswith("kernel") else 1e-5
        np.testing.assert_allclose(ours[name], value, rtol=tolerance, atol=tolerance * np.abs(value).max())
    used = [site.read_state().stream_bytes > 0 for site in instrumentation(model).sites().values()]
    assert sum(used) == streams


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
    assert not ct.compress_model(model).skipped
    held = {m.name: ct.memory.saved_bytes(m, x, y) for m in (plain, model)}
    assert held["ours"] < held["plain"] / 3.5
    ct.restore_model(model)
    assert ct.memory.saved_bytes(model, x, y) == held["plain"]


@pytest.mark.parametrize(
    "case",
    [
        "log",
        "quotient",
        "root",
        "std",
        "unit",
        "unit_layer",
        "maximum_of_all",
        "unequal_windows",
        "lambda",
        "images",
    ],
)
def test_what_is_kept_has_a_reason(case):
    operation, reason = {
        "log": (lambda x, y: ops.log(ops.exp(x)), "without bound"),
        "quotient": (lambda x, y: x / ops.exp(y), "without bound"),
        "root": (lambda x, y: ops.exp(x) ** 0.5, "without bound"),
        "std": (lambda x, y: ops.std(x, axis=(1, 2), keepdims=True), "without bound"),
        "unit": (lambda x, y: ops.normalize(x), "without bound"),
        "unit_layer": (lambda x, y: layers.UnitNormalization()(x), "without bound"),
        "unequal_windows": (lambda x, y: layers.AdaptiveMaxPooling2D(4)(x), "windows of unequal size"),
        "lambda": (lambda x, y: layers.Lambda(lambda t: 2 * t)(x), "Recompute(layer) holds the exact input"),
        "images": (lambda x, y: layers.RandomFlip()(x), "Recompute(layer) holds its input"),
        "maximum_of_all": (lambda x, y: ops.max(x, axis=-1, keepdims=True), "no rule for Max"),
    }[case]
    model = build(lambda x, y, gate: operation(x, y))
    (row,) = ct.compress_model(model).skipped
    assert reason in row.note


@pytest.mark.parametrize("normalize", [True, False])
def test_cosines_stay_plain(normalize):
    x = keras.Input((100,))
    dot = layers.Dot(1, normalize=normalize, name="dot")([layers.Dense(100)(x), layers.Dense(100)(x)])
    rows = [
        row for row in ct.compress_model(keras.Model(x, layers.Dense(4)(dot))).skipped if row.layer == "dot"
    ]
    assert bool(rows) == normalize and all("without bound" in row.note for row in rows)


def test_a_constant_keeps_no_tensor():
    """And does not keep others from compressing what it reads."""

    def build(operation):
        x = layers.BatchNormalization()(inputs := keras.Input((16, 16, 4)))
        return keras.Model(inputs, layers.Conv2D(4, 3, padding="same", name="conv")(x) + operation(x))

    for operation in (
        lambda x: 0.5 * x,
        lambda x: x / 2.0,
        lambda x: x - 1.0,
        lambda x: x * np.ones(4, "float32"),
    ):
        report = ct.compress_model(build(operation))
        assert not report.skipped
        held = [row for row in report.rows if row.storage == "compress"]
        assert {row.layer_class for row in held} == {"BatchNormalization", "Conv2D"}
    report = ct.compress_model(build(ops.log))
    assert {row.layer_class: row.storage for row in report.rows}["Conv2D"] == "keep"


def test_storage_by_name_and_class():
    relu = type(ops.relu(keras.Input((3,)))._keras_history.operation)
    model = build(lambda x, y, gate: ops.relu(x) * y)
    names = {type(op).__name__: op.name for op in model.operations}
    report = ct.compress_model(model, storage={relu: "keep", names["Multiply"]: "keep"})
    assert {row.layer_class for row in report.skipped} >= {"Relu", "Multiply"}


def test_nested_models_and_files(tmp_path):
    inner_input = keras.Input(SHAPE)
    inner = keras.Model(inner_input, ops.gelu(layers.Conv2D(8, 3, padding="same")(inner_input)), name="inner")
    inputs = keras.Input(SHAPE)
    model = compiled(keras.Model(inputs, layers.GlobalAveragePooling2D()(inner(inputs) * inner(inputs))))
    report = ct.compress_model(model)
    assert any(row.layer.startswith("inner/gelu") for row in report.rows)
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

    model = build(lambda x, y, gate: Scale()(x))
    assert [row.note for row in ct.compress_model(model).skipped] == ["no rule for Scale"]
    ct.register_rule(Scale)(ct.rules.FromInput())
    assert not ct.compress_model(build(lambda x, y, gate: Scale()(x))).skipped
