"""ct.Recompute: the training of plain Keras, with only a block's input held."""

import warnings

import numpy as np
import pytest
import tensorflow as tf
from models import compiled, gradients, images, layers
from tensorflow import keras

import tf_comptrain as ct

X, Y = images(32)


def block(filters, name):
    return keras.Sequential(
        [
            layers.Conv2D(filters, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Dropout(0.3, seed=4),
        ],
        name=name,
    )


def build(wrap, block=block, size=16, **kwargs):
    keras.utils.set_random_seed(0)
    inputs = x = keras.Input((size, size, 3))
    for k, filters in enumerate((32, 64)):
        x = wrap(block(filters, f"block{k}"), **kwargs)(x)
    return compiled(keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x))))


def dropped_block(filters, name):
    return keras.Sequential([layers.Rescaling(1.0, offset=100.0), layers.Dropout(0.3, seed=4)], name=name)


def as_it_is(layer):
    return layer


@pytest.mark.long("eager")
@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
def test_fit_gives_the_weights_of_plain_keras(eager):
    results = []
    for wrap in (as_it_is, ct.Recompute):
        model = build(wrap)
        model.run_eagerly = eager or wrap is as_it_is  # which takes less time than a trace
        losses = model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]
        results.append((losses, [v.numpy() for v in model.variables]))
    (plain_losses, plain), (losses, ours) = results
    np.testing.assert_allclose(losses, plain_losses, rtol=1e-4)
    for a, b in zip(ours, plain):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


