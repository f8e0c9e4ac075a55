"""AdaptiveErrorBound on products that no layer of Keras makes: bounds of what the traced step holds."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import compiled

import tf_comptrain as ct
from tf_comptrain.compression.instrumentation import instrumentation

WIDTH, HEADS, STEPS, BATCH = 64, 4, 6, 16


class Block(keras.layers.Layer):
    """Attention and a feed-forward part, in TensorFlow's operations."""

    def __init__(self, activation=tf.nn.relu, **kwargs):
        super().__init__(**kwargs)
        self.activation = activation

    def build(self, shape):
        per_head = WIDTH // HEADS
        self.queries, self.keys, self.values = (
            self.add_weight(shape=(WIDTH, HEADS, per_head), name=name) for name in ("q", "k", "v")
        )
        self.out = self.add_weight(shape=(HEADS, per_head, WIDTH), name="out")
        self.up = self.add_weight(shape=(WIDTH, 2 * WIDTH), name="up")
        self.down = self.add_weight(shape=(2 * WIDTH, WIDTH), name="down")

    def call(self, x):
        q, k, v = (tf.einsum("btd,dhk->bhtk", x, w) for w in (self.queries, self.keys, self.values))
        scores = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / 4.0)
        x += tf.einsum("bhtk,hkd->btd", tf.matmul(scores, v), self.out)
        return x + tf.matmul(self.activation(tf.matmul(x, self.up)), self.down)


class Head(keras.layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(WIDTH, 10), name="kernel")

    def call(self, x):
        return tf.matmul(tf.reduce_mean(x, 1), self.kernel)


def network(optimizer=None, activation=tf.nn.relu, **how):
    """Two blocks behind each other; the names of the operations change where it is built again."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((32, WIDTH))
    x = Block(activation, name="second")(Block(activation, name="first")(inputs))
    model = compiled(keras.Model(inputs, Head(name="head")(x)), optimizer or keras.optimizers.Adam(1e-3))
    ct.compress_model(model, **how)
    return model


def data(steps=STEPS):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, BATCH * steps)
    return (rng.normal(size=(len(y), 32, WIDTH)) + y[:, None, None] / 10).astype("float32"), y


def fit(model, *callbacks, epochs=1, steps=STEPS):
    x, y = data(steps)
    return model.fit(
        x, y, batch_size=BATCH, epochs=epochs, verbose=0, shuffle=False, callbacks=list(callbacks)
    )


def by_weight(updates):
    """Of the last collecting step."""
    return {update.layer.rpartition(" -> ")[2]: update for update in updates}


def states(model):
    return [site.read_state() for site in instrumentation(model).held.sites.values()]


def test_bounds_move_and_nothing_is_retraced():
    traces = []

    def loss(y, prediction):
        traces.append(1)
        return keras.losses.sparse_categorical_crossentropy(y, prediction, from_logits=True)

    model = network()
    assert instrumentation(model).sites() == {}
    model.compile(keras.optimizers.Adam(1e-3), loss)
    callback = ct.AdaptiveErrorBound(interval=2, warmup=1, smoothing=0.0, limits=(1e-3, 10.0))
    fit(model, callback)
    traced = len(traces)
    assert set(by_weight(callback.updates)) >= {"first/out", "first/down", "second/out", "second/down"}
    for weight in ("first/out", "first/down"):
        bounds = {u.bound for u in callback.updates if u.layer.endswith(weight)}
        assert len(bounds) == STEPS // 2
    history = fit(model, callback, epochs=2)
    assert len(traces) == traced
    assert len(history.history["bound_over_sigma"]) == 2


def test_the_bound_in_use_is_the_one_that_was_set():
    model = network()
    callback = ct.AdaptiveErrorBound(interval=4, warmup=2)
    fit(model, callback)
    held = instrumentation(model).held
    for update in by_weight(callback.updates).values():
        site = held.sites[update.layer.partition(" -> ")[0]]
        assert site.read_state().bound_used == pytest.approx(update.bound)


def test_the_budget_is_a_fraction_of_the_weight_gradients():
    """Against the gradients themselves: nothing learns."""
    model = network(keras.optimizers.SGD(0.0))
    callback = ct.AdaptiveErrorBound(target="gradient", warmup=0, smoothing=0.0, limits=(1e-6, 1e6))
    fit(model, callback, steps=1)
    x, y = data(1)
    weights = {w.path: w for w in model.trainable_weights}
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, model(x), from_logits=True))
    exact = dict(zip(weights, tape.gradient(loss, [w.value for w in weights.values()])))
    updates = by_weight(callback.updates)
    errors = {
        name: update.target_sigma / np.sqrt(np.mean(np.square(exact[name])))
        for name, update in updates.items()
    }
    assert np.mean(np.square(list(errors.values()))) == pytest.approx(0.2**2, rel=0.05)
    for name in ("second/down", "second/out"):
        assert updates[name].predicted_sigma == pytest.approx(updates[name].target_sigma, rel=1e-3)


def test_a_tensor_of_several_weights_gets_the_tightest_bound_that_they_want():
    class Parts(keras.layers.Layer):
        def build(self, shape):
            self.first = self.add_weight(shape=(WIDTH, 128), name="first")
            self.parts = [self.add_weight(shape=(128, 10), name=f"part{k}") for k in range(3)]

        def call(self, x):
            x = tf.nn.relu(tf.matmul(x, self.first))
            products = [tf.tanh(tf.matmul(x, part)) for part in self.parts]
            return tf.reduce_mean(products[0] + 10.0 * products[1] * products[2], 1)

    keras.utils.set_random_seed(0)
    inputs = keras.Input((32, WIDTH))
    model = compiled(keras.Model(inputs, Parts(name="parts")(inputs)), keras.optimizers.SGD(1e-6))
    ct.compress_model(model)
    callback = ct.AdaptiveErrorBound(warmup=0, smoothing=0.0, limits=(1e-6, 1e6))
    fit(model, callback, steps=1)
    updates = by_weight(callback.updates)
    assert len(updates) == 3 and len({update.bound for update in updates.values()}) == 1
    reached = [update.predicted_sigma / update.target_sigma for update in updates.values()]
    assert max(reached) == pytest.approx(1.0, rel=1e-3) and min(reached) < 0.99


def test_a_bound_grows_only_where_the_error_ends_in_weights():
    """A sigmoid's gradient reads its output, too: that stream keeps the bound it was given, at most."""
    model = network(activation=tf.sigmoid)
    callback = ct.AdaptiveErrorBound(warmup=0, smoothing=0.0, limits=(1e-6, 1e6), tolerance=1e3)
    fit(model, callback, steps=2)
    bounds = {weight: u.bound_over_sigma for weight, u in by_weight(callback.updates).items()}
    assert bounds["first/out"] > 1
    assert bounds["first/down"] == pytest.approx(0.02, rel=0.01)


