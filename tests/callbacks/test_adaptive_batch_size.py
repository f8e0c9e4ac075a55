"""AdaptiveBatchSize in `fit`: growth into the headroom, learning rate, bounds, errors before the first step."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import compiled, images, site_of

import tf_comptrain as ct
from tf_comptrain import memory
from tf_comptrain.compression.instrumentation import instrumentation

layers = keras.layers
SAMPLES = 96
HUGE = 1 << 40


def network(optimizer=None):
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            layers.Conv2D(16, 3, strides=2, activation="tanh", name="conv"),
            layers.Conv2D(8, 3, strides=2, activation="relu", name="second"),
            layers.Flatten(),
            layers.Dense(10, name="dense"),
        ]
    )
    return compiled(model, optimizer or keras.optimizers.SGD(0.001))


def compressed(optimizer=None):
    model = network(optimizer)
    ct.compress_model(model)
    return model


def data(batch_size=8):
    return ct.elastic_batch(tf.data.Dataset.from_tensor_slices(images(SAMPLES, size=32)), batch_size)


class Loss(keras.callbacks.Callback):
    """Reports the losses it is given; stands before the tuner."""

    def __init__(self, *losses):
        super().__init__()
        self.losses = losses

    def on_epoch_end(self, epoch, logs=None):
        logs["loss"] = self.losses[epoch]


def fit(model, dataset, tuner, losses, more=()):
    callbacks = [Loss(*losses), *more, tuner]
    return model.fit(dataset, epochs=len(losses), verbose=0, callbacks=callbacks)


def test_grows_while_the_loss_improves():
    dataset, model = data(), compressed()
    tuner = ct.AdaptiveBatchSize(limit_bytes=HUGE, max_batch=40, verbose=0)
    history = fit(model, dataset, tuner, [4.0, 3.0, 2.0, 1.0])
    assert history.history["batch_size"] == [8, 16, 32, 40]
    assert [d.action for d in tuner.decisions] == ["grow"] * 3
    assert [d.epoch for d in tuner.decisions] == [1, 2, 3]
    assert int(model.optimizer.iterations) == 12 + 6 + 3 + 3
    assert float(model.optimizer.learning_rate) == pytest.approx(0.001 * 40 / 8)
    assert tuner.decisions[-1].peak_bytes > 0


@pytest.mark.parametrize("scaling, factor", [("sqrt", 2**0.5), (None, 1.0)])
def test_learning_rate_rules(scaling, factor):
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.001))
    model = compressed(optimizer)
    tuner = ct.AdaptiveBatchSize(limit_bytes=HUGE, lr_scaling=scaling, verbose=0)
    fit(model, data(), tuner, [4.0, 3.0])
    assert float(model.optimizer.learning_rate) == pytest.approx(0.001 * factor)


class Peak:
    """In place of the allocator's: so many bytes at each size of a dataset."""

    def __init__(self, dataset, bytes_at):
        self.elastic, self.bytes_at, self.running = dataset.elastic, bytes_at, False
        self.peak_bytes = 0

    def start(self):
        self.running, self.peak_bytes = True, 0

    def read(self):
        if self.running:
            self.peak_bytes = max(self.peak_bytes, self.bytes_at[self.elastic.size])
        return self.peak_bytes

    def stop(self):
        peak, self.running = self.read(), False
        return peak