@keras.utils.register_keras_serializable("tests")
class OwnBlock(layers.Layer):
    """As one writes them: no `build`, no `compute_output_shape`."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.conv, self.norm = layers.Conv2D(8, 3), layers.LayerNormalization()

    def call(self, x):
        return tf.nn.relu(self.norm(self.conv(x)))


@pytest.mark.parametrize("wrap", [ct.Compress, ct.Recompute])
def test_layers_of_the_user_in_functional_models(wrap, tmp_path):
    def build(wrap):
        keras.utils.set_random_seed(0)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", ".*build")
            x = wrap(OwnBlock())(inputs := keras.Input((16, 16, 3)))
        assert x.shape == (None, 14, 14, 8)
        return compiled(keras.Model(inputs, layers.Dense(10)(layers.GlobalMaxPooling2D()(x))))

    plain, model = build(as_it_is), build(wrap)
    assert [w.shape for w in model.weights] == [w.shape for w in plain.weights]
    (loss, ours), (expected, theirs) = gradients(model, X, Y), gradients(plain, X, Y, graph=False)
    assert loss == pytest.approx(expected)
    for a, b in zip(ours.values(), theirs.values()):
        np.testing.assert_allclose(a, b, atol=0.05 * np.abs(b).max())
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), model.predict(X, verbose=0))


class Patches(layers.Layer):
    """Knows a shape that its own call does not tell."""

    def call(self, x):
        return tf.reshape(x, [tf.shape(x)[0], -1, 48])

    def compute_output_shape(self, shape):
        return shape[0], 16, 48


@pytest.mark.parametrize("wrap", [ct.Compress, ct.Recompute])
def test_the_shape_that_a_layer_says_is_the_wrapper_s(wrap):
    x = wrap(Patches())(inputs := keras.Input((16, 16, 3)))
    assert x.shape == (None, 16, 48)
    model = compiled(keras.Model(inputs, layers.Dense(10)(layers.Flatten()(x))))
    assert model.fit(X, Y, verbose=0).history["loss"]


def test_restoring_a_model_leaves_wrappers_as_they_are():
    x = ct.Compress(OwnBlock(name="own"))(inputs := keras.Input((16, 16, 3)))
    model = compiled(keras.Model(inputs, layers.Dense(10)(layers.GlobalMaxPooling2D()(x))))
    wrapped = model.layers[1].layer
    call = vars(wrapped)["call"]
    ct.compress_model(model)
    ct.restore_model(model)
    assert vars(wrapped)["call"] is call


@pytest.mark.long(but=["graph-3", "eager-8"])
@pytest.mark.parametrize("batch", [8, 6, 3])
@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
def test_slices_give_the_gradients_of_the_whole(eager, batch):
    def block(filters, name):
        return keras.Sequential([layers.Conv2D(filters, 3, padding="same"), layers.ReLU()], name=name)

    results = []
    for wrap, how in ((as_it_is, {}), (ct.Recompute, {"slices": 4})):
        model = build(wrap, block, **how)
        model.run_eagerly = eager or wrap is as_it_is  # which takes less time than a trace
        losses = model.fit(X[:24], Y[:24], batch_size=batch, epochs=2, shuffle=False, verbose=0).history[
            "loss"
        ]
        results.append((losses, [v.numpy() for v in model.variables]))
    (plain_losses, plain), (losses, ours) = results
    np.testing.assert_allclose(losses, plain_losses, rtol=1e-4)
    for a, b in zip(ours, plain):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


class Halves(layers.Wrapper):
    """A layer on one half of the batch after the other."""

    def call(self, x):
        return tf.concat([self.layer(half) for half in tf.split(x, 2)], 0)


def test_a_slice_begins_with_what_the_one_before_assigned():
    results = []
    for wrap in (Halves, lambda layer: ct.Recompute(layer, slices=2)):
        keras.utils.set_random_seed(0)
        layer = layers.SpectralNormalization(layers.Conv2D(8, 3))
        model = compiled(
            keras.Sequential([keras.Input((16, 16, 3)), wrap(layer), layers.Flatten(), layers.Dense(10)])
        )
        loss, found = gradients(model, X[:8], Y[:8], graph=wrap is not Halves)
        results.append([loss, *found.values(), *(v.numpy() for v in layer.variables)])
    for ours, plain in zip(*results, strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-6)


def test_a_slice_draws_the_same_mask_again():
    model = build(ct.Recompute, dropped_block, slices=4)
    x = tf.constant(X[:8])

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = model.layers[1](x, training=True)
        return y, tape.gradient(y, x)

    y, dx = step()
    np.testing.assert_array_equal(y.numpy() == 0, dx.numpy() == 0)
    assert 0.2 < np.mean(y.numpy() == 0) < 0.4


def test_slices_never_make_the_whole_batch():
    def block(filters, name):
        deep = [layers.Conv2D(64, 3, padding="same", activation="relu") for _ in range(3)]
        return keras.Sequential([*deep, layers.GlobalAveragePooling2D(keepdims=True)], name=name)

    x, y = images(32)
    peaks = {}
    for slices in (1, 8):
        model = build(ct.Recompute, block, slices=slices)
        peaks[slices] = ct.memory.measure_step(model, x, y, steps=1).peak_bytes
    assert peaks[8] < peaks[1] / 2


def test_slices_need_independent_samples():
    with pytest.raises(ValueError, match="BatchNormalization"):
        build(ct.Recompute, slices=2)


def test_only_the_inputs_are_held():
    model, plain = build(ct.Recompute), build(as_it_is)
    x, y = tf.constant(X), tf.constant(Y)
    held, all_of_it = (ct.memory.saved_bytes(m, x, y) for m in (model, plain))
    assert held <= 1.1 * X.shape[0] * 16 * 16 * (32 + 64) * 4
    assert all_of_it > 2 * held


def wide_block(filters, name):
    inner = [layers.Conv2D(64, 3, padding="same"), layers.ReLU(), layers.Dropout(0.3, seed=4)]
    return keras.Sequential([*inner, layers.Conv2D(8, 3, padding="same")], name=name)


def wide(wrap):
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((32, 32, 8))
    for k in range(4):
        x = wrap(wide_block(8, f"block{k}"))(x)
    return compiled(keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x))))


def test_what_the_second_run_makes_is_not_there_before_it():
    """A walk of the graph does not tell: the executor runs what has its inputs."""
    x, y = images(8, size=32, channels=8)
    peaks = [
        ct.memory.measure_step(wide(wrap), x, y, steps=1).peak_bytes for wrap in (as_it_is, ct.Recompute)
    ]
    assert peaks[1] < 0.6 * peaks[0]


def test_the_report_has_the_inputs_and_nothing_of_the_second_run():
    model = wide(ct.Recompute)
    ct.compress_model(model)
    model.fit(*images(8, size=32, channels=8), verbose=0)
    rows = ct.report(model).rows
    assert [(row.layer_class, row.storage, row.shape) for row in rows] == 3 * [
        ("BiasAdd", "keep", (32, 32, 8))
    ]
    assert all("runs Conv2D, Conv2DBackpropFilter on it as it is" in row.note for row in rows)


RECURRENT = {
    "lstm": (lambda: layers.LSTM(8, return_sequences=True, dropout=0.2, recurrent_dropout=0.2, seed=3), (12, 6)),
    "gru_states": (lambda: layers.GRU(8, return_sequences=True, return_state=True), (12, 6)),
    "simple_rnn": (lambda: layers.SimpleRNN(8), (12, 6)),
    "rnn_of_cells": (lambda: layers.RNN([layers.LSTMCell(8), layers.GRUCell(6)], return_sequences=True), (12, 6)),
    "bidirectional": (lambda: layers.Bidirectional(layers.LSTM(8, return_sequences=True)), (12, 6)),
    "time_distributed": (lambda: layers.TimeDistributed(layers.Conv2D(4, 3, activation="tanh")), (5, 8, 8, 3)),
    "conv_lstm": (lambda: layers.ConvLSTM2D(4, 3, return_sequences=True), (5, 8, 8, 3)),
}  # fmt: skip


@pytest.mark.long(but=["lstm"])
@pytest.mark.parametrize("case", RECURRENT)
def test_recurrent_layers(case):
    make, shape = RECURRENT[case]
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, *shape)).astype("float32"), rng.normal(size=(4, 3)).astype("float32")
    results = []
    for wrap in (as_it_is, ct.Recompute):
        keras.utils.set_random_seed(0)
        z = wrap(make())(layers.Dense(shape[-1])(inputs := keras.Input(shape)))
        z = layers.Concatenate()([layers.Flatten()(part) for part in (*tf.nest.flatten(z), inputs)])
        model = keras.Model(inputs, layers.Dense(3)(z))
        model.compile(keras.optimizers.SGD(0.1), "mse")
        loss, grads = gradients(model, x, y, graph=wrap is not as_it_is)
        results.append([loss, *grads.values()])
    for plain, ours in zip(*results):
        np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-6)


def test_mixes_with_compression():
    model = build(ct.Recompute, storage="compress", error_bound=1e-5)
    ct.compress_model(model, error_bound=1e-5)
    losses = model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]
    model = build(as_it_is)
    model.run_eagerly = True  # which takes less time than a trace
    plain = model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]
    np.testing.assert_allclose(losses, plain, rtol=5e-3)


def test_saves_loads_and_predicts(tmp_path):
    model = build(ct.Recompute, storage="compress", error_bound=ct.ErrorBound(0.05))
    model.fit(X, Y, batch_size=8, verbose=0)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), model.predict(X, verbose=0))
    assert loaded.layers[1].get_config()["error_bound"] == list(ct.ErrorBound(0.05))


def reads_behind(tensor):
    """Reads of variables that a tensor is made of, as TensorFlow's optimizer leaves it: IdentityN is taken apart."""
    found, waiting, seen = set(), [tensor], set()
    while waiting:
        now = waiting.pop()
        if id(now) in seen:
            continue
        seen.add(id(now))
        op = now.op
        if op.type == "ReadVariableOp":
            found.add(op.name)
        waiting += [op.inputs[now.value_index]] if op.type == "IdentityN" else op.inputs
    return found


