"""Gradients looked at while a model trains: who is off is named and mended, and nothing else changes."""

import contextlib
import logging

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import compiled, images, small_cnn

import tf_comptrain as ct
from tf_comptrain.compression import first_step
from tf_comptrain.compression.instrumentation import instrumentation

layers = keras.layers
X, Y = images(96)


def fitted(model, batch=32, x=X, y=Y, **kwargs):
    model.fit(x, y, batch_size=batch, verbose=0, shuffle=False, **kwargs)
    return model


def small_decoder():
    keras.utils.set_random_seed(0)
    tokens = keras.Input((16,), dtype="int32")
    h = layers.Embedding(64, 32, name="embedding")(tokens)
    for k in range(2):
        n = layers.LayerNormalization(name=f"norm{k}")(h)
        h = h + layers.MultiHeadAttention(4, 8, name=f"attention{k}")(n, n, use_causal_mask=True)
        n = layers.Dense(64, activation="gelu", name=f"up{k}")(
            layers.LayerNormalization(name=f"norm_up{k}")(h)
        )
        h = h + layers.Dense(32, name=f"down{k}")(n)
    return keras.Model(tokens, layers.Dense(64, name="logits")(h), name="small_decoder")


@contextlib.contextmanager
def looks():
    """The errors that each check finds, in a list."""
    found = []
    errors_of = first_step.FirstStepCheck._errors

    def errors(self, *args):
        result = errors_of(self, *args)
        found.append({error.weight: error for error in result[0]})
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(first_step.FirstStepCheck, "_errors", errors)
        yield found


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if "is off by" in record.getMessage()]


@pytest.mark.long("*-xla", "small_decoder-*")
@pytest.mark.parametrize("jit", [False, True], ids=["executor", "xla"])
@pytest.mark.parametrize("make", [small_cnn, small_decoder])
def test_nothing_is_said_of_a_model_with_the_default_bounds(make, jit, caplog):
    model = make()
    report = ct.compress_model(model, check=True)
    tokens = np.random.default_rng(0).integers(0, 64, (96, 16))
    with looks() as found:
        fitted(
            compiled(model, jit_compile=jit), **({"x": tokens, "y": tokens} if make is small_decoder else {})
        )
    assert not warnings_of(caplog)
    assert report.unchecked is None
    (errors,) = found
    assert len(errors) >= 0.8 * len(model.trainable_variables)
    assert max(error.error for error in errors.values()) > 0.01  # it is of compressed activations
    assert all(site.base is None for site in instrumentation(model).sites().values())


def with_bound(name, bound):
    """Of one tensor of the step, absolute."""
    return ct.Policy(tensors={name: ct.Setting("plane", "abs", bound)})


@pytest.fixture(scope="module")
def site_before_dense():
    model = small_cnn()
    ct.compress_model(model, check=False)
    fitted(compiled(model))
    return next(name for name in instrumentation(model).sites() if "dropout" in name or "flatten" in name)


def test_a_bound_that_is_far_too_large_is_said_once_and_lowered(site_before_dense, caplog):
    model = small_cnn()
    ct.compress_model(model, policy=with_bound(site_before_dense, 100.0), check=True)
    with looks() as found:
        fitted(compiled(model), epochs=2)
    (said,) = warnings_of(caplog)
    assert "dense1/kernel" in said and site_before_dense in said and "small_cnn" in said
    assert f"{100 * found[0]['dense1/kernel'].error:.0f} %" in said
    assert found[0]["dense1/kernel"].is_wrong
    assert not any(error.is_wrong for error in found[-1].values())
    site = instrumentation(model).sites()[site_before_dense]
    assert site.read_state().bound_set == pytest.approx(site.base)
    assert 0.01 < site.base < 10.0
    assert caplog.records[0].levelno == logging.WARNING


def test_the_first_step_has_the_lowered_bound(site_before_dense):
    """Before it the weights are those of the check; behind it, the step would have spoilt them."""
    plain = compiled(
        small_cnn(), keras.optimizers.SGD(1.0), run_eagerly=True
    )  # in less time than a trace takes
    fitted(plain, epochs=1, x=X[:32], y=Y[:32])
    after = {}
    for check in (True, False):
        model = small_cnn()
        ct.compress_model(model, policy=with_bound(site_before_dense, 100.0), check=check)
        fitted(compiled(model, keras.optimizers.SGD(1.0)), x=X[:32], y=Y[:32])
        kernel, exact = (m.get_layer("dense1").kernel.numpy() for m in (model, plain))
        after[check] = np.linalg.norm(kernel - exact)
    assert after[True] < 0.2 * after[False]


