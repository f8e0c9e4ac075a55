"""What loops keep in lists: streams of each turn, on the executor of a CPU."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.graph.control_flow import IN_LISTS, STREAMS_IN_LISTS

layers = keras.layers
RNG = np.random.default_rng(0)
SAMPLES, TURNS, FEATURES, UNITS = 64, 6, 8, 256

LAYERS = {
    "LSTM": lambda: layers.LSTM(UNITS, return_sequences=True),
    "GRU": lambda: layers.GRU(UNITS, return_sequences=True),
    "bidirectional": lambda: layers.Bidirectional(layers.LSTM(UNITS)),
    "dropout": lambda: layers.LSTM(UNITS, dropout=0.2, recurrent_dropout=0.2),
    "stack": lambda: layers.RNN([layers.LSTMCell(UNITS), layers.GRUCell(UNITS)]),
}


def images(layer):
    x = RNG.normal(size=(8, TURNS, 12, 12, 2)).astype("float32")
    return x, [layer, layers.GlobalAveragePooling2D()]


def sequences(layer):
    return RNG.normal(size=(SAMPLES, TURNS, FEATURES)).astype("float32"), [layer]


def network(x, parts, **options):
    model = keras.Sequential([keras.Input(x.shape[1:]), *parts, layers.Flatten(), layers.Dense(4)])
    model.compile("sgd", "mse", **{"jit_compile": False, **options})
    return model


def gradients(model, x, run=tf.function):
    """Of one step, of a batch of known size, and the report's rows that concern loops."""
    y = tf.reshape(tf.range(4.0 * len(x)), (len(x), 4)) / len(x)

    @run
    def compute(x):
        keras.utils.set_random_seed(0)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        return tape.gradient(loss, [v.value for v in model.trainable_variables])

    return [gradient.numpy() for gradient in compute(tf.constant(x))]


def compared(make, data=sequences, **options):
    """(plain gradients, compressed ones, rows of what loops keep)"""
    keras.utils.set_random_seed(0)
    x, parts = data(make())
    model = network(x, parts)
    random = [variable for variable in model.non_trainable_variables if "seed" in variable.path]
    states = [variable.numpy() for variable in random]
    plain = gradients(model, x, run=lambda compute: compute)  # eagerly, which takes less time than a trace
    for variable, state in zip(random, states):
        variable.assign(state)
    report = ct.compress_model(model, **options)
    ours = gradients(model, x)
    return plain, ours, [row for row in report.rows if row.note in (IN_LISTS, STREAMS_IN_LISTS)]


def error(ours, plain):
    return max(np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in zip(ours, plain))


@pytest.mark.long("bidirectional", "dropout", "stack")
@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_recurrent_layers(name):
    plain, ours, rows = compared(LAYERS[name], error_bound=ct.ErrorBound(1e-3))
    assert error(ours, plain) < 2e-3
    assert sum(row.note == STREAMS_IN_LISTS for row in rows) >= 4
    assert all(row.storage == "compress" and row.bits < 16 for row in rows if row.note == STREAMS_IN_LISTS)


def test_gradients_by_default():
    plain, ours, _ = compared(LAYERS["LSTM"])
    assert 0 < error(ours, plain) < 0.1


def test_gradients_of_a_convolutional_one():
    def make():
        return layers.ConvLSTM2D(16, 3, padding="same")

    plain, ours, rows = compared(make, images, error_bound=ct.ErrorBound(1e-3))
    assert error(ours, plain) < 2e-3
    assert {row.shape for row in rows if row.note == STREAMS_IN_LISTS} == {(12, 12, 16)}


def test_without_loss():
    plain, ours, rows = compared(LAYERS["LSTM"], codec="zvc")
    assert error(ours, plain) < 1e-6 and any(row.note == STREAMS_IN_LISTS for row in rows)


