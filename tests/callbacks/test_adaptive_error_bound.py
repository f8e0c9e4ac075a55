"""Bounds that follow the gradients: targets, optimizers, loss scale, collecting steps, tracing."""

import subprocess
import sys
import textwrap
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import by_layer, compiled, images

import tf_comptrain as ct
from tf_comptrain.callbacks._bounds_state import BoundsState, codec_states, for_model, for_names
from tf_comptrain.callbacks._momentum import accumulated_gradient
from tf_comptrain.compression.instrumentation import instrumentation

layers = keras.layers


def network(optimizer, **kwargs):
    """The stem reads the batch, which is there anyway: two tensors are held, and two weights steer."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            layers.Conv2D(8, 3, strides=2, activation="relu", name="stem"),
            layers.Conv2D(8, 3, activation="relu", name="conv"),
            layers.Flatten(),
            layers.Dense(10, name="dense"),
        ]
    )
    ct.compress_model(compiled(model, optimizer, **kwargs))
    return model


def fit(model, callback, epochs=1, more=(), steps=8):
    x, y = images(16 * steps)
    return model.fit(
        x, y, batch_size=16, epochs=epochs, verbose=0, shuffle=False, callbacks=[callback, *more]
    )


class StatisticsLog(keras.callbacks.Callback):
    """The statistics of every weight that steers, after each step."""

    def __init__(self):
        super().__init__()
        self.values = []

    def on_train_batch_end(self, batch, logs=None):
        laws = instrumentation(self.model).held.law_sites()
        self.values.append(tuple(float(law.statistics.numpy()[0]) for law in laws))


def test_statistics_are_collected_on_collecting_steps_only():
    log = StatisticsLog()
    fit(network(keras.optimizers.SGD(0.01)), ct.AdaptiveErrorBound(interval=4, warmup=2), more=[log])
    changed = [now != before for before, now in zip([(0.0, 0.0), *log.values], log.values)]
    assert changed == [False, False, True, False, False, False, True, False]


def test_that_there_is_nothing_to_steer_is_said(caplog):
    model = network("sgd")
    ct.restore_model(model)
    ct.compress_model(model, storage="keep")
    with caplog.at_level("WARNING", logger="absl"):
        fit(model, ct.AdaptiveErrorBound())
    (said,) = [r.getMessage() for r in caplog.records if "no effect" in r.getMessage()]
    assert "holds nothing that has a bound" in said


def test_after_an_interruption_nothing_is_collected():
    class Interrupted(keras.utils.PyDataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            if index == 4:
                raise KeyboardInterrupt
            return tuple(part[:16] for part in images(16))

    model = network(keras.optimizers.SGD(0.01))
    with pytest.raises(tf.errors.UnknownError, match="KeyboardInterrupt"):
        model.fit(Interrupted(), verbose=0, callbacks=[ct.AdaptiveErrorBound(interval=1, warmup=2)])
    assert not instrumentation(model).collecting.numpy()


def test_bounds_change_and_nothing_is_retraced():
    traces = []

    def loss(y, prediction):
        traces.append(1)
        return keras.losses.sparse_categorical_crossentropy(y, prediction, from_logits=True)

    model = network(keras.optimizers.SGD(0.05, momentum=0.9))
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss)
    callback = ct.AdaptiveErrorBound(interval=2, warmup=1, smoothing=0.0)
    fit(model, callback)
    after_first = len(traces)
    bounds = {u.bound for u in callback.updates if u.layer.endswith("conv/kernel")}
    assert len(bounds) == 4
    fit(model, callback, epochs=2)
    assert len(traces) == after_first


def test_the_bound_in_use_is_the_one_that_was_set():
    model = network(keras.optimizers.SGD(0.05, momentum=0.9))
    callback = ct.AdaptiveErrorBound(interval=4, warmup=2)
    fit(model, callback)
    last = {update.layer.partition(" -> ")[0]: update.bound for update in callback.updates}
    used = {name: site.read_state().bound_used for name, site in instrumentation(model).sites().items()}
    assert len(used) == 2 and used == pytest.approx(last)


@pytest.mark.parametrize(
    "optimizer, source",
    [
        (keras.optimizers.SGD, "gradient"),
        (lambda rate: keras.optimizers.SGD(rate, momentum=0.9), "momentum"),
        (keras.optimizers.Adam, "momentum"),
    ],
)
def test_momentum_where_there_is_one(optimizer, source):
    callback = ct.AdaptiveErrorBound(interval=3, warmup=0, target="momentum")
    fit(network(optimizer(0.001)), callback, steps=4)
    assert {update.source for update in callback.updates} == {source}
    assert len(callback.updates) == 4


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.SGD(0.3, momentum=0.8),
        lambda: keras.optimizers.SGD(0.3, momentum=0.8, nesterov=True),
        lambda: keras.optimizers.Adam(0.3, beta_1=0.8),
        lambda: keras.optimizers.Nadam(0.3, beta_1=0.8),
        lambda: keras.optimizers.Adamax(0.3, beta_1=0.8),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.3, momentum=0.8), 1.0),
    ],
)
def test_every_momentum_is_brought_to_the_same_scale(optimizer):
    """M = g_3 + 0.8 g_2 + 0.64 g_1, whatever the optimizer keeps."""
    optimizer = optimizer()
    other, variable = keras.Variable(np.zeros((2, 3))), keras.Variable(np.zeros((2, 3)))
    optimizer.build([other, variable])
    gradients = np.random.default_rng(0).normal(size=(3, 2, 3)).astype("float32")
    for g in gradients:
        optimizer.apply([tf.zeros((2, 3)), tf.constant(g)], [other, variable])
    slot, factor = accumulated_gradient(optimizer, variable)
    expected = gradients[2] + 0.8 * gradients[1] + 0.64 * gradients[0]
    np.testing.assert_allclose(np.abs(factor * slot.numpy()), np.abs(expected), rtol=1e-4)


def test_other_optimizers_have_none():
    """RMSprop's momentum is one of scaled gradients."""
    variable = keras.Variable(np.zeros((2, 3)))
    for optimizer in (keras.optimizers.SGD(0.1), keras.optimizers.RMSprop(0.1, momentum=0.9)):
        optimizer.build([variable])
        assert accumulated_gradient(optimizer, variable) is None
    optimizer = keras.optimizers.Adam()
    assert accumulated_gradient(optimizer, variable) is None  # not built
    optimizer.build([variable])
    assert accumulated_gradient(optimizer, keras.Variable(np.zeros(2))) is None  # not its variable


