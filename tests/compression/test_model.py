"""compress_model: off means off, on means the same training within the bound, and nothing is left behind."""

import json
import logging

import numpy as np
import pytest
import tensorflow as tf
from models import compiled, gradients, images, layers, rows_of, site_of, small_cnn
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.compression.instrumentation import instrumentation, is_compressed

X, Y = images(32)
TIGHT = 1e-5


def train(model, steps=20, batch=8):
    history = []
    for k in range(steps):
        part = slice(k % 4 * batch, (k % 4 + 1) * batch)
        history.append(float(model.train_on_batch(X[part], Y[part])))
    return history, [v.numpy() for v in model.variables]


def streams(model):
    """Operations that make what the last step has held as a stream."""
    return {name for name, site in instrumentation(model).sites().items() if site.read_state().stream_bytes}


@pytest.fixture(scope="module")
def plain_training():
    return train(compiled(small_cnn()))


def test_keep_everywhere_is_bit_equal_to_plain_keras(plain_training):
    plain_losses, plain_weights = plain_training
    model = compiled(small_cnn())
    report = ct.compress_model(model, storage="keep")
    losses, weights = train(model)
    assert losses == plain_losses
    assert all(np.array_equal(a, b) for a, b in zip(weights, plain_weights))
    assert not report.rows and not instrumentation(model).sites()


def test_compressed_training_follows_plain_training(plain_training):
    plain_losses, plain_weights = plain_training
    model = compiled(small_cnn())
    ct.compress_model(model, error_bound=TIGHT)
    losses, weights = train(model)
    np.testing.assert_allclose(losses, plain_losses, rtol=2e-3)
    moving = [(a, b) for a, b, v in zip(weights, plain_weights, model.variables) if "moving" in v.path]
    assert moving
    for ours, plain in moving:
        np.testing.assert_allclose(ours, plain, rtol=1e-3, atol=1e-5)


def test_restore_gives_plain_keras_back(plain_training):
    model = compiled(small_cnn())
    ct.compress_model(model)
    ct.restore_model(model)
    assert not is_compressed(model)
    assert train(model)[0] == plain_training[0]


def test_a_patch_after_fit_takes_effect():
    model = compiled(small_cnn())
    model.fit(X, Y, batch_size=8, verbose=0)
    ct.compress_model(model)
    model.fit(X, Y, batch_size=8, verbose=0)
    assert len(streams(model)) == 3


def test_inference_is_plain_keras():
    model = compiled(small_cnn())
    before = model.predict(X, verbose=0)
    names = [v.path for v in model.variables]
    config = json.dumps(model.get_config(), default=str)
    ct.compress_model(model)
    assert np.array_equal(model.predict(X, verbose=0), before)
    assert [v.path for v in model.variables] == names
    assert json.dumps(model.get_config(), default=str) == config
    model.train_on_batch(X[:8], Y[:8])
    states = {name: site.read_state() for name, site in instrumentation(model).sites().items()}
    model.predict(X, verbose=0)
    model.evaluate(X, Y, verbose=0)
    assert {name: site.read_state() for name, site in instrumentation(model).sites().items()} == states


def test_report_names_every_tensor_that_crosses_and_prints_as_a_table():
    report = ct.compress_model(small_cnn())
    expected = ("conv1", "relu1", "conv2", "pool", "flatten", "dense1")
    assert [name for row in report.rows for name in expected if name in row.layer] == list(expected)
    (relu,), (mask,) = rows_of(report, "relu1"), rows_of(report, "conv2")
    assert relu.storage == "compress"  # which serves its own gradient as well
    assert mask.storage == "bitmask" and mask.predicted_bytes == 16 * 16 * 32 / 8
    assert sum(row.value_bytes for row in report.rows) > 5 * report.predicted_bytes
    assert "conv1" in str(report) and "0.2 sigma" in str(report)
    assert [row.path for row in report.rows] == [
        "conv1",
        "relu1",
        "conv2",
        "pool",
        "dropout",
        "flatten",
        "dense1",
    ]
    assert "conv1" in json.loads(report.to_json())["rows"][0]["layer"]