@pytest.mark.parametrize("wrap", [ct.Recompute, ct.Compress])
def test_weights_of_the_second_run_are_read_before_they_are_updated(wrap):
    """By data: TensorFlow's optimizer drops edges of control where it sees another way."""
    inputs = keras.Input((24, 16))
    block = keras.Sequential([layers.Dense(32), layers.ReLU(), layers.Dense(16)])
    model = keras.Model(inputs, wrap(block)(layers.Dense(16)(inputs)))
    variables = [v.value for v in model.trainable_variables]

    @tf.function(autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True)))
        for variable, gradient in zip(variables, tape.gradient(loss, variables)):
            variable.assign_sub(gradient)

    graph = step.get_concrete_function(tf.TensorSpec((8, 24, 16))).graph
    updates = [op for op in graph.get_operations() if op.type == "AssignSubVariableOp"]
    assert len(updates) == len(variables)
    for update in updates:
        of_it = {
            op.name
            for op in update.inputs[0].consumers()
            if op.type == "ReadVariableOp" and any(r.type != "IdentityN" for r in op.outputs[0].consumers())
        }
        assert of_it and of_it <= reads_behind(update.inputs[1])


@pytest.mark.parametrize(
    "wrap, layer",
    [
        *((ct.Recompute, layer) for layer in ("Dense", "Dropout", "LSTM")),
        (ct.Compress, "Dense"),
        (ct.Compress, "Dropout"),
    ],
)
def test_masks_go_through(wrap, layer):
    words = np.random.default_rng(0).integers(0, 4, (32, 24))

    def make(wrapper):
        keras.utils.set_random_seed(3)
        made = {
            "Dense": lambda: layers.Dense(16, "tanh"),
            "Dropout": lambda: layers.Dropout(0.0),
            "LSTM": lambda: layers.LSTM(16, return_sequences=True),
        }[layer]()
        model = keras.Sequential(
            [keras.Input((24,)), layers.Embedding(50, 16, mask_zero=True), wrapper(made)]
        )
        model.add(layers.GlobalAveragePooling1D())
        model.compile("sgd", "mse")
        return model

    plain = make(as_it_is)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*mask.*")
        ours = make(wrap)
        for _ in range(2):
            found, expected = (model.train_on_batch(words, np.ones((32, 16))) for model in (ours, plain))
            np.testing.assert_allclose(found, expected, rtol=1e-5)
        np.testing.assert_allclose(ours.predict(words, verbose=0), plain.predict(words, verbose=0), atol=1e-6)