def test_gradients_share_a_budget_by_the_size_of_their_tensors():
    """Against the gradients themselves: with a learning rate of 0 each step sees the same ones."""
    model = network(keras.optimizers.SGD(0.0))
    callback = ct.AdaptiveErrorBound(target="gradient", warmup=0, smoothing=0.0, limits=(1e-6, 1e6))
    fit(model, callback, steps=1)
    x, y = images(16)
    with tf.GradientTape() as tape:
        loss = keras.losses.sparse_categorical_crossentropy(y, model(x), from_logits=True)
        loss = tf.reduce_mean(loss)
    kernels = [model.get_layer(name).kernel for name in ("conv", "dense")]
    exact = tape.gradient(loss, [kernel.value for kernel in kernels])
    updates = by_layer(callback.updates)
    spent = {}
    for name, dw in zip(("conv", "dense"), exact):
        update = updates[name]
        spent[name] = (update.target_sigma / float(np.sqrt(np.mean(np.square(dw))))) ** 2
        assert update.predicted_sigma == pytest.approx(update.target_sigma, rel=1e-4)
    assert np.mean(list(spent.values())) == pytest.approx(0.2**2, rel=0.04)
    nonzero = {name: elements_of_input(model, name, x) for name in spent}
    assert spent["conv"] / spent["dense"] == pytest.approx(nonzero["conv"] / nonzero["dense"], rel=0.05)


def elements_of_input(model, name, x):
    """Values other than zero of what a layer reads."""
    return np.count_nonzero(keras.Model(model.inputs, model.get_layer(name).input)(x))


def test_bounds_do_not_depend_on_the_loss_scale():
    found = []
    for scale in (None, 2.0**12):
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
        if scale is not None:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=scale)
        callback = ct.AdaptiveErrorBound(interval=2, warmup=0)
        fit(network(optimizer), callback, steps=3)
        found.append([update.bound for update in callback.updates])
    assert len(found[0]) == 4
    assert found[0] == pytest.approx(found[1], rel=0.01)