def test_a_pooling_has_its_positions_beside_what_it_makes():
    keras.utils.set_random_seed(0)
    parts = [layers.Conv2D(16, 3), layers.MaxPooling2D(name="pool"), layers.Conv2D(8, 3), layers.Flatten()]
    model = compiled(keras.Sequential([keras.Input((16, 16, 3)), *parts, layers.Dense(10)]))
    report = ct.compress_model(model)
    model.train_on_batch(*images())
    found = [(row.storage, row.note, row.predicted_bytes) for row in rows_of(report, "pool_1/")]
    assert [row[:2] for row in found] == [("compress", ""), ("bitmask", "by the layer itself")], found
    assert found[1][2] == 7 * 7 * 16 * 2 / 8  # two bits for each of four places


def test_one_stored_copy_serves_all_consumers():
    inputs = keras.Input((8, 8, 32))
    x = layers.ReLU(name="relu")(layers.Conv2D(32, 1, name="first")(inputs))
    a = layers.Conv2D(32, 3, padding="same", name="a")(x)
    b = layers.Conv2D(32, 1, name="b")(x)
    outputs = layers.GlobalAveragePooling2D()(layers.Add()([a, b, x]))
    model = compiled(keras.Model(inputs, outputs))
    ct.compress_model(model)
    model.train_on_batch(np.random.default_rng(0).normal(size=(4, 8, 8, 32)).astype("float32"), Y[:4])
    (name,) = streams(model)
    assert "relu" in name


def test_a_tensor_that_a_consumer_keeps_is_not_compressed_as_well():
    inputs = keras.Input((8, 8, 32))
    x = layers.Conv2D(32, 1, activation="softplus", name="first")(inputs)
    kept = layers.Lambda(tf.math.lgamma, name="kept")(x)
    other = layers.Conv2D(32, 3, padding="same", name="other")(x)
    model = keras.Model(inputs, layers.Conv2D(8, 1)(layers.Add()([kept, other])))
    rows = [row for row in rows_of(ct.compress_model(model), "first") if "Softplus" in row.layer_class]
    assert [row.storage for row in rows] == ["keep"] and "Conv2DBackpropFilter" in rows[0].role


def test_choosing_storage_by_name_class_and_function():
    by_name = ct.compress_model(small_cnn(), storage={"conv1": "keep", layers.Dense: "keep"})
    kept = ("conv1", "flatten", "dense1")  # what these layers make and read
    assert all(rows_of(by_name, name) for name in kept)
    assert all(any(name in row.layer for name in kept) for row in by_name.skipped)
    assert all(row.storage == "keep" for name in kept for row in rows_of(by_name, name))
    assert {row.note for row in by_name.skipped} == {"storage='keep'"}
    by_function = ct.compress_model(
        small_cnn(), storage=lambda layer: "fused" if isinstance(layer, layers.BatchNormalization) else "keep"
    )
    assert {row.storage for row in by_function.rows} == {"keep"}


def test_the_layer_that_makes_a_tensor_says_how_it_is_held():
    (alone,) = rows_of(ct.compress_model(small_cnn(), storage={"conv2": "keep"}), "relu1")
    (said,) = rows_of(ct.compress_model(small_cnn(), storage={"conv2": "keep", "relu1": "compress"}), "relu1")
    assert (alone.storage, said.storage) == ("keep", "compress")


def test_storage_of_an_operation_that_reads_a_constant():
    inputs = keras.Input((16, 128))
    scaled = layers.Dense(64, activation="tanh")(inputs) * tf.constant(2.0)
    model = keras.Model(inputs, layers.Dense(10)(scaled))
    model.compile("sgd", "mse")
    report = ct.compress_model(model, storage=lambda layer: None if layer.name == "dense" else "keep")
    rng = np.random.default_rng(0)
    model.fit(rng.normal(size=(32, 16, 128)), rng.normal(size=(32, 16, 10)), batch_size=16, verbose=0)
    assert "storage='keep'" in {row.note for row in report.skipped}