def test_the_limit_holds_the_batch():
    """A limit with room for 1.3 times the first size's need leaves none to double."""
    dataset, model = data(32), compressed()
    tuner = ct.AdaptiveBatchSize(limit_bytes=1_300_000_000, margin=0.0, verbose=0)
    tuner._peak = Peak(dataset, {size: size * 1_000_000_000 // 32 for size in range(1, SAMPLES + 1)})
    history = fit(model, dataset, tuner, [4.0, 3.0, 2.0])
    assert history.history["batch_size"] == [32, 40, 40]
    assert [d.action for d in tuner.decisions] == ["grow", "keep"]
    assert "room for" in tuner.decisions[0].reason


class Seen(keras.callbacks.Callback):
    """Batch of every step, and steps as the optimizer counts them."""

    def __init__(self, dataset):
        super().__init__()
        self.elastic, self.epochs = dataset.elastic, []

    def on_epoch_begin(self, epoch, logs=None):
        self.epochs.append([])

    def on_train_batch_begin(self, batch, logs=None):
        self.epochs[-1].append(self.elastic.size)


def test_over_the_limit_the_batch_goes_back_after_one_step(capsys):
    dataset, model = data(), compressed()
    seen, tuner = Seen(dataset), ct.AdaptiveBatchSize(limit_bytes=HUGE, verbose=0)
    tuner._peak = Peak(dataset, {8: HUGE // 4, 16: HUGE + 1})
    model.fit(dataset, epochs=3, verbose=1, callbacks=[Loss(4.0, 3.0, 2.0), seen, tuner])
    assert seen.epochs == [[8] * 12, [16] + [8] * 10, [8] * 12]
    assert [d.action for d in tuner.decisions] == ["grow", "lower", "tighten"]
    assert [d.epoch for d in tuner.decisions] == [1, 1, 2]
    assert tuner.decisions[1].peak_bytes == HUGE + 1 and "given up" in tuner.decisions[2].reason
    assert int(model.optimizer.iterations) == 12 + 11 + 12
    assert float(model.optimizer.learning_rate) == pytest.approx(0.001)
    shown = capsys.readouterr().out
    assert "10/10" in shown and "11/" not in shown.split("Epoch 2/3")[1].split("Epoch 3/3")[0]


def test_growth_that_is_undone_brings_weights_and_slots_back():
    dataset, model = data(), compressed()
    states = []

    class State(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):  # after the decision
            states.append([v.numpy() for v in (*model.variables, *model.optimizer.variables)])

    tuner = ct.AdaptiveBatchSize(limit_bytes=HUGE, verbose=0, hold=1)
    tuner._peak = Peak(dataset, {8: HUGE // 4, 16: HUGE // 4})
    model.fit(dataset, epochs=4, verbose=0, callbacks=[Loss(4.0, math.nan, 3.0, 2.0), tuner, State()])
    assert [d.action for d in tuner.decisions[:2]] == ["grow", "undo"]
    assert "weights are those of before" in tuner.decisions[1].reason
    assert float(model.optimizer.learning_rate) == pytest.approx(0.001)
    grown, undone, later = states[1:]
    rate = [np.shape(value) == () for value in grown]  # and the count of steps
    for same, before, after in zip(rate, grown, undone):
        assert same or np.array_equal(before, after)
    assert any(not np.array_equal(*pair) for pair in zip(undone, later))


def test_over_the_limit_in_the_last_step_of_an_epoch():
    dataset, model = data(48), compressed()
    seen, tuner = Seen(dataset), ct.AdaptiveBatchSize(limit_bytes=HUGE, verbose=0)
    tuner._peak = Peak(dataset, {48: HUGE // 4, 96: 3 * HUGE})
    model.fit(dataset, epochs=3, verbose=0, callbacks=[Loss(4.0, 3.0, 2.0), seen, tuner])
    assert seen.epochs == [[48] * 2, [96], [48] * 2]
    assert [d.action for d in tuner.decisions] == ["grow", "lower"]


def test_holds_a_quarter_of_the_epochs_unless_told():
    for hold, sizes in ((None, [8, 8, 16, 16, 32, 32, 64, 64]), (3, [8, 8, 8, 16, 16, 16, 32, 32])):
        tuner = ct.AdaptiveBatchSize(limit_bytes=HUGE, hold=hold, verbose=0)
        history = fit(compressed(), data(), tuner, [9.0 - epoch for epoch in range(8)])
        assert history.history["batch_size"] == sizes


def test_one_clear_line_for_each_decision(capsys):
    tuner = ct.AdaptiveBatchSize(limit_bytes=HUGE)
    fit(compressed(), data(), tuner, [4.0, 3.0])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("AdaptiveBatchSize")]
    assert len(lines) == 1
    assert lines[0].startswith(
        "AdaptiveBatchSize, epoch 2: grow, batch 8 -> 16, learning rate 0.001 -> 0.002: "
        "loss 4 has too few epochs for a trend, peak"
    )


def test_tightening_halves_every_bound_and_follows_sigma():
    dataset, model = data(), compressed()
    tuner = ct.AdaptiveBatchSize(limit_bytes=HUGE, max_batch=8, min_bound_scale=0.5, verbose=0)
    fit(model, dataset, tuner, [1.0, 1.0, 1.0])
    assert [d.action for d in tuner.decisions] == ["tighten", "keep"]
    handle = instrumentation(model)
    assert site_of(handle, "conv_1/Tanh").relative_bound == 0.02
    assert site_of(handle, "second_1/Relu").relative_bound == 0.1
    for site in handle.sites().values():
        state = site.read_state()
        assert state.bound_set == pytest.approx(site.relative_bound * state.running_sigma / 2, rel=0.05)


def test_adaptive_bounds_stay_scaled():
    updates = []
    for smallest in (1.0, 0.5):
        model = compressed()
        bounds = ct.AdaptiveErrorBound(interval=100, warmup=18, limits=(1e-6, 1e6))
        tuner = ct.AdaptiveBatchSize(limit_bytes=HUGE, max_batch=8, min_bound_scale=smallest, verbose=0)
        fit(model, data(), tuner, [1.0, 1.0, 1.0], more=[bounds])
        updates.append([u.bound for u in bounds.updates])
        assert instrumentation(model).bound_scale == smallest
    assert [d.action for d in tuner.decisions] == ["tighten", "keep"]
    assert len(updates[0]) == 2
    assert updates[1] == pytest.approx([bound / 2 for bound in updates[0]], rel=0.05)


def test_training_begins_anew_each_time():
    dataset, model = data(), compressed()
    tuner = ct.AdaptiveBatchSize(limit_bytes=HUGE, max_batch=8, verbose=0)
    fit(model, dataset, tuner, [1.0, 2.0, 3.0])
    assert instrumentation(model).bound_scale < 1
    fit(model, dataset, tuner, [1.0])
    assert tuner.decisions == []
    assert instrumentation(model).bound_scale == 1.0
    assert all(site.read_state().bound_set == 0.0 for site in instrumentation(model).sites().values())


class Interrupt(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise KeyboardInterrupt


def test_what_comes_after_an_interruption_is_no_step():
    dataset, model = data(), compressed()
    tuner = ct.AdaptiveBatchSize(limit_bytes=HUGE, max_batch=8, verbose=0)
    with pytest.raises(KeyboardInterrupt):
        model.fit(dataset, verbose=0, callbacks=[tuner, Interrupt()])
    before = tf.zeros([1 << 27], tf.uint8)  # as a prediction of many samples makes them
    large = memory.counters.bytes_in_use()
    del before
    fit(model, dataset, tuner, [2.0, 1.0])
    assert tuner.decisions[0].peak_bytes < large


RATE = keras.optimizers.schedules.PolynomialDecay(0.01, 24, 0.0)  # two epochs of 12 steps


@pytest.mark.parametrize("scaling, factor", [("linear", 2.0), ("sqrt", 2**0.5), (None, 1.0)])
def test_a_schedule_counts_samples_and_is_scaled(scaling, factor):
    rates = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: rates.append(float(model.optimizer.learning_rate.numpy()))
    )
    model = compressed(keras.optimizers.SGD(RATE))
    tuner = ct.AdaptiveBatchSize(limit_bytes=HUGE, lr_scaling=scaling, verbose=0)
    fit(model, data(), tuner, [4.0, 3.0], more=[note])  # 12 steps of 8 samples, then 6 of 16
    expected = [0.01 * (1 - k / 24) for k in range(1, 13)]
    expected += [factor * 0.01 * (1 - k / 24) for k in range(14, 25, 2)]
    assert rates == pytest.approx(expected, abs=1e-7)
    assert tuner.decisions[0].learning_rate == pytest.approx(factor * 0.005)
    assert keras.optimizers.deserialize(keras.optimizers.serialize(model.optimizer)).learning_rate == 0.01
    ct.restore_model(model)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.01 * (1 - 18 / 24))


def test_a_scaled_schedule_is_what_the_step_uses():
    """Weights after one step of twice the batch, against one by hand at twice the rate."""
    model = compressed(keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.01, 1, 1.0)))
    sgd = compressed(keras.optimizers.SGD(0.01))
    for one in (model, sgd):
        one.fit(data(48), epochs=1, verbose=0)
    for one in (model, sgd):
        tuner = ct.AdaptiveBatchSize(limit_bytes=HUGE, verbose=0)
        fit(one, data(48), tuner, [4.0, 3.0])
    for ours, theirs in zip(model.get_weights(), sgd.get_weights()):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def resized(dataset, size):
    dataset.elastic.resize(size)
    return dataset


@pytest.mark.parametrize(
    "model, dataset, options, message",
    [
        (network, data, {}, "compress_model"),
        (compressed, lambda: data().prefetch(1), {}, "elastic_batch"),
        (
            compressed,
            lambda: tf.data.Dataset.from_tensor_slices(images(16, size=32)).batch(8),
            {},
            "elastic_batch",
        ),
        (compressed, data, {"limit_bytes": 1000}, "`limit_bytes` must be above the .* Received: 1000"),
        (compressed, data, {"max_batch": 4}, "`max_batch` must be at least .* 8. Received: 4"),
        (compressed, data, {"min_batch": 9}, "`min_batch` must be at most .* 8. Received: 9"),
    ],
)
def test_errors_before_the_first_step(model, dataset, options, message):
    held = tf.ones(1 << 20)  # memory in use that the allocator counts: not all small tensors are
    model = model()
    before = [w.copy() for w in model.get_weights()]
    with pytest.raises(ValueError, match=message):
        model.fit(dataset(), verbose=0, callbacks=[ct.AdaptiveBatchSize(**{"limit_bytes": HUGE, **options})])
    assert all((now == then).all() for now, then in zip(model.get_weights(), before))
    del held


def test_an_epoch_is_one_pass():
    with pytest.raises(ValueError, match="`steps_per_epoch` must be left out"):
        compressed().fit(
            data(), steps_per_epoch=3, verbose=0, callbacks=[ct.AdaptiveBatchSize(limit_bytes=HUGE)]
        )


@pytest.mark.parametrize(
    "options, message",
    [
        ({"limit_bytes": 0}, "limit_bytes"),
        ({"limit_bytes": "much"}, "limit_bytes"),
        ({"max_batch": 0}, "max_batch"),
        ({"min_batch": 1.5}, "min_batch"),
        ({"max_batch": 4, "min_batch": 8}, "max_batch"),
        ({"lr_scaling": "cubic"}, "lr_scaling"),
        ({"growth": 1.0}, "growth"),
        ({"margin": 1.0}, "margin"),
        ({"patience": 0}, "patience"),
        ({"hold": 0}, "hold"),
        ({"min_bound_scale": 0}, "min_bound_scale"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=f"`{message}`.*Received"):
        ct.AdaptiveBatchSize(**{"limit_bytes": HUGE, **options})