def test_an_overflow_is_no_statistics():
    """Scaled by 2^127 every gradient is infinite, and the optimizer skips the step."""
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05), initial_scale=2.0**127)
    callback = ct.AdaptiveErrorBound(interval=1, warmup=0)
    fit(network(optimizer), callback, steps=1)
    assert callback.updates == []


def test_a_layer_frozen_later_is_left_alone():
    model = network(keras.optimizers.Adam())
    callback = ct.AdaptiveErrorBound(interval=1, warmup=0)
    fit(model, callback, steps=1)
    model.get_layer("conv").trainable = False
    compiled(model, keras.optimizers.Adam())
    fit(model, callback, steps=1)
    assert list(by_layer(callback.updates)) == ["dense"]


def test_limits_hold():
    for target_tolerance, expected in ((1e-9, 0.03), (1e9, 0.2)):
        callback = ct.AdaptiveErrorBound(interval=2, warmup=0, tolerance=target_tolerance, limits=(0.03, 0.2))
        fit(network(keras.optimizers.Adam()), callback, steps=4)
        assert [u.bound_over_sigma for u in callback.updates] == pytest.approx([expected] * 4, rel=0.02)


def test_training_begins_anew_each_time():
    model = network(keras.optimizers.Adam())
    callback = ct.AdaptiveErrorBound(interval=4, warmup=2)
    fit(model, callback)
    first = len(callback.updates)
    fit(model, ct.AdaptiveErrorBound(interval=100, warmup=100), steps=2)
    for site in instrumentation(model).sites().values():
        state = site.read_state()
        assert state.bound_set == 0.0
        assert state.bound_used == pytest.approx(site.relative_bound * state.running_sigma, rel=0.2)
    fit(model, callback)
    assert len(callback.updates) == first
    assert [u.step for u in callback.updates] == [3, 3, 7, 7]


def test_a_shared_tensor_gets_the_tightest_bound_its_readers_want():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((16, 16, 3))
    x = layers.Conv2D(8, 3, activation="relu")(inputs)
    small = layers.Conv2D(8, 1, name="small")(x)
    large = 1000.0 * layers.Conv2D(8, 3, padding="same", name="large")(x)
    outputs = layers.Dense(10)(layers.GlobalAveragePooling2D()(layers.Add()([small, large])))
    model = compiled(keras.Model(inputs, outputs), keras.optimizers.SGD(1e-6))
    ct.compress_model(model)
    callback = ct.AdaptiveErrorBound(warmup=0, target="gradient", limits=(1e-6, 1e6), smoothing=0.0)
    fit(model, callback, steps=1)
    updates = by_layer(callback.updates)
    assert updates["small"].bound == updates["large"].bound
    reached = {name: u.predicted_sigma / u.target_sigma for name, u in updates.items()}
    assert max(reached.values()) == pytest.approx(1.0, rel=1e-3)


def test_history_has_the_mean_bound():
    history = fit(network(keras.optimizers.Adam()), ct.AdaptiveErrorBound(interval=4, warmup=0), epochs=2)
    assert len(history.history["bound_over_sigma"]) == 2


@pytest.mark.parametrize(
    "argument, value",
    [
        ("target", "loss"),
        ("interval", 0),
        ("interval", 1.5),
        ("warmup", -1),
        ("tolerance", 0.0),
        ("tolerance", float("nan")),
        ("smoothing", 1.0),
        ("limits", (0.5, 0.1)),
        ("limits", (0.0, 0.1)),
        ("limits", 0.5),
        ("limits", ("0.1", "0.5")),
    ],
)
def test_bad_arguments(argument, value):
    with pytest.raises(ValueError, match=f"`{argument}`.*Received"):
        ct.AdaptiveErrorBound(**{argument: value})


def test_the_model_must_be_compressed():
    model = compiled(keras.Sequential([keras.Input((16, 16, 3)), layers.Flatten(), layers.Dense(10)]))
    with pytest.raises(ValueError, match="compress_model"):
        fit(model, ct.AdaptiveErrorBound())