def test_fused_batch_normalization_trains_like_plain():
    model = compiled(small_cnn())
    ct.compress_model(
        model, storage=lambda layer: "fused" if isinstance(layer, layers.BatchNormalization) else "keep"
    )
    loss, ours = gradients(model, X, Y)
    reference = compiled(small_cnn())
    loss_plain, plain = gradients(reference, X, Y, graph=False)
    assert loss == pytest.approx(loss_plain, rel=1e-5)
    for path, value in plain.items():
        np.testing.assert_allclose(ours[path], value, rtol=1e-3, atol=1e-5)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.conv = layers.Conv2D(32, 3, activation="relu", name="conv")
        self.pool = layers.GlobalAveragePooling2D()
        self.head = keras.Sequential([layers.Dense(256, activation="tanh"), layers.Dense(10)], name="head")

    def call(self, x, training=None):
        return self.head(self.pool(self.conv(x)), training=training)


def test_subclassed_and_nested_models():
    keras.utils.set_random_seed(0)
    model = compiled(Subclassed())
    report = ct.compress_model(model)
    model.fit(X, Y, batch_size=8, epochs=2, verbose=0)
    assert [row.storage for row in rows_of(report, "/head_1/")] == ["compress"]
    assert site_of(instrumentation(model), "/head_1/").read_state().stream_bytes > 0
    ct.restore_model(model)
    model.fit(X, Y, batch_size=8, verbose=0)


def test_custom_loops():
    plain_loss, plain = gradients(compiled(small_cnn()), X, Y, graph=False)
    model = compiled(small_cnn())
    ct.compress_model(model, error_bound=TIGHT)
    loss, ours = gradients(model, X, Y)
    assert len(streams(model)) == 4
    assert loss == pytest.approx(plain_loss, rel=1e-5)
    for path, value in plain.items():
        np.testing.assert_allclose(ours[path], value, rtol=1e-3, atol=1e-3 * np.abs(value).max())


def test_a_gradient_in_a_scope_of_no_training_is_left_plain():
    model = compiled(small_cnn())
    ct.compress_model(model)
    with ct.training_scope(False):
        gradients(model, X, Y)
    assert not instrumentation(model).sites()
    with ct.training_scope(True):
        gradients(model, X, Y)
    assert streams(model)


def test_partial_batches():
    model = compiled(small_cnn())
    ct.compress_model(model)
    model.fit(X[:20], Y[:20], batch_size=8, verbose=0)
    assert streams(model) and streams(model) == set(instrumentation(model).sites())


def test_eager_models_train_as_plain_keras_and_say_so_once(caplog):
    plain = compiled(small_cnn(), run_eagerly=True).fit(X[:16], Y[:16], batch_size=8, verbose=0)
    model = compiled(small_cnn(), run_eagerly=True)
    ct.compress_model(model, error_bound=1.0)
    with caplog.at_level(logging.WARNING, logger="absl"):
        ours = model.fit(X[:16], Y[:16], batch_size=8, verbose=0)
        gradients(model, X, Y, graph=False)
    (message,) = [record.getMessage() for record in caplog.records if "eager" in record.getMessage()]
    assert "'small_cnn'" in message and "run_eagerly" in message
    np.testing.assert_allclose(ours.history["loss"], plain.history["loss"], rtol=1e-6)
    assert not instrumentation(model).sites()


def test_empty_batch():
    # Without convolutions: TensorFlow's own oneDNN kernels fail on empty batches.
    hidden = [layers.Dense(64, activation="relu"), layers.Dropout(0.5), layers.Dense(64, activation="tanh")]
    model = compiled(keras.Sequential([keras.Input((96,)), *hidden, layers.Dense(10)]))
    ct.compress_model(model)
    _, grads = gradients(model, np.zeros((0, 96), "float32"), Y[:0])
    assert all(np.all(value == 0) for value in grads.values())


