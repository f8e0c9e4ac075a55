"""Memory of models with a train step of their own: what is measured is that step, and the model is left as it was."""

import multiprocessing

import numpy as np
import pytest
import tensorflow as tf
from models import chain, compiled, images, layers, small_cnn
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain import _keras
from tf_comptrain.memory import counters, explain, trial
from tf_comptrain.memory.trial import OK, Job

X, _ = images(8, size=32, channels=8)
ACTIVATION = 8 * 32 * 32 * 16 * 4  # bytes of what `network` has between its convolutions


def network(built=True):
    """What crosses of it is the output of its first activation, and sigmoid's twice as large output."""
    parts = [
        layers.Conv2D(16, 3, padding="same", activation="tanh"),
        layers.Conv2D(32, 3, padding="same", activation="sigmoid"),
    ]
    return keras.Sequential([keras.Input((32, 32, 8)), *parts] if built else parts)


class NoCall(keras.Model):
    """A train step of x alone, and no call."""

    def __init__(self, built=True):
        super().__init__()
        self.net = network(built)
        self.seen = tf.Variable(0, trainable=False)

    def loss_of(self, x):
        self.seen.assign_add(1)
        noise = keras.random.normal(tf.shape(x), stddev=0.01)
        return tf.reduce_sum(self.net(x + noise, training=True))

    def train_step(self, x):
        with tf.GradientTape() as tape:
            loss = self.loss_of(x)
        variables = self.net.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return {"loss": loss}


class Decorated(NoCall):
    train_step = tf.function(NoCall.train_step)


class TwoTapes(NoCall):
    """Two networks, two optimizers as attributes."""

    def __init__(self):
        super().__init__()
        self.other = network()
        self.optimizers = {
            "net": keras.optimizers.Adam(1e-3),
            "other": keras.optimizers.SGD(1e-3, momentum=0.9),
        }

    def train_step(self, x):
        for name, net in (("net", self.net), ("other", self.other)):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(net(x, training=True))
            gradients = tape.gradient(loss, net.trainable_variables)
            self.optimizers[name].apply_gradients(zip(gradients, net.trainable_variables))
        return {"loss": loss}


class Persistent(NoCall):
    """Two gradients through the same activations."""

    def train_step(self, x):
        with tf.GradientTape(persistent=True) as tape:
            y = self.net(x, training=True)
            losses = [tf.reduce_sum(y), tf.reduce_sum(2.0 * y)]
        variables = self.net.trainable_variables
        gradients = [tape.gradient(loss, variables) for loss in losses]
        self.optimizer.apply_gradients(zip([a + b for a, b in zip(*gradients)], variables))
        return {"loss": losses[0]}


CASES = {
    "no call": (NoCall, 3.5 * ACTIVATION),
    "not built": (lambda: NoCall(built=False), 3.5 * ACTIVATION),
    "tf.function": (Decorated, 3.5 * ACTIVATION),
    "two tapes": (TwoTapes, 6 * ACTIVATION),
    "persistent tape": (Persistent, 3 * ACTIVATION),
}


def made(name):
    keras.utils.set_random_seed(0)
    model = CASES[name][0]()
    model.compile(keras.optimizers.SGD(1e-3, momentum=0.9))
    return model


def values(model):
    return [v.numpy() for v in _keras.step_variables(model)]


@pytest.mark.parametrize("name", CASES)
def test_what_crosses_is_counted_once(name):
    model, (_, plain_bytes) = made(name), CASES[name]
    assert ct.memory.saved_bytes(model, X) == plain_bytes
    ct.compress_model(model)
    report = ct.memory.report(model, X, timeline=False)
    assert report.saved_plain_bytes == plain_bytes
    by_storage = {row.storage: row for row in report.rows}
    assert by_storage["compress"].bytes < by_storage["compress"].value_bytes / 3
    assert report.saved_bytes < plain_bytes - ACTIVATION / 2
    assert all(row.shape and None not in row.shape for row in report.rows)


@pytest.mark.long(but=["no call-False", "two tapes-True", "tf.function-False"])
@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_measuring_leaves_the_model_as_it_was(name, compress):
    model = made(name)
    if compress:
        ct.compress_model(model)
    if name != "not built":  # its weights are made by the first step, traced or not
        model.fit(X, batch_size=4, verbose=0)
    else:
        _keras.build_for_step(model, X, None)
    before = values(model)
    assert len(before) > 8
    step = ct.memory.measure_step(model, X, steps=1)
    assert step.peak_bytes > 0 and step.saved_plain_bytes == CASES[name][1]
    ct.memory.saved_bytes(model, X)
    after = values(model)
    assert len(after) == len(before)
    for a, b in zip(after, before):
        np.testing.assert_array_equal(a, b)
    model.fit(X, batch_size=4, verbose=0)
    assert any(np.any(a != b) for a, b in zip(values(model), before))


@pytest.mark.long("False")
@pytest.mark.parametrize("compress", [False, True])
def test_peaks_of_a_train_step_without_call(compress):
    counters.reserve(1 << 28)  # else chunks that other tests have left count whole, of up to twice a tensor
    model = made("no call")
    if compress:
        ct.compress_model(model)
    x = np.tile(X, (4, 1, 1, 1))
    peak = ct.memory.explain_peak(model, x)
    assert peak.batch_size == 32 and sum(row.bytes for row in peak.rows) == peak.peak_bytes
    # The compressed step peaks while a stream is made or read, whichever of two operations comes first.
    ours = {explain.STREAM, explain.RESTORED} & peak.by_kind.keys()
    assert ours if compress else not ours and peak.by_kind[explain.FORWARD] > 0
    # A small step may run two operations in the other order from time to time: the highest of three.
    measured = max(ct.memory.measure_step(model, x).peak_bytes for _ in range(3))
    one_tensor = 4 * 2 * ACTIVATION
    np.testing.assert_allclose(ct.memory.predict_peak(model, 32, x), measured, rtol=0.15, atol=one_tensor)
    assert len(ct.memory.report(model, x).timelines) == 1 + compress