@pytest.mark.long
def test_a_weight_frozen_later_is_left_alone():
    model = network()
    callback = ct.AdaptiveErrorBound(interval=1, warmup=0)
    fit(model, callback, steps=1)
    assert "first/down" in by_weight(callback.updates)
    model.get_layer("first").trainable = False
    compiled(model, keras.optimizers.Adam())
    fit(model, callback, steps=1)
    assert {weight.partition("/")[0] for weight in by_weight(callback.updates)} == {"second", "head"}


def test_layers_of_keras_and_products_by_hand_share_one_callback():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((32, WIDTH))
    x = keras.layers.Dense(WIDTH, name="dense")(Block(name="block")(inputs))
    model = compiled(keras.Model(inputs, Head(name="head")(x)))
    ct.compress_model(model)
    callback = ct.AdaptiveErrorBound(interval=2, warmup=1, check_data=data(1))
    fit(model, callback)
    assert {"dense/kernel", "block/out", "block/down"} <= set(by_weight(callback.updates))
    assert set(by_weight(callback.updates)) == set(by_weight(check for _, check in callback.checks))
    assert {update.step for update in callback.updates} == {2, 4, 6}  # a check takes none away
    shares = {law.name.rpartition(" -> ")[2]: law.share for law in instrumentation(model).held.law_sites()}
    assert shares["dense/kernel"] == pytest.approx(1 / WIDTH)


class Stop(keras.callbacks.Callback):
    """Ends the process's part of a training before a step, as a kill would."""

    def __init__(self, step):
        super().__init__()
        self.left = step

    def on_train_batch_begin(self, batch, logs=None):
        self.left -= 1
        if self.left < 0:
            raise InterruptedError


def train(model, folder, *callbacks):
    x, y = data()
    return ct.fit(
        model, x, y, batch_size=BATCH, epochs=2, shuffle=False, snapshot_every=2, verbose=0,
        checkpoint_dir=folder, callbacks=list(callbacks),
    )  # fmt: skip


@pytest.mark.long("absolute")
@pytest.mark.parametrize("how", [{}, {"error_bound": 0.5}], ids=["relative", "absolute"])
def test_a_restart_takes_the_bounds_over(tmp_path, how):
    """Nothing is collected after the restart: what the steps use are the bounds of before."""
    model = network(**how)
    with pytest.raises(InterruptedError):
        train(model, tmp_path, ct.AdaptiveErrorBound(interval=100, warmup=1), Stop(STEPS + 3))
    wanted = [state.bound_set for state in states(model)]
    assert len({bound for bound in wanted if bound not in (0.0, 0.5)}) >= 4
    again, callback = network(**how), ct.AdaptiveErrorBound(interval=100, warmup=1)
    train(again, tmp_path, callback)
    assert [update.step for update in callback.updates] == [2] * len(callback.updates)  # of before
    assert [state.bound_set for state in states(again)] == wanted
    used = [state.bound_used for state in states(again) if state.bound_set]
    assert used == pytest.approx([bound for bound in wanted if bound], rel=1e-6)


@pytest.mark.long
def test_a_restarted_training_finds_nearly_the_bounds_of_a_whole_one(tmp_path):
    whole, second = (ct.AdaptiveErrorBound(interval=2, warmup=1) for _ in range(2))
    train(network(), tmp_path / "whole", whole)
    with pytest.raises(InterruptedError):
        first = ct.AdaptiveErrorBound(interval=2, warmup=1)
        train(network(), tmp_path / "stopped", first, Stop(STEPS + 3))
    train(network(), tmp_path / "stopped", second)
    assert [u.step for u in second.updates] == [u.step for u in whole.updates]
    assert [u.bound for u in second.updates] == pytest.approx([u.bound for u in whole.updates], rel=0.1)


@pytest.mark.long
def test_goes_on_with_the_state_in_a_checkpoint(tmp_path):
    model, callback = network(), ct.AdaptiveErrorBound(interval=100, warmup=2)
    fit(model, callback)
    path = tf.train.Checkpoint(bounds=callback.state).save(str(tmp_path / "ckpt"))
    other, again = network(), ct.AdaptiveErrorBound(interval=100, warmup=2)
    tf.train.Checkpoint(bounds=again.state).restore(path).assert_consumed()
    fit(other, again, steps=1)
    assert again.updates == []  # the next collecting step is not before step 102
    assert [state.bound_set for state in states(other)] == [state.bound_set for state in states(model)]
    fit(other, again, steps=1)
    assert all(state.bound_set == 0.0 for state in states(other))  # begun anew