def test_slices_of_masked_samples_are_refused():
    model = keras.Sequential([keras.Input((24,)), layers.Embedding(50, 16, mask_zero=True)])
    model.add(ct.Recompute(layers.Dense(16), slices=2))
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="`slices` must be 1 for a block whose input has a mask"):
        model.train_on_batch(np.zeros((8, 24)), np.zeros((8, 24, 16)))


def test_what_xla_cannot_encode_stays_as_it_is(caplog):
    x, found = np.random.default_rng(0).normal(size=(32, 24, 16)).astype("float32"), []
    for wrap in (as_it_is, lambda layer: ct.Recompute(layer, storage="compress", codec="zvc")):
        keras.utils.set_random_seed(3)
        block = keras.Sequential([layers.Dense(32, "relu"), layers.Dense(16)])
        model = keras.Sequential([keras.Input((24, 16)), layers.Dense(16), wrap(block)])
        model.compile(keras.optimizers.SGD(1.0), "mse", jit_compile=True)
        model.train_on_batch(x, x)
        found.append([w.copy() for w in model.get_weights()])
    for ours, its in zip(found[1], found[0]):
        np.testing.assert_allclose(ours, its, atol=1e-5)


def test_bad_arguments():
    with pytest.raises(ValueError, match="'disk'"):
        ct.Recompute(layers.Dense(3), storage="disk")
    with pytest.raises(ValueError, match="`slices`"):
        ct.Recompute(layers.Dense(3), slices=0)
    with pytest.raises(ValueError, match="already"):
        ct.Recompute(ct.Recompute(layers.Dense(3)))
    with pytest.raises(TypeError, match="keras.layers.Layer"):
        ct.Recompute("dense")