class Scale(layers.Layer):
    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1],), initializer="ones", name="w")

    def call(self, x):
        return x * self.w


@pytest.fixture(scope="module")
def wrong_rule():
    """A rule whose gradient of the weight is twice what it should be."""

    class Twice(ct.rules.Rule):
        def saves(self, layer):
            return (ct.rules.Save("x", kind="linear"),)

        def call(self, context, x):
            y = context.original(x)
            return 2 * y - tf.stop_gradient(y)

    ct.register_rule(Scale)(Twice())


def dense_model(*between):
    keras.utils.set_random_seed(0)
    h = inputs = keras.Input((64,))
    for k, layer in enumerate((*between, None)):
        h = layers.Dense(256, activation="tanh", name=f"before{k}")(h)
        h = h if layer is None else layer(h)
    return keras.Model(inputs, layers.Dense(10, name="after")(h), name="dense_model")


ROWS = np.random.default_rng(0).normal(size=(96, 64)).astype("float32")


def test_a_wrong_gradient_that_no_bound_mends_is_said_once(wrong_rule, caplog):
    model = dense_model(Scale(name="scale"))
    ct.compress_model(model, check=True)
    fitted(compiled(model), x=ROWS)
    said = warnings_of(caplog)
    assert any("scale/w" in message and "storage='keep'" in message for message in said), said
    assert len(said) == len({message.split("gradient of ")[1].split()[0] for message in said})
    sites = instrumentation(model).held.sites.values()
    assert sites
    assert all(site.base is None and site.read_state().bound_set == 0 for site in sites)


@pytest.mark.long
def test_what_is_wrong_again_is_lowered_again_without_a_word(site_before_dense, caplog, monkeypatch):
    monkeypatch.setattr(first_step, "_EVERY", 3)
    model = small_cnn()
    ct.compress_model(model, policy=with_bound(site_before_dense, 100.0), check=True)
    fitted(compiled(model))
    instrumentation(model).reset_bounds()
    with looks() as found:
        fitted(model)
    assert found[0]["dense1/kernel"].is_wrong and not found[-1]["dense1/kernel"].is_wrong
    assert len(warnings_of(caplog)) == 1


def test_under_xla_the_step_is_traced_anew_with_the_lowered_bounds(caplog, monkeypatch):
    model = dense_model()
    monkeypatch.setattr(first_step, "_EVERY", 3)
    ct.compress_model(model, check=True)
    fitted(compiled(model, jit_compile=True), x=ROWS)
    assert not warnings_of(caplog)
    traced = model.train_function
    monkeypatch.setattr(first_step, "_FACTOR", 0.1)  # as the bounds are, all are wrong
    with looks() as found:
        fitted(model, x=ROWS)
    assert warnings_of(caplog)
    assert model.train_function is not traced
    lowered = [site for site in instrumentation(model).held.sites.values() if site.base is not None]
    assert lowered and all(site.bits > 6 for site in lowered)
    name = next(iter(found[0]))
    assert found[-1][name].error < 0.5 * found[0][name].error
    assert int(model.optimizer.iterations) == 6


def test_off_by_one_argument(site_before_dense, caplog):
    model = small_cnn()
    ct.compress_model(model, policy=with_bound(site_before_dense, 100.0), check=False)
    with looks() as found:
        fitted(compiled(model))
    assert not found and not warnings_of(caplog)


def trained(check, make, optimizer, **kwargs):
    """All that a training of three steps leaves behind."""
    model = make()
    ct.compress_model(model, check=check)
    compiled(model, optimizer(), metrics=["accuracy"])
    with looks() as found:
        history = model.fit(X, Y, batch_size=32, epochs=1, verbose=0, **kwargs)
    assert len(found) == check
    held = instrumentation(model).held
    values = [v.numpy() for v in (*model.variables, *model.optimizer.variables, *model.metrics_variables)]
    states = {name: site.state.numpy() for name, site in held.sites.items()}
    crossings = [crossing.name for crossing in held.crossings]
    return history.history, values, states, crossings, int(model.optimizer.iterations)