def test_bounds_change_without_retracing():
    model = small_cnn()
    traces = []

    class Counter(layers.Layer):
        def call(self, x):
            traces.append(1)
            return x

    model = compiled(keras.Sequential([Counter(), model]))
    model.build((None, 16, 16, 3))
    ct.compress_model(model)
    model.train_on_batch(X[:8], Y[:8])
    seen = len(traces)
    for site in instrumentation(model).sites().values():
        site.set_bound(0.5)
    model.train_on_batch(X[:8], Y[:8])
    assert len(traces) == seen
    assert all(s.read_state().bound_used == 0.5 for s in instrumentation(model).sites().values())


def test_running_sigma_and_the_first_step():
    identity = layers.Conv2D(32, 1, use_bias=False, trainable=False, name="identity")
    model = keras.Sequential([keras.Input((8, 8, 32)), identity, layers.Conv2D(10, 8), layers.Flatten()])
    identity.kernel.assign(np.eye(32)[None, None])
    ct.compress_model(compiled(model))
    rng = np.random.default_rng(0)
    first, second = (rng.normal(scale=s, size=(4, 8, 8, 32)).astype("float32") for s in (1.0, 3.0))
    model.train_on_batch(first, Y[:4])
    site = site_of(instrumentation(model), "identity")
    state = site.read_state()
    own = state.running_sigma  # of a sample
    assert own == pytest.approx(first.std(), rel=0.05) and state.bound_used == pytest.approx(
        0.2 * own, rel=1e-4
    )
    model.train_on_batch(second, Y[:4])
    state = site.read_state()
    assert state.bound_used == pytest.approx(0.2 * own, rel=1e-4)
    assert state.running_sigma == pytest.approx(0.9 * own + 0.1 * second.std(), rel=0.02)


def test_the_bound_follows_what_reads_a_tensor():
    x = inputs = keras.Input((8, 8, 32))
    x = layers.BatchNormalization()(layers.Conv2D(32, 3, name="first")(x))
    x = layers.Conv2D(32, 3, name="second")(layers.ReLU(name="relu")(x))
    x = layers.Dense(64, name="dense")(layers.Activation("tanh", name="tanh")(x))
    model = compiled(keras.Model(inputs, layers.Flatten()(layers.Conv2D(10, 4)(x))))
    ct.compress_model(model)
    model.train_on_batch(np.random.default_rng(0).normal(size=(4, 8, 8, 32)).astype("float32"), Y[:4])
    handle = instrumentation(model)
    kinds = {part: site_of(handle, part).kind for part in ("first", "relu", "tanh", "dense")}
    assert kinds == {"first": "norm", "relu": "convolution", "tanh": "nonlinear", "dense": "convolution"}
    dense = compiled(
        keras.Sequential([keras.Input((8, 64)), layers.Dense(64), layers.ReLU(name="relu"), layers.Dense(64)])
    )
    ct.compress_model(dense)
    x = np.random.default_rng(0).normal(size=(32, 8, 64)).astype("float32")
    dense.train_on_batch(x, np.zeros((32, 8), int))
    assert {site.kind for site in instrumentation(dense).sites().values()} == {"linear"}


def penalty_gradients(model):
    """Of the square of a gradient, by the input and the first kernel."""
    x = tf.constant(X[:4])
    kernel = model.trainable_variables[0].value
    with tf.GradientTape() as outer:
        outer.watch([x, kernel])
        with tf.GradientTape() as inner:
            inner.watch(x)
            loss = tf.reduce_sum(model(x, training=True) ** 2)
        penalty = tf.reduce_sum(inner.gradient(loss, x) ** 2)
    return outer.gradient(penalty, [x, kernel])


@pytest.mark.parametrize("graph", [True, False])
def test_gradients_of_gradients_are_those_of_plain_keras(graph):
    plain, model = small_cnn(), small_cnn()
    ct.compress_model(model, error_bound=1e-6)
    expected, found = (
        (tf.function(penalty_gradients) if graph else penalty_gradients)(m) for m in (plain, model)
    )
    for ours, theirs in zip(found, expected):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3 * np.abs(theirs).max())