MIRRORED = """
    import keras
    import numpy as np
    import tensorflow as tf
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    import tf_comptrain as ct
    from models import compiled, images

    x, y = images(64)
    found = []
    for strategy in (tf.distribute.get_strategy(), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])):
        with strategy.scope():
            keras.utils.set_random_seed(0)
            convolutions = [keras.layers.Conv2D(8, 3, strides=2, activation="relu") for _ in range(2)]
            model = keras.Sequential([keras.Input((16, 16, 3)), *convolutions, keras.layers.Flatten(),
                                      keras.layers.Dense(10)])
            compiled(model)
        ct.compress_model(model)
        data = ct.elastic_batch(tf.data.Dataset.from_tensor_slices((x, y)), 32)
        callback = ct.AdaptiveErrorBound(warmup=0, interval=2, smoothing=0.0, limits=(1e-6, 1e6))
        model.fit(data, epochs=1, verbose=0, callbacks=[callback])
        data.elastic.resize(16)
        model.fit(data, epochs=1, verbose=0)
        assert int(keras.ops.convert_to_numpy(model.optimizer.iterations)) == 2 + 4
        found.append([update.bound for update in callback.updates])
    assert len(found[0]) == 2
    np.testing.assert_allclose(found[0], found[1], rtol=0.35)
"""


@pytest.mark.long
def test_mirrored_strategy_finds_nearly_the_same_bounds():
    """Two replicas on two logical devices. The gradient of a replica is not that of the batch: not equal."""
    tests = Path(__file__).parent.parent
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MIRRORED)], cwd=tests, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr[-3000:]


def batch_norm_network():
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            layers.Conv2D(8, 3, strides=2, activation="relu", name="stem"),
            layers.Conv2D(8, 3, use_bias=False, name="conv"),
            layers.BatchNormalization(name="bn"),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dense(10, name="dense"),
        ]
    )
    ct.compress_model(compiled(model))
    return model


def test_a_batch_normalization_is_steered_by_its_gamma():
    """Nothing learns, and the check is on the batch trained on: the error it predicts is the one wanted."""
    model = compiled(batch_norm_network(), keras.optimizers.SGD(0.0))
    callback = ct.AdaptiveErrorBound(warmup=0, smoothing=0.0, limits=(1e-6, 1e6), check_data=images(16))
    fit(model, callback, steps=1)
    update = by_layer(callback.updates)["bn"]
    check = next(check for _, check in callback.checks if check.gradient == "gamma")
    assert check.bound == pytest.approx(update.bound, rel=1e-5)
    assert check.predicted_sigma == pytest.approx(update.target_sigma, rel=0.02)


def test_a_stream_that_convolutions_are_rebuilt_from_keeps_its_bound():
    keras.utils.set_random_seed(3)
    inputs = keras.Input((16, 16, 3))
    x = layers.Conv2D(8, 3, activation="relu", name="stem")(inputs)
    x = layers.BatchNormalization(name="bn")(layers.Conv2D(8, 3, name="first")(x))
    x = layers.Conv2D(8, 3, strides=2, name="second")(layers.ReLU()(x))
    model = compiled(keras.Model(inputs, layers.Dense(10)(layers.Flatten()(x))))
    ct.compress_model(model, storage="rebuild")
    callback = ct.AdaptiveErrorBound(warmup=0, smoothing=0.0, limits=(1e-6, 1e6), tolerance=1e3)
    fit(model, callback, steps=1)
    bounds = {name: update.bound_over_sigma for name, update in by_layer(callback.updates).items()}
    assert bounds["first"] > 1 and bounds["bn"] == pytest.approx(0.25, rel=0.01)


def states(model):
    """Of the held tensors, in order: those too that wait for the step to be traced."""
    return list(instrumentation(model).held.table.values().values())