@pytest.mark.long("3")
@pytest.mark.parametrize("steps", [1, 3])
def test_the_training_is_the_same_to_the_bit(steps):
    """Weights, slots, statistics of batch normalization, seeds, metrics and the codecs' running values."""

    def make():
        model = small_cnn()
        model.get_layer("dense1").kernel_regularizer = keras.regularizers.L2(1e-4)
        return model

    def compile_for(check):
        keras.utils.set_random_seed(5)
        return trained(check, make, lambda: keras.optimizers.Adam(1e-3), shuffle=True, **kwargs)

    kwargs = {}
    original = compiled

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "compiled", lambda *a, **k: original(*a, steps_per_execution=steps, **k))
        with_check, without = compile_for(True), compile_for(False)
    assert with_check[0] == without[0]
    for one, other in zip(with_check[1], without[1]):
        np.testing.assert_array_equal(one, other)
    assert list(with_check[2]) == list(without[2])  # the sites of the check are those of the step
    for name, state in without[2].items():
        np.testing.assert_array_equal(with_check[2][name], state, err_msg=name)
    assert with_check[3:] == without[3:]


@pytest.mark.long("equal batches")
@pytest.mark.parametrize("batch", [32, 40], ids=["equal batches", "a smaller last batch"])
def test_the_step_is_not_traced_more_often(batch, monkeypatch):
    """What was looked at is trained on through an iterator of the same type."""
    traces = []
    original = keras.Model.train_step

    def train_step(self, data):
        traces.append(tuple(tf.nest.flatten(data)[0].shape))
        return original(self, data)

    monkeypatch.setattr(keras.Model, "train_step", train_step)
    found = []
    for check in (False, True):
        traces.clear()
        model = small_cnn()
        ct.compress_model(model, check=check)
        with looks() as looked:
            fitted(compiled(model), batch, epochs=2)
        assert len(looked) == check
        found.append(list(traces))
    assert found[0] == found[1]


@pytest.mark.long
def test_every_thousand_steps(monkeypatch):
    monkeypatch.setattr(first_step, "_EVERY", 4)
    model = compiled(small_cnn())
    ct.compress_model(model, check=True)
    with looks() as found:
        fitted(model, epochs=3)  # steps 0 to 8: at 0, 4 and 8
        assert len(found) == 3
        fitted(model, epochs=1)  # 9 to 11
        assert len(found) == 3
        fitted(model, epochs=1)
        assert len(found) == 4


def test_a_training_that_goes_on_does_not_repeat_it(tmp_path):
    def training(epochs):
        model = small_cnn()
        ct.compress_model(model, check=True)
        with looks() as found:
            ct.fit(compiled(model), X, Y, batch_size=32, epochs=epochs, checkpoint_dir=tmp_path, verbose=0)
        return int(model.optimizer.iterations), len(found)

    assert training(1) == (3, 1)
    assert training(2) == (6, 0)


class OwnStep(keras.Model):
    def train_step(self, data):
        return super().train_step(data)


def test_what_cannot_be_looked_at_trains_and_the_report_says_why():
    inputs = small_cnn()
    own = OwnStep(inputs.inputs, inputs.outputs)
    report = ct.compress_model(own, check=True)
    fitted(compiled(own))
    assert report.unchecked == "a train step of its own"
    assert "Gradients are not checked: a train step of its own." in str(report)

    few = small_cnn()
    report = ct.compress_model(few, check=True)
    fitted(compiled(few), batch=8)
    assert report.unchecked == "batch statistics, and fewer than 16 samples"

    distributed = tf.distribute.OneDeviceStrategy("/cpu:0")
    with distributed.scope():
        model = compiled(small_cnn())
    report = ct.compress_model(model, check=True)
    fitted(model)
    assert report.unchecked in ("a distribution strategy", None)

    with looks() as found:
        model = compiled(small_cnn())
        ct.compress_model(model, check=True)
        model.train_on_batch(X[:32], Y[:32])
    assert not found


@pytest.mark.long
def test_an_error_of_the_check_is_not_the_trainings(monkeypatch):
    model = small_cnn()
    report = ct.compress_model(model, check=True)

    def fails(*args):
        raise ValueError("not on a slice")

    monkeypatch.setattr(first_step, "_compared", fails)
    fitted(compiled(model))
    assert report.unchecked == "ValueError: not on a slice"
    assert int(model.optimizer.iterations) == 3