def test_the_peak_falls():
    def peak(compress):
        keras.utils.set_random_seed(0)
        x = RNG.normal(size=(256, 12, FEATURES)).astype("float32")
        model = network(x, [layers.LSTM(256, return_sequences=True), layers.LSTM(256)])
        if compress:
            ct.compress_model(model)
        found, y = [], np.zeros((256, 4), "float32")
        for _ in range(3):
            tf.config.experimental.reset_memory_stats("CPU:0")
            before = tf.config.experimental.get_memory_info("CPU:0")["current"]
            model.train_on_batch(x, y)
            found.append(tf.config.experimental.get_memory_info("CPU:0")["peak"] - before)
        return max(found)

    assert peak(True) < 0.6 * peak(False)


@pytest.mark.parametrize(
    ("units", "options"),
    [
        (UNITS, {"storage": "keep"}),
        (UNITS, {"error_bound": ct.ErrorBound(1e-3, relative=False)}),
        (16, {}),  # encoders would take longer than the turns
    ],
    ids=["keep", "absolute", "small"],
)
def test_what_stays_as_it_is(units, options):
    plain, ours, rows = compared(lambda: layers.LSTM(units), **options)
    assert all(row.note == IN_LISTS for row in rows)
    assert error(ours, plain) < 0.1


def test_what_is_asked_for_signs_stays():
    plain, ours, rows = compared(lambda: layers.SimpleRNN(UNITS, activation="relu"))
    assert {row.note for row in rows} == {IN_LISTS, STREAMS_IN_LISTS}
    assert error(ours, plain) < 0.1


def test_under_xla_loops_keep_what_they_keep():
    keras.utils.set_random_seed(0)
    x, parts = sequences(LAYERS["LSTM"]())
    model = network(x, parts, jit_compile=True)
    report = ct.compress_model(model)
    model.train_on_batch(x, np.zeros((SAMPLES, 4), "float32"))
    rows = [row.note for row in report.rows]
    assert STREAMS_IN_LISTS not in rows and IN_LISTS in rows


def test_fit_in_bfloat16_follows_plain():
    def losses(compress):
        keras.utils.set_random_seed(0)
        x, parts = sequences(layers.LSTM(UNITS, dtype="mixed_bfloat16"))
        model = network(x, parts)
        report = ct.compress_model(model) if compress else None
        model.run_eagerly = not compress  # which takes less time than a trace
        found = model.fit(x, np.ones((SAMPLES, 4)), batch_size=SAMPLES, epochs=4, verbose=0).history["loss"]
        return found, report

    plain, _ = losses(False)
    ours, report = losses(True)
    np.testing.assert_allclose(ours, plain, rtol=0.02)
    held = [row for row in report.rows if row.note == STREAMS_IN_LISTS]
    assert held and all(row.layer_class != "Cast" for row in held)  # weights in the type of the step


def test_comparisons_read_what_a_turn_made():
    """The gradient of a maximum compares, before any gradient is there."""
    w = tf.Variable(tf.random.stateless_normal((UNITS, UNITS), (0, 1)) / 16.0)
    x = tf.random.stateless_normal((SAMPLES, UNITS), (0, 2))

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.w = self.add_weight(shape=(UNITS, UNITS))
            self.w.assign(w)

        def call(self, h):
            def turn(k, h):
                c = tf.matmul(h, self.w)
                return k + 1, tf.maximum(c, h) * tf.tanh(c)

            return tf.while_loop(lambda k, h: k < 4, turn, (0, h))[1]

    def gradient():
        @tf.function
        def compute(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x, training=True) ** 2)
            return tape.gradient(loss, model.w.value)

        return compute(x).numpy()

    model = Model()
    model.compile("sgd", "mse", jit_compile=False)
    plain = gradient()
    report = ct.compress_model(model, error_bound=ct.ErrorBound(1e-3))
    assert error([gradient()], [plain]) < 5e-3
    assert any(row.note == STREAMS_IN_LISTS for row in report.rows)
