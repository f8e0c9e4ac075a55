"""Which gradients are training, and whose wishes a step follows where several models are compressed."""

import numpy as np
import pytest
import tensorflow as tf
from models import layers
from tensorflow import keras

import tf_comptrain as ct

RNG = np.random.default_rng(0)
X = RNG.normal(size=(32, 12, 12, 3)).astype(np.float32)


class Potential(keras.Model):
    """An energy, and the forces that are its gradient."""

    def __init__(self):
        super().__init__()
        self.energy = keras.Sequential(
            [
                layers.Conv2D(16, 3, activation="swish"),
                layers.Conv2D(16, 3, activation="swish"),
                layers.Flatten(),
                layers.Dense(1),
            ]
        )

    def call(self, x, training=None):
        with tf.GradientTape() as tape:
            tape.watch(x)
            energy = self.energy(x, training=training)
        return energy, -tape.gradient(energy, x)


def potential(compress, jit):
    keras.utils.set_random_seed(0)
    model = Potential()
    model(X[:1])
    model.compile(keras.optimizers.SGD(0.01), ["mse", "mse"], jit_compile=jit)
    if compress:
        ct.compress_model(model)
    return model


@pytest.mark.parametrize("jit", [False, True], ids=["executor", "XLA"])
def test_a_gradient_in_a_call_is_plain_in_inference(jit):
    ours, plain = (potential(compress, jit).predict(X, verbose=0) for compress in (True, False))
    for found, expected in zip(ours, plain):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_gradient_in_a_call_is_held_in_training():
    model = potential(True, False)
    model.fit(X, [np.zeros((32, 1)), np.zeros_like(X)], verbose=0)
    assert any(row.storage == "compress" for row in ct.report(model).rows)


def test_a_signature_with_a_gradient_in_it_needs_no_library(tmp_path):
    model = potential(True, False)
    model.export(tmp_path / "exported", verbose=False)
    graph = tf.saved_model.load(tmp_path / "exported").signatures["serving_default"].graph
    assert not [op.name for op in graph.get_operations() if op.type.startswith("Comptrain>")]


def network(name):
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input(X.shape[1:]),
            layers.Conv2D(16, 3, activation="swish"),
            layers.Conv2D(16, 3, activation="swish"),
            layers.Flatten(),
            layers.Dense(4),
        ],
        name=name,
    )


def gradients_of_both(first, second, jit=False):
    """Of two models that one step trains, each by a tape of its own."""

    @tf.function(jit_compile=jit, autograph=False)
    def step(x):
        found = []
        for model in (first, second):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x, training=True)))
            found.append(tape.gradient(loss, [v.value for v in model.trainable_variables]))
        return found

    return step(tf.constant(X))


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("wish", [{"codec": "zvc"}, {"storage": "keep"}], ids=["zvc", "keep"])
def test_each_model_has_its_own_wishes(wish, is_first):
    lossy, exact = network("lossy"), network("exact")
    plain = gradients_of_both(lossy, exact)
    for model, wishes in [(exact, wish), (lossy, {})] if is_first else [(lossy, {}), (exact, wish)]:
        ct.compress_model(model, **wishes)
    found = gradients_of_both(lossy, exact)
    for ours, its in zip(found[1], plain[1]):
        np.testing.assert_allclose(ours, its, rtol=1e-4, atol=1e-6)
    assert any(
        np.linalg.norm(ours - its) > 1e-4 * np.linalg.norm(its) for ours, its in zip(found[0], plain[0])
    )
    assert ct.report(lossy).rows


def test_a_kept_encoder_behind_a_small_head_stays_as_it_is():
    encoder, head = network("encoder"), keras.Sequential([keras.Input((4,)), layers.Dense(4)])

    @tf.function(autograph=False)
    def gradients(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(head(encoder(x, training=True), training=True)))
        return tape.gradient(loss, [*encoder.trainable_variables, *head.trainable_variables])

    plain = gradients(tf.constant(X))
    ct.compress_model(encoder, storage="keep")
    ct.compress_model(head)
    gradients = tf.function(gradients.python_function, autograph=False)
    for ours, its in zip(gradients(tf.constant(X)), plain):
        np.testing.assert_array_equal(ours, its)
    assert "a step of several models, which the report of 'encoder' is of" in str(ct.report(head))


@pytest.mark.parametrize("undo", [True, False], ids=["restore", "compress"])
def test_a_callback_may_compress_and_restore(undo):
    model = network("in_fit")
    model.compile("sgd", "mse", jit_compile=False)

    class Turn(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                ct.restore_model(model) if undo else ct.compress_model(model)

    if undo:
        ct.compress_model(model)
    model.fit(X, np.zeros((32, 4)), batch_size=8, verbose=0, callbacks=[Turn()])
    assert undo or ct.report(model).rows


def test_nan_reaches_the_loss_through_a_normalization():
    x = X.copy()
    x[3] = np.nan
    model = keras.Sequential(
        [
            keras.Input(X.shape[1:]),
            layers.Conv2D(32, 3),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(4),
        ]
    )
    model.compile("sgd", "mse", jit_compile=False)
    ct.compress_model(model)
    assert np.isnan(model.train_on_batch(x, np.zeros((32, 4))))


def test_a_model_inside_may_be_restored_alone():
    inner = network("inner")
    outer = keras.Sequential([keras.Input(X.shape[1:]), layers.Dropout(0.1), inner])
    ct.compress_model(outer)
    before = [layer for layer in inner.layers if "call" in layer.__dict__]
    ct.compress_model(inner)
    ct.restore_model(inner)
    assert [layer for layer in inner.layers if "call" in layer.__dict__] == before
    ct.restore_model(outer)
    assert not [layer for layer in inner.layers if "call" in layer.__dict__]