def test_one_tape_for_both_derivatives_is_refused():
    model = compiled(small_cnn())
    ct.compress_model(model)
    x = tf.constant(X[:4])
    with pytest.raises(LookupError, match="second-order"), tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        loss = tf.reduce_sum(model(x, training=True) ** 2)
        tape.gradient(tf.reduce_sum(tape.gradient(loss, x) ** 2), x)


def test_for_the_weights_of_a_frozen_layer_nothing_is_held():
    model = small_cnn()
    model.get_layer("conv2").trainable = False
    report = ct.compress_model(compiled(model))
    for _ in range(2):
        assert [row.storage for row in rows_of(report, "relu1")] == ["bitmask"]  # its own gradient alone
        model.train_on_batch(X[:8], Y[:8])
    assert not any("relu1" in name for name in streams(model))


def test_below_what_is_trained_nothing_is_held():
    """A frozen base, for transfer learning: no gradient passes its ReLUs and poolings either."""
    base = small_cnn()
    base.trainable = False
    inputs = keras.Input((16, 16, 3))
    x = layers.Dense(256, activation="relu", name="hidden")(base(inputs, training=False))
    model = compiled(keras.Model(inputs, layers.Dense(10, name="head")(x)))
    report = ct.compress_model(model)
    model.fit(X, Y, verbose=0)
    assert report.rows and all("hidden" in row.layer for row in report.rows)