def build_no_call():
    return made("no call")


def no_targets(model, batch_size):
    return np.zeros((batch_size, 32, 32, 8), "float32"), None


def test_the_largest_batch_of_a_train_step_without_targets():
    outcome, total_bytes, _ = trial._try(Job(build_no_call, 8, True, None, no_targets))
    assert outcome == OK and total_bytes > ACTIVATION


class TwoInputs(NoCall):
    """A train step that takes targets as well, in structures."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.net(x["image"], training=True) - y) ** 2)
        variables = self.net.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return {"loss": loss}


@pytest.mark.parametrize("options", [{}, {"jit_compile": True}, {"run_eagerly": True}])
def test_structures_and_ways_to_run(options):
    model = TwoInputs()
    model.compile("sgd", jit_compile=options.get("jit_compile", False), run_eagerly="run_eagerly" in options)
    ct.compress_model(model)
    x, y = {"image": X}, np.zeros((8, 32, 32, 32), "float32")
    step = ct.memory.measure_step(model, x, y, steps=1)
    # The error of the mean is another tensor of the output's size.
    assert step.saved_plain_bytes == 5 * ACTIVATION
    assert step.saved_bytes < step.saved_plain_bytes - ACTIVATION / 2


def test_what_is_refused():
    model = NoCall()
    with pytest.raises(ValueError, match="not compiled"):
        ct.memory.measure_step(model, X)
    stock = compiled(small_cnn())
    for ask in (ct.memory.measure_step, ct.memory.report, ct.memory.explain_peak):
        with pytest.raises(ValueError, match="`y` is missing"):
            ask(stock, images(8)[0])


def decoder():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((16,), dtype="int32")
    x = layers.Embedding(50, 32)(inputs)
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        y = layers.MultiHeadAttention(4, 8, dropout=0.1)(y, y, use_causal_mask=True)
        x = layers.Add()([x, y])
        y = layers.Dense(128, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dropout(0.1)(layers.Dense(32)(y))])
    return compiled(keras.Model(inputs, layers.Dense(50)(x)))


@pytest.mark.parametrize(
    ("build", "plain_bytes", "zvc_bytes"),
    [
        (lambda: compiled(small_cnn()), 1_198_788, 75_624),
        (decoder, 528_388, 142_244),
        (lambda: chain(3), 1_573_380, 17_316),
    ],
    ids=["cnn", "decoder", "chain"],
)
def test_what_crosses_in_ordinary_models(build, plain_bytes, zvc_bytes):
    """As a forward pass and a gradient outside of any train step have it."""
    model = build()
    if model.name == "small_cnn":
        x, y = images(8)
    elif model.name == "chain3":
        x, y = np.zeros((4, 32, 32, 32), "float32"), np.zeros((4, 32), "float32")
    else:
        x = y = np.random.default_rng(0).integers(0, 50, (4, 16))
    x, y = tf.constant(x), tf.constant(y)
    assert ct.memory.saved_bytes(model, x, y) == plain_bytes
    ct.compress_model(model, codec="zvc")
    assert ct.memory.saved_bytes(model, x, y) == pytest.approx(zvc_bytes, rel=1e-3)


class OwnStep(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return {"loss": loss}


def _measured_on_two_replicas(queue):
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    x, y = images(8)
    for own in (False, True):
        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            model = small_cnn()
            model = compiled(OwnStep(model.inputs, model.outputs) if own else model)
        step = ct.memory.measure_step(model, x, y, steps=1)
        loss = model.fit(x, y, verbose=0).history["loss"][0]
        queue.put((step.saved_bytes, float(loss)))


@pytest.mark.long
def test_replicas_each_hold_the_batch():
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_measured_on_two_replicas, args=(queue,))
    process.start()
    found = [queue.get(timeout=300) for _ in range(2)]
    process.join()
    for saved_bytes, loss in found:
        assert saved_bytes == 2 * 1_198_788
        assert np.isfinite(loss)


def test_a_list_of_inputs_is_a_tuple_as_in_fit():
    class Pair(NoCall):
        def train_step(self, data):
            (pair,) = data
            assert isinstance(pair, tuple)
            return super().train_step(pair[0] + pair[1])

    model = Pair()
    model.compile(keras.optimizers.SGD(0.1), jit_compile=False)
    model.fit([X, X], batch_size=len(X), verbose=0)
    assert explain.explain_peak(model, [X, X]).peak_bytes > ACTIVATION


class Losing(keras.layers.Layer):
    """Adds the loss of two inputs, and hands on the second."""

    def call(self, y, z):
        self.add_loss(tf.reduce_mean((y - z) ** 2))
        return z


def test_a_model_whose_layers_have_its_loss_takes_no_targets():
    x, y = keras.Input((256,)), keras.Input((8,))
    hidden = keras.layers.Dense(1024, activation="relu")(x)
    model = keras.Model([x, y], Losing()(y, keras.layers.Dense(8)(hidden)))
    model.compile("sgd", jit_compile=False)
    batch = np.ones((512, 256), "float32"), np.ones((512, 8), "float32")
    model.fit(batch, batch_size=512, verbose=0)
    hidden_bytes = 4 * 512 * 1024
    assert explain.explain_peak(model, batch).peak_bytes > hidden_bytes
    assert ct.memory.report(model, batch, timeline=False).saved_bytes >= hidden_bytes
    model.compile("sgd", "mse", jit_compile=False)
    with pytest.raises(ValueError, match="`y` is missing"):
        explain.explain_peak(model, batch)
