"""Weights and slots of trainings that update in unusual ways: those of plain Keras, but for rounding."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.graph import updates

layers, optimizers = keras.layers, keras.optimizers
WIDTH, STEPS = 192, 3  # a weight is larger than what is left to TensorFlow's optimizer


class Positions(layers.Layer):
    def build(self, shape):
        self.positions = self.add_weight(shape=shape[1:])

    def call(self, x):
        return x + self.positions


def dense(inputs):
    return layers.Dense(1)(layers.Dense(WIDTH, "tanh")(layers.Dense(WIDTH, "tanh")(inputs)))


def embedding(inputs):
    tokens = keras.ops.cast(keras.ops.abs(inputs[:, :4]) * 50, "int32")
    return layers.Dense(1)(
        layers.Flatten()(layers.Dense(WIDTH, "tanh")(layers.Embedding(200, WIDTH)(tokens)))
    )


def positions(inputs):
    x = Positions()(layers.Reshape((WIDTH, WIDTH))(layers.Dense(WIDTH**2)(inputs[:, :8])))
    return layers.Dense(1)(layers.Flatten()(layers.Dense(8, "tanh")(x)))


def gradients(model, data):
    with tf.GradientTape() as tape:
        loss = model.compute_loss(y=data[1], y_pred=model(data[0], training=True))
    return loss, tape.gradient(loss, model.trainable_variables)


class NotesMoves(keras.Model):
    """Reads weights before the update, and uses them after it."""

    def train_step(self, data):
        loss, found = gradients(self, data)
        before = [tf.convert_to_tensor(weight) for weight in self.trainable_variables]
        self.optimizer.apply(found, self.trainable_variables)
        moves = [tf.norm(weight - value) for weight, value in zip(self.trainable_variables, before)]
        return {"loss": loss, "moved": tf.add_n(moves)}


class UpdatesTwice(keras.Model):
    def train_step(self, data):
        for _ in range(2):
            loss, found = gradients(self, data)
            self.optimizer.apply(found, self.trainable_variables)
        return {"loss": loss}


class GivesAWeightTwice(keras.Model):
    def train_step(self, data):
        loss, found = gradients(self, data)
        self.optimizer.apply([*found, *found], [*self.trainable_variables, *self.trainable_variables])
        return {"loss": loss}


class UpdatesByHand(keras.Model):
    def train_step(self, data):
        loss, found = gradients(self, data)
        for gradient, weight in zip(found, self.trainable_variables):
            self.optimizer.update_step(gradient, weight.value, learning_rate=tf.constant(0.01))
        return {"loss": loss}


class SumsGradients(keras.Model):
    """One number for all of a weight."""

    def train_step(self, data):
        loss, found = gradients(self, data)
        self.optimizer.apply([tf.reduce_sum(gradient) for gradient in found], self.trainable_variables)
        return {"loss": loss}


class Fails(keras.Model):
    def train_step(self, data):
        loss, found = gradients(self, data)
        self.optimizer.apply(found, self.trainable_variables)
        raise ArithmeticError("of the user's own step")


OPTIMIZERS = {
    "Adam": lambda: optimizers.Adam(1e-3),
    "AdamW": lambda: optimizers.AdamW(1e-3, weight_decay=0.5, epsilon=1e-4),
    "late Adam": lambda: optimizers.Adam(1e-3, beta_2=0.99999),
    "Adam that forgets nothing": lambda: optimizers.Adam(1e-3, beta_2=1.0, epsilon=1.0),
    "SGD": lambda: optimizers.SGD(1e-2, momentum=0.9, weight_decay=0.5),
    "RMSprop": lambda: optimizers.RMSprop(1e-3, weight_decay=0.5),
    "Muon": lambda: optimizers.Muon(1e-3, weight_decay=0.5, adam_weight_decay=0.1),
}
CASES = [
    (dense, keras.Model, "late Adam"),
    (dense, keras.Model, "Adam that forgets nothing"),
    (dense, keras.Model, "Muon"),
    (embedding, keras.Model, "AdamW"),
    (embedding, keras.Model, "SGD"),
    (positions, keras.Model, "AdamW"),
    (positions, keras.Model, "RMSprop"),
    (dense, NotesMoves, "Adam"),
    (dense, NotesMoves, "SGD"),
    (dense, UpdatesTwice, "Adam"),
    (dense, GivesAWeightTwice, "AdamW"),
    (dense, UpdatesByHand, "AdamW"),
    (dense, SumsGradients, "Adam"),
]


def made(network, kind, optimizer, compressed=True):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((WIDTH,))
    model = kind(inputs, network(inputs))
    model.compile(OPTIMIZERS[optimizer](), "mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    if compressed:
        ct.compress_model(model, storage=lambda layer: "keep", check=False)
    return model


def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(8, WIDTH)).astype("float32"), rng.normal(size=(8, 1)).astype("float32")


@pytest.mark.long(
    "*-Adam that forgets nothing", "embedding-Model-SGD", "positions-Model-AdamW", "*-NotesMoves-SGD"
)
@pytest.mark.parametrize(
    ("network", "kind", "optimizer"), CASES, ids=lambda case: getattr(case, "__name__", case)
)
def test_trains_as_in_keras(network, kind, optimizer):
    found = []
    for compressed in (False, True):
        model = made(network, kind, optimizer, compressed)
        model.run_eagerly = not compressed  # which takes less time than a trace
        model.fit(*data(), 8, epochs=STEPS, verbose=0)
        found.append([np.array(v) for v in (*model.weights, *model.optimizer.variables)])
    for plain, ours in zip(*found):
        assert np.abs(plain - ours).max() <= 1e-4 * np.abs(plain).max()


def test_the_timeline_of_a_report_leaves_the_updates_in_place():
    model = made(dense, keras.Model, "Adam")
    ct.memory.report(model, 8, timeline=True)
    assert model.__dict__["_comptrain_update"] is updates.in_place
    assert model.__dict__["_comptrain_exact"] is False


def test_a_trace_that_fails_leaves_the_optimizer_as_it_was():
    model = made(dense, Fails, "AdamW")
    with pytest.raises(ArithmeticError, match="own step"):
        model.fit(*data(), verbose=0)
    assert not {"update_step", "_apply_weight_decay"} & vars(model.optimizer).keys()