class Stop(keras.callbacks.Callback):
    """Ends the process's part of a training at the start of an epoch, as a kill would."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            raise InterruptedError


@pytest.mark.long
def test_goes_on_with_backup_and_restore(tmp_path):
    """An interrupted training collects at the same steps, and finds nearly the bounds, of a whole one."""

    def callbacks():
        bounds = ct.AdaptiveErrorBound(interval=3, warmup=2, backup_dir=tmp_path / "bounds")
        return bounds, [keras.callbacks.BackupAndRestore(str(tmp_path / "keras"))]

    whole = ct.AdaptiveErrorBound(interval=3, warmup=2)
    fit(batch_norm_network(), whole, epochs=3)
    first, more = callbacks()
    with pytest.raises(InterruptedError):
        fit(batch_norm_network(), first, epochs=3, more=[*more, Stop(2)])
    second, more = callbacks()
    fit(batch_norm_network(), second, epochs=3, more=more)
    found = [*first.updates, *second.updates]
    assert [u.step for u in found] == [u.step for u in whole.updates]
    assert [u.bound for u in found] == pytest.approx([u.bound for u in whole.updates], rel=0.05)
    assert not list((tmp_path / "bounds").iterdir())  # a finished training leaves nothing to go on from


def test_state_in_a_checkpoint(tmp_path):
    model, callback = batch_norm_network(), ct.AdaptiveErrorBound(interval=100, warmup=2)
    checkpoint = tf.train.Checkpoint(bounds=callback.state)
    checkpoint.restore(checkpoint.save(str(tmp_path / "untrained")))
    assert callback.state.restored is None
    fit(model, callback)
    path = checkpoint.save(str(tmp_path / "ckpt"))
    other, again = batch_norm_network(), ct.AdaptiveErrorBound(interval=100, warmup=2)
    tf.train.Checkpoint(bounds=again.state).restore(path).assert_consumed()
    seen = []
    look = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs=None: seen.append(states(other))
    )
    fit(other, again, steps=1, more=[look])
    assert seen[0] == states(model)
    assert again.updates == []  # the next collecting step is not before step 102
    fit(other, again, steps=1, more=[look])
    assert len(seen[1]) == 3 and not any(row[0] for row in seen[1])  # begun anew, with no state restored


def wrapped(*sizes):
    parts = [ct.Compress(layers.Dense(size, name=f"dense{size}")) for size in sizes]
    return compiled(keras.Sequential([keras.Input((16, 16, 3)), layers.Flatten(), *parts]))


def test_a_state_of_another_model(tmp_path):
    first = ct.AdaptiveErrorBound(backup_dir=tmp_path)
    with pytest.raises(InterruptedError):
        fit(wrapped(96, 10), first, epochs=2, more=[Stop(1)])
    with pytest.raises(ValueError, match="of another model: 'dense96/input' there, 'dense80/input' here"):
        fit(wrapped(80, 10), ct.AdaptiveErrorBound(backup_dir=tmp_path))


def two_layers(first):
    parts = [
        layers.Conv2D(8, 3, name=first),
        layers.Conv2D(10, 3, name="second"),
        layers.GlobalMaxPooling2D(),
    ]
    model = compiled(keras.Sequential([keras.Input((16, 16, 3)), *parts]))
    ct.compress_model(model)
    return model


@pytest.mark.parametrize("argument", ["backup_dir", "state"])
def test_a_state_of_another_model_without_wrappers(tmp_path, argument):
    """It is refused before anything is changed, and each time."""
    first = ct.AdaptiveErrorBound(warmup=0, backup_dir=tmp_path / "bounds")
    with pytest.raises(InterruptedError):
        fit(two_layers("first"), first, epochs=2, more=[Stop(1)])
    other = two_layers("another")
    fit(other, ct.AdaptiveErrorBound(warmup=0))
    again = ct.AdaptiveErrorBound(backup_dir=tmp_path / "bounds" if argument == "backup_dir" else None)
    if argument == "state":
        again.state.deserialize(first.state.serialize())
    before = instrumentation(other).bases(), states(other), [w.numpy() for w in other.weights]
    for _ in range(2):
        with pytest.raises(
            ValueError, match=f"`{argument}` must be .*/first/bias.*' there, .*/another/bias.*' here"
        ):
            fit(other, again)
    after = instrumentation(other).bases(), states(other), [w.numpy() for w in other.weights]
    assert before[:2] == after[:2] and before[0]
    assert all(map(np.array_equal, before[2], after[2]))


def test_a_state_of_the_same_model_built_again():
    """As in a notebook, where Keras numbers the layers of the second one, and so what it traces."""

    def handle():
        parts = [layers.Conv2D(8, 3), layers.BatchNormalization(), ct.Compress(layers.Dense(10))]
        model = compiled(keras.Sequential([keras.Input((16, 16, 3)), *parts, layers.GlobalMaxPooling2D()]))
        ct.compress_model(model)
        callback = ct.AdaptiveErrorBound(warmup=0)
        fit(model, callback, steps=1)
        return instrumentation(model), callback.updates[0].layer

    (first, name), (second, again) = handle(), handle()
    assert name != again and first.own_sites().keys() != second.own_sites().keys()
    state = BoundsState(9, 12, {name: 0.5}, {"gone": 2.0}, *codec_states(first))
    assert for_model(state, second).sites.keys() == second.own_sites().keys()
    assert for_names(state.wanted, [again]) == {again: 0.5}
    assert for_names(state.correction, [again]) == state.correction


def test_checks_correct_the_bounds_and_are_logged(tmp_path):
    x, y = images(32)
    callback = ct.AdaptiveErrorBound(
        interval=3, warmup=1, smoothing=0.0, check_data=(x, y), log_dir=tmp_path, limits=(1e-6, 1e6)
    )
    history = fit(batch_norm_network(), callback, epochs=2)
    conv = by_layer(callback.updates)["conv"].layer
    steps = [u.step for u in callback.updates if u.layer == conv]
    assert [step for step, check in callback.checks if check.layer == conv] == steps
    measured = {(*by_layer([check]), check.gradient) for _, check in callback.checks}
    assert measured == {("conv", "kernel"), ("dense", "kernel"), ("bn", "gamma"), ("bn", "input")}
    assert all(check.compression > 1 and check.measured_sigma > 0 for _, check in callback.checks)
    assert sum(history.history["error_bounds"], ()) == tuple(callback.updates)
    assert len(history.history["error_bounds"]) == 2
    reached = [u.predicted_sigma / u.target_sigma for u in callback.updates]
    assert reached == pytest.approx([1.0] * len(reached), rel=1e-3)
    tags = set()
    for file in tmp_path.glob("events*"):
        for event in tf.compat.v1.train.summary_iterator(str(file)):
            tags |= {value.tag for value in event.summary.value}
    bn = by_layer(callback.updates)["bn"].layer
    wanted = {f"{conv}/{what}" for what in ("bound", "compression", "overflows", "check_measured_sigma")}
    assert {*wanted, f"{bn}/gamma/check_measured_sigma"} <= tags


def test_an_overflow_is_counted():
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05), initial_scale=2.0**127)
    callback = ct.AdaptiveErrorBound(interval=1, warmup=0)
    fit(network(optimizer), callback, steps=1)
    assert list(callback.skipped.values()) == [1, 1]


def test_the_law_holds_at_bounds_of_four_sigma():
    """Rounding follows the data there; dither, which what a step holds always has, makes it independent of them."""
    model = batch_norm_network()
    callback = ct.AdaptiveErrorBound(warmup=1, smoothing=0.0, limits=(4.0, 4.0), check_data=images(64))
    fit(model, callback, steps=2)
    assert all(site.codec.dither for site in instrumentation(model).sites().values())
    checks = by_layer(check for _, check in callback.checks if check.gradient == "kernel")
    assert {name: check.holds for name, check in checks.items()} == {"conv": True, "dense": True}, checks


@pytest.mark.long(but=["mixed_float16-*"])
@pytest.mark.parametrize(
    "policy, options, target",
    [
        ("float32", {"gradient_accumulation_steps": 2}, "momentum"),
        ("mixed_bfloat16", {}, "momentum"),
        ("mixed_float16", {}, "gradient"),
    ],
)
def test_precision_and_accumulation_leave_the_bounds_as_they_are(policy, options, target):
    """Against plain float32 training with a learning rate that changes nothing."""
    found = []
    for policy_now, options_now in (("float32", {}), (policy, options)):
        keras.config.set_dtype_policy(policy_now)
        try:
            model = network(keras.optimizers.Adam(1e-9, **options_now))
        finally:
            keras.config.set_dtype_policy("float32")
        callback = ct.AdaptiveErrorBound(
            target=target, interval=4, warmup=3, smoothing=0.0, limits=(1e-6, 1e6)
        )
        fit(model, callback)
        found.append([update.bound for update in callback.updates])
    assert len(found[0]) == 4
    # Accumulated, Adam's first moment has seen half as many gradients, each the mean of two.
    rough = target == "momentum" and bool(options)
    assert found[1] == pytest.approx(found[0], rel=0.7 if rough else 0.1)