def test_the_gradient_for_an_image_through_frozen_layers_is_held():
    """As an attack on the model takes it, in a `training_scope`: saliency is inference."""
    hidden = [layers.Conv2D(8, 3, activation="tanh", name="frozen"), layers.Conv2D(8, 3)]
    model = keras.Sequential([keras.Input((16, 16, 8)), *hidden])
    model.trainable = False
    x = tf.random.stateless_normal((4, 16, 16, 8), (1, 2))

    @tf.function
    def attack(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = model(x)
        return tape.gradient(y, x)

    plain = attack(x)
    ct.compress_model(model)
    np.testing.assert_allclose(tf.function(attack.python_function)(x), plain, rtol=1e-5, atol=1e-6)
    with ct.training_scope():
        ours = tf.function(attack.python_function)(x)
    assert site_of(instrumentation(model), "frozen").read_state().stream_bytes > 0
    np.testing.assert_allclose(ours, plain, atol=0.05 * np.abs(plain).max())
    assert not np.array_equal(ours, plain)


def test_what_an_activation_makes_is_rebuilt_from_what_it_reads():
    inputs = keras.Input((8, 8, 32))
    x = layers.Conv2D(32, 3, padding="same", activation="gelu", name="first")(inputs)
    (row,) = ct.compress_model(keras.Model(inputs, layers.Conv2D(32, 3, name="second")(x))).rows
    assert "first" in row.layer and row.value_bytes == 8 * 8 * 32 * 4
    assert row.role == "read by Conv2DBackpropFilter, Mul"


def test_what_several_layers_read_is_counted_once():
    inputs = keras.Input((8, 8, 32))
    x = layers.Conv2D(32, 3, padding="same", name="first")(inputs)
    gate = layers.Activation("gelu", name="gate")(x)
    y = layers.Concatenate()([gate, layers.Conv2D(32, 3, padding="same", name="beside")(x)])
    report = ct.compress_model(keras.Model(inputs, layers.Conv2D(8, 1)(y)))
    assert [row.value_bytes for row in rows_of(report, "first")] == [8 * 8 * 32 * 4]
    assert sum(row.value_bytes for row in report.rows) == 2 * 8 * 8 * 32 * 4  # and what is beside the gate


def test_the_sums_say_what_they_leave_out():
    inputs = keras.Input((None, 32))
    x = layers.Conv1D(64, 3, name="after")(layers.Conv1D(64, 3, name="conv")(inputs))
    x = layers.GlobalAveragePooling1D(name="mean")(x)
    model = compiled(keras.Model(inputs, layers.Dense(10, name="head")(x)))
    report = ct.compress_model(model)
    (unknown,) = report.unpredicted
    assert "conv" in unknown.layer
    assert "not counting 1 of unknown shape" in str(report)
    x = np.zeros((8, 20, 32), "float32")
    assert ct.memory.report(model, x, Y[:8], timeline=False).predicted_bytes is None


class Untold(keras.Model):
    """What it takes, and what crosses in it, is known when it is traced."""

    def __init__(self):
        super().__init__()
        self.conv = layers.Conv2D(16, 3, activation="relu", name="conv")
        self.normalization = layers.BatchNormalization(name="normalization")
        self.head = layers.Dense(10, name="head")

    def call(self, x):
        x = tf.tanh(self.normalization(self.conv(x)) * 0.5)
        return self.head(tf.reduce_mean(x, [1, 2]))


def test_a_report_fills_itself_when_a_step_is_traced():
    model = compiled(Untold())
    report = ct.compress_model(model)
    assert not report.rows
    model.fit(X, Y, verbose=0)
    assert not report.unpredicted and report.predicted_bytes < sum(row.value_bytes for row in report.rows) / 4
    rows = report.rows
    assert [row.shape for row in rows_of(report, "conv_")] == [(14, 14, 16)]
    assert any("TanhGrad" in row.role and row.storage == "compress" for row in rows)
    assert ct.report(model) is report
    ct.restore_model(model)
    assert report.rows == rows


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"error_bound": 0.0}, ValueError, "storage='keep'"),
        ({"error_bound": -1.0}, ValueError, "-1.0"),
        ({"error_bound": float("nan")}, ValueError, "nan"),
        ({"error_bound": 1e-40}, ValueError, "1e-40"),
        ({"error_bound": "small"}, TypeError, "'small'"),
        ({"codec": "zip"}, ValueError, "'zip'"),
        ({"storage": "disk"}, ValueError, "'disk'"),
        ({"storage": {"conv9": "keep"}}, ValueError, "'conv9'"),
        ({"storage": {"conv1": "bitmask"}}, ValueError, "'bitmask'"),
        ({"storage": 3}, TypeError, "3"),
        ({"offload": False}, ValueError, "`offload` goes with `memory`"),
        ({"microbatches": True}, ValueError, "`microbatches` goes with `memory`"),
        ({"microbatches": 4}, TypeError, "`microbatches` must be True, False or None"),
    ],
)
def test_bad_arguments_change_nothing(arguments, error, message):
    model = compiled(small_cnn())
    with pytest.raises(error, match=message):
        ct.compress_model(model, **arguments)
    assert not is_compressed(model)
    assert not any("call" in vars(layer) for layer in model.layers)


def test_a_model_or_layer_is_compressed_once():
    model = small_cnn()
    ct.compress_model(model)
    with pytest.raises(ValueError, match="compressed already"):
        ct.compress_model(model)
    shared = keras.Model(model.inputs, model.get_layer("pool").output, name="trunk")
    with pytest.raises(ValueError, match="not compressed"):
        ct.restore_model(shared)
    with pytest.raises(TypeError, match="keras.Model"):
        ct.compress_model(model.layers[1])
    call = vars(model.get_layer("bn1"))["call"]
    ct.compress_model(shared)
    ct.restore_model(shared)
    assert vars(model.get_layer("bn1"))["call"] is call
    by_hand = small_cnn()
    by_hand.layers[1].__dict__["call"] = lambda x: x
    with pytest.raises(ValueError, match="of its own"):
        ct.compress_model(by_hand)


def grouped_cnn():
    """Two conv-BN-ReLU groups before a third convolution, one of them with swish."""
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((16, 16, 32))
    for k, activation in enumerate(("relu", "swish")):
        x = layers.Conv2D(32, 3, padding="same", use_bias=False, name=f"conv{k}")(x)
        x = layers.BatchNormalization(name=f"bn{k}")(x)
        x = layers.Activation(activation, name=activation)(x)
    x = layers.Conv2D(10, 3, name="conv2")(x)
    return compiled(keras.Model(inputs, layers.GlobalAveragePooling2D()(x)))


def test_recompute_rebuilds_inputs_from_the_stream_of_the_normalization():
    x = np.random.default_rng(0).normal(size=(16, 16, 16, 32)).astype("float32")
    y = Y[:16]
    plain = [float(v) for v in map(grouped_cnn().train_on_batch, [x] * 3, [y] * 3)]
    model = grouped_cnn()
    report = ct.compress_model(model, storage="rebuild", error_bound=1e-5)
    (first,), (mask,), (second,) = (rows_of(report, name) for name in ("conv0", "relu", "conv1"))
    assert len(report.rows) == 3 and mask.storage == "bitmask"
    assert first.role == "read by Conv2DBackpropFilter, FusedBatchNormGradV3"
    assert second.role == "read by Conv2DBackpropFilter, FusedBatchNormGradV3, Mul"
    np.testing.assert_allclose(
        [float(v) for v in map(model.train_on_batch, [x] * 3, [y] * 3)], plain, rtol=1e-3
    )
    assert streams(model) == {first.layer, second.layer}


def test_sums_of_residual_blocks_are_held():
    """Rebuilt each from the one before, all would live until the first of them is read."""
    x = inputs = keras.Input((8, 8, 32))
    for k in range(4):
        y = layers.Conv2D(32, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU(name=f"relu{k}")(x + layers.BatchNormalization()(y))
    model = compiled(keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x))))
    report = ct.compress_model(model, storage="rebuild")
    held = [row.layer for row in report.rows if row.storage == "compress"]
    assert all(any(f"relu{k}" in name for name in held) for k in range(3))


def test_recompute_holds_less():
    x, y = (
        tf.constant(np.random.default_rng(0).normal(size=(16, 16, 16, 32)), tf.float32),
        tf.constant(Y[:16]),
    )
    held = {}
    for storage in ("compress", "rebuild"):
        model = grouped_cnn()
        ct.compress_model(model, storage=storage)
        held[storage] = ct.memory.saved_bytes(model, x, y)
    assert held["rebuild"] < 0.75 * held["compress"]


def test_narrow_layers_are_compressed_where_the_batch_is_large():
    def narrow():
        keras.utils.set_random_seed(0)
        dense = [layers.Dense(32, "gelu", name=f"dense{k}") for k in range(3)]
        model = keras.Sequential([keras.Input((8,)), *dense, layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=False)
        return model

    x = np.random.default_rng(0).normal(size=(1024, 8)).astype("float32")
    losses = []
    for compress in (False, True):
        model = narrow()
        report = ct.compress_model(model) if compress else None
        losses.append(model.fit(x, x[:, :1], 1024, epochs=3, verbose=0, shuffle=False).history["loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-3)
    assert [row.storage for row in report.rows if row.layer.startswith("sequential")].count("compress") >= 2
    model = narrow()
    report = ct.compress_model(model)
    model.fit(x[:64], x[:64, :1], 64, verbose=0)
    assert not report.rows and "No tensor is large enough" in str(report)


def test_rows_are_of_a_sample_where_the_first_dimension_counts_more():
    """Windows of images are samples of a layer, and not of the step."""
    inputs = keras.Input((16, 32))
    windows = keras.ops.reshape(inputs, (-1, 4, 32))
    h = keras.ops.reshape(layers.Dense(64, "gelu", name="dense")(windows), (-1, 16, 64))
    model = compiled(keras.Model(inputs, layers.Dense(10)(h[:, 0])))
    report = ct.compress_model(model)
    model.fit(np.zeros((8, 16, 32), "float32"), np.zeros(8), 8, verbose=0)
    assert report.batch_size == 8
    (row,) = (row for row in report.rows if row.layer.endswith("dense_1/BiasAdd") or row.path == "dense")
    assert row.shape == (4, 4, 64) and row.value_bytes == 4 * 16 * 64
