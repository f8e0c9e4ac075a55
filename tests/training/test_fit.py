"""ct.fit: training through steps that run out of memory, and through being killed."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from models import compiled
from tensorflow import keras
from tensorflow.python.framework import config

import tf_comptrain as ct
from tf_comptrain import _keras
from tf_comptrain.compression.instrumentation import instrumentation
from tf_comptrain.training import snapshot

layers = keras.layers
BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "models" / "resilience.py"
SAMPLES, BATCH = 44, 8  # 6 steps an epoch, the last one of 4 samples


class Fault(layers.Layer):
    """Passes its input through; runs out of memory at the n-th call of that direction, once."""

    def __init__(self, direction="", at=0, **kwargs):
        super().__init__(**kwargs)
        self.direction, self.left = direction, at

    def kernel(self, direction):
        def run(x):
            if direction == self.direction:
                self.left -= 1
                if self.left == 0:
                    raise MemoryError("Out of memory, injected")
            return x

        def op(x):
            y = tf.numpy_function(run, [x], x.dtype)
            y.set_shape(x.shape)
            return y

        return op

    def call(self, x):
        @tf.custom_gradient
        def through(x):
            return self.kernel("forward")(x), self.kernel("backward")

        return through(x)


def data(count=SAMPLES):
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, 8, 8, 3)).astype("float32"), rng.integers(0, 10, count)


def network(first=(), last=(), faults=True, compress=False, **kwargs):
    """Args of `Fault` behind the first and the last layer. Names are those of a new process."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(name="network")
    model.add(keras.Input((8, 8, 3)))
    model.add(layers.Conv2D(8, 3, padding="same", activation="relu", name="conv1"))
    if faults:
        model.add(Fault(*first, name="first"))
    model.add(layers.Conv2D(8, 3, name="conv2"))
    model.add(layers.BatchNormalization(name="norm"))
    model.add(layers.Dropout(0.2, name="dropout"))
    model.add(layers.Flatten(name="flatten"))
    model.add(layers.Dense(10, name="dense"))
    if faults:
        model.add(Fault(*last, name="last"))
    if compress:
        ct.compress_model(model)
    return compiled(model, optimizer="adam", metrics=["accuracy"], **kwargs)


def fit(model, *args, **kwargs):
    settings = {"batch_size": BATCH, "epochs": 2, "snapshot_every": 2, "verbose": 0}
    return ct.fit(model, *(args or data()), **{**settings, **kwargs})


def events(history):
    return [event for epoch in history.history["events"] for event in epoch]


def equal(model, other):
    """All variables: weights, slots, iterations, seeds, metrics, bounds."""
    pairs = zip(snapshot.state_variables(model), snapshot.state_variables(other))
    return all(np.array_equal(a.numpy(), b.numpy()) for a, b in pairs)


@pytest.fixture(autouse=True, scope="module")
def determinism():
    tf.config.experimental.enable_op_determinism()
    yield
    config.disable_op_determinism()


@pytest.fixture(scope="module")
def undisturbed():
    model = network()
    return model, fit(model)


@pytest.fixture(scope="module")
def without_faults():
    """The same without what injects faults."""
    model = network(faults=False)
    return model, fit(model)


def test_trains_like_model_fit(capsys):
    ours, theirs = network(faults=False), network(faults=False)
    validation = data(20)
    history = fit(ours, shuffle=False, verbose=1, validation_data=validation)
    assert "6/6" in capsys.readouterr().out
    expected = theirs.fit(
        *data(), batch_size=BATCH, epochs=2, shuffle=False, verbose=0, validation_data=validation
    )
    assert equal(ours, theirs)
    assert history.history.pop("events") == [(), ()]
    assert history.history == expected.history and history.epoch == [0, 1]


@pytest.mark.long(but=["first-forward", "last-backward"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("point", ["first", "last"])
def test_replays_to_the_same_weights(undisturbed, direction, point):
    """In step 4 of the first epoch, and so after the snapshot at step 2."""
    model = network(**{point: (direction, 4)})
    history = fit(model, retries=1)
    (event,) = events(history)
    assert (event.epoch, event.step, event.back_to) == (0, 3, 2)
    assert event.batch == event.new_batch == BATCH and "Out of memory, injected" in event.reason
    assert equal(model, undisturbed[0])
    assert history.history["loss"] == undisturbed[1].history["loss"]


def test_lowers_the_batch_and_sees_every_sample_once(capsys):
    seen = []

    def note(i, x):
        seen.append(int(i))
        return x

    samples = tf.data.Dataset.from_tensor_slices((np.arange(SAMPLES), *data()))

    def noted(i, x, y):
        return tf.ensure_shape(tf.numpy_function(note, [i, x], x.dtype), (8, 8, 3)), y

    steps = []
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(batch))
    model = network(first=("backward", 5))
    history = fit(model, samples.map(noted), epochs=1, verbose=2, callbacks=[count], shuffle=False)
    (event,) = events(history)
    assert (event.step, event.back_to, event.batch, event.new_batch) == (4, 4, BATCH, BATCH // 2)
    assert steps == list(range(4 + 3))
    assert seen[-3 * 4 :] == list(range(32, SAMPLES))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("ct.fit")]
    assert lines == [
        "ct.fit, epoch 1, step 4: out of memory, batch 8 -> 4, back to step 4: "
        "MemoryError: Out of memory, injected"
    ]


def test_raises_at_the_smallest_batch_with_the_state_of_the_snapshot():
    model = network(first=("backward", 1))
    before = model.get_weights()
    with pytest.raises(tf.errors.ResourceExhaustedError, match="`min_batch` is 8"):
        fit(model, min_batch=BATCH)
    assert all(np.array_equal(a, b) for a, b in zip(model.get_weights(), before))


def test_no_variable_is_read_before_it_is_restored(undisturbed):
    """A failed step that leaves nothing but NaN, twice: the snapshot itself stays untouched."""
    left = [1, 1]

    class Ruin(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 3 and left:
                left.pop()
                for variable in snapshot.state_variables(self.model):
                    if tf.as_dtype(variable.dtype).is_floating:
                        variable.assign(np.full(variable.shape, np.nan))
                raise tf.errors.ResourceExhaustedError(None, None, "Out of memory, injected")

    model = network()
    history = fit(model, retries=2, callbacks=[Ruin()])
    assert len(events(history)) == 2 and equal(model, undisturbed[0])


def test_bounds_and_callbacks_are_part_of_the_state():
    runs = []
    for fault in ((), ("backward", 9)):
        model = network(first=fault, compress=True)
        bounds = ct.AdaptiveErrorBound(interval=2, warmup=1)
        stop = keras.callbacks.EarlyStopping("loss", patience=5)
        history = fit(model, retries=1, snapshot_every=3, callbacks=[bounds, stop])
        runs.append((model, bounds.updates, events(history)))
    (plain, expected, none), (model, updates, found) = runs
    assert not none and len(found) == 1
    assert updates == expected and len(updates) > 4
    assert any(site.read_state().bound_set > 0 for site in instrumentation(model).sites().values())
    assert equal(model, plain)


def test_adaptive_batch_size_steers_and_learns_of_failures():
    tuner = ct.AdaptiveBatchSize(limit_bytes=10**10, max_batch=32, min_batch=2, verbose=0)
    model = network(first=("backward", 3), compress=True)
    fit(model, epochs=3, callbacks=[tuner])
    first = tuner.decisions[0]
    assert (first.action, first.batch, first.epoch) == ("lower", 4, 0)
    assert first.reason.startswith("out of memory") and first.learning_rate == pytest.approx(0.0005)
    assert all(decision.batch < BATCH for decision in tuner.decisions)
    model = network(compress=True)
    tuner = ct.AdaptiveBatchSize(limit_bytes=10**10, max_batch=32, verbose=0)
    history = fit(model, epochs=3, callbacks=[tuner])
    assert history.history["batch_size"][-1] > BATCH


class Resize(keras.callbacks.Callback):
    """Sets a batch size after the second step of an epoch."""

    def on_train_begin(self, logs=None):
        self.elastic, self.batches = _keras.fitted_dataset().elastic, []

    def on_train_batch_begin(self, batch, logs=None):
        self.batches.append(self.elastic.size)

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            self.elastic.resize(4)


def test_a_callback_may_resize_the_batch_within_an_epoch():
    model, resize = network(faults=False), Resize()
    fit(model, epochs=1, callbacks=[resize])
    assert resize.batches == [BATCH] * 2 + [4] * 7  # 44 samples, each once
    assert int(model.optimizer.iterations) == 9


def test_a_memory_limit_lowers_the_batch():
    model = network(faults=False)
    x, y = data(512)
    with tf.device("CPU:0"):
        fit(model, x[:32], y[:32], epochs=1)  # what rests
    in_use = tf.config.experimental.get_memory_info("CPU:0")["current"]
    with ct.memory.limit(in_use + 2_000_000):
        history = fit(model, x, y, batch_size=512, epochs=1)
    found = events(history)
    assert found and found[0].batch == 512 and found[-1].new_batch < 512
    assert np.isfinite(history.history["loss"][0])


@pytest.mark.parametrize("compress", [False, True])
def test_out_of_memory_names_what_is_held_most_and_a_remedy(compress):
    inputs = keras.Input((8,))
    wide = keras.layers.Dense(4000, activation="tanh", name="wide")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(4, name="narrow")(wide))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    if compress:
        ct.compress_model(model)
    x, y = np.random.default_rng(0).normal(size=(64, 8)).astype("float32"), np.zeros(64, int)
    in_use = tf.config.experimental.get_memory_info("CPU:0")["current"]
    with ct.memory.limit(in_use + 200_000), pytest.raises(tf.errors.ResourceExhaustedError) as caught:
        ct.fit(model, x, y, batch_size=64, min_batch=64, epochs=1, retries=0)
    held = re.search(
        r"A step of 64 samples holds about .* most of it of wide \((.*?)\)", caught.value.message
    )
    assert held, caught.value.message
    assert ("1.0" in held[1]) != compress  # 64 x 4,000 values of four bytes
    assert ("`compress_model(model, memory=...)`" in caught.value.message) == compress


class Stop(Exception):
    pass


def stopper(at):
    """Ends the process' training at a step, as a kill would."""

    def stop(batch, logs):
        stop.left -= 1
        if stop.left == 0:
            raise Stop

    stop.left = at
    return keras.callbacks.LambdaCallback(on_train_batch_end=stop)


@pytest.mark.long(but=["arrays-4"])
@pytest.mark.parametrize("form, at", [("arrays", 4), ("arrays", 6), ("dataset", 9), ("function", 9)])
def test_goes_on_from_disk(tmp_path, form, at, without_faults):
    samples = tf.data.Dataset.from_tensor_slices(data())
    forms = {
        "arrays": data(),
        "dataset": (samples,),
        "function": (lambda epoch: samples.shuffle(20, seed=epoch, reshuffle_each_iteration=False),),
    }
    plain, expected = without_faults
    if form != "arrays":
        plain = network(faults=False)
        expected = fit(plain, *forms[form])
    model = network(faults=False)
    with pytest.raises(Stop):
        fit(model, *forms[form], checkpoint_dir=tmp_path, callbacks=[stopper(at)])
    model = network(faults=False)
    history = fit(model, *forms[form], checkpoint_dir=tmp_path)
    assert equal(model, plain)
    assert [e.kind for e in events(history)] == ["resumed"]
    assert history.history["loss"] == expected.history["loss"] and history.epoch == [0, 1]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["training.ckpt", "training.lock"]


def test_a_finished_training_is_not_repeated_but_can_be_prolonged(tmp_path, capsys, without_faults):
    first, again, longer = (network(faults=False) for _ in range(3))
    fit(first, epochs=1, checkpoint_dir=tmp_path)
    assert fit(again, epochs=1, checkpoint_dir=tmp_path, verbose=2).epoch == [0] and equal(again, first)
    assert (
        f"nothing to do, the training in {tmp_path} is complete, after epoch 1 of 1"
        in capsys.readouterr().out
    )
    assert fit(longer, checkpoint_dir=tmp_path).epoch == [0, 1]
    assert equal(longer, without_faults[0])


class Stops(keras.callbacks.Callback):
    """Is interrupted after `limit` steps; `seen` counts them."""

    def __init__(self, limit):
        super().__init__()
        self.limit, self.seen = limit, 0

    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        if self.seen == self.limit:
            raise KeyboardInterrupt


def test_a_restart_takes_new_arguments_and_keeps_what_training_changed(tmp_path, capsys):
    with pytest.raises(KeyboardInterrupt):
        fit(network(faults=False), callbacks=[Stops(9)], checkpoint_dir=tmp_path)
    stops = Stops(99)
    history = fit(
        network(faults=False), callbacks=[stops], checkpoint_dir=tmp_path, batch_size=4, epochs=3, verbose=2
    )
    (event,) = events(history)
    assert (event.kind, event.epoch, event.step, event.new_batch) == ("resumed", 1, 2, 4)
    assert stops.limit == 99 and stops.seen == 8 + 7 + 11  # 28 samples were left of epoch 2, in batches of 4
    assert "Epoch 3/3" in capsys.readouterr().out


def test_a_restart_goes_on_with_the_batch_that_memory_or_a_callback_set(tmp_path):
    fit(network(first=("forward", 4)), epochs=1, checkpoint_dir=tmp_path / "memory")
    history = fit(network(), epochs=2, batch_size=6, checkpoint_dir=tmp_path / "memory")
    assert [(event.kind, event.new_batch) for event in events(history)] == [
        ("out of memory", 4),
        ("resumed", 4),
    ]
    limits = {"limit_bytes": 4_000_000_000, "verbose": 0}
    with pytest.raises(KeyboardInterrupt):
        first = [ct.AdaptiveBatchSize(**limits), Stops(3)]
        fit(network(compress=True), callbacks=first, checkpoint_dir=tmp_path / "callback")
    tuner = ct.AdaptiveBatchSize(**{**limits, "limit_bytes": 3_000_000_000})
    fit(
        network(compress=True),
        callbacks=[tuner],
        checkpoint_dir=tmp_path / "callback",
        batch_size=4,
        epochs=1,
    )
    assert tuner.model.history.history["batch_size"] == [BATCH]
    assert tuner._policy.limit_bytes == 3_000_000_000


def test_a_larger_max_batch_counts_at_a_restart(tmp_path):
    batches = []
    for epochs, max_batch in ((2, 10), (4, 20)):
        tuner = ct.AdaptiveBatchSize("10GB", max_batch=max_batch, hold=1, verbose=0)
        fit(network(compress=True), callbacks=[tuner], checkpoint_dir=tmp_path, epochs=epochs)
        batches.append(tuner.model.history.history["batch_size"])
    assert batches[0] == [BATCH, 10] and batches[1][-1] == 20


def test_a_torn_write_leaves_the_last_complete_checkpoint(tmp_path, without_faults):
    with pytest.raises(Stop):
        fit(network(faults=False), checkpoint_dir=tmp_path, callbacks=[stopper(5)])
    (tmp_path / "training.ckpt.tmp").write_bytes(b"half")
    model = network(faults=False)
    fit(model, checkpoint_dir=tmp_path)
    assert equal(model, without_faults[0])


@pytest.mark.long
@pytest.mark.parametrize("mode", ["executor", "xla"])
def test_killed_processes_and_failed_steps(mode):
    """SIGKILL at random moments, out of memory at random ops; the benchmark is the same at 20."""
    command = [sys.executable, BENCHMARK, "--kills", "2", "--ooms", "1", "--epochs", "6", "--modes", mode]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


MIRRORED = """
    import numpy as np
    import tensorflow as tf
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    from test_fit import ct, data, equal, events, fit, network

    tf.config.experimental.enable_op_determinism()
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    alone = network(faults=False, compress=True)
    expected = fit(alone, shuffle=False).history["loss"]
    runs = []
    for fault in ((), ("backward", 17)):  # called by both replicas: in step 9
        with strategy.scope():
            model = network(first=fault, compress=True)
        bounds = ct.AdaptiveErrorBound(interval=2, warmup=1)
        runs.append((model, fit(model, retries=1, shuffle=False, callbacks=[bounds]), bounds.updates))
    (plain, history, updates), (model, replayed, same) = runs
    np.testing.assert_allclose(history.history["loss"], expected, rtol=0.1)
    assert [event.back_to for event in events(replayed)] == [2], events(replayed)
    assert equal(model, plain) and updates == same and len(updates) > 4

    with strategy.scope():
        model = network(first=("forward", 3), compress=True)
    history = fit(model, *data(33), epochs=1, checkpoint_dir=FOLDER)  # one sample is left in the end
    assert [event.new_batch for event in events(history)] == [4]
    assert int(model.optimizer.iterations.numpy()) == 8 and np.isfinite(history.history["loss"]).all()
    assert all(np.isfinite(w).all() for w in model.get_weights())
    with strategy.scope():
        again = network(compress=True)
    fit(again, *data(33), epochs=1, checkpoint_dir=FOLDER)
    assert equal(again, model)
    for bad, message in (({"batch_size": 1}, "number of replicas, 2"),):
        try:
            fit(again, **bad)
        except ValueError as error:
            assert message in str(error)
        else:
            raise AssertionError(message)
"""


@pytest.mark.long
def test_mirrored_strategy(tmp_path):
    """Two replicas on two logical devices: replayed and restored to the same values, of each replica."""
    code = textwrap.dedent(MIRRORED).replace("FOLDER", repr(str(tmp_path)))
    here = Path(__file__).resolve().parent
    path = [str(here), str(here.parent), os.environ.get("PYTHONPATH", "")]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, path)))
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_strategies_of_several_processes_are_refused():
    class Workers:
        num_replicas_in_sync = 4

    model = network(faults=False)
    model._distribute_strategy = Workers()
    with pytest.raises(ValueError, match="in one process.*Workers: .* ct.distribute.fit"):
        fit(model)


def samples(count=SAMPLES):
    return tf.data.Dataset.from_tensor_slices(data(count))


@pytest.mark.parametrize(
    "arguments, kwargs, message",
    [
        ((samples().batch(4),), {}, "batched already"),
        ((ct.elastic_batch(samples(), 4),), {}, "batched already"),
        ((samples().repeat(),), {}, "infinite length"),
        ((samples().filter(lambda x, y: True),), {}, "unknown length"),
        ((samples().shuffle(9),), {}, "reorders at each iteration"),
        ((samples(), 1), {}, "`y` and `sample_weight` must be left out"),
        ((), {"min_batch": 9}, "`min_batch` must be at most `batch_size`"),
        ((), {"batch_size": 0}, "`batch_size` must be an integer of at least 1"),
        ((), {"snapshot_every": 0}, "`snapshot_every` must be an integer of at least 1"),
        ((), {"retries": -1}, "`retries` must be an integer of at least 0"),
        ((), {"seed": -1}, "`seed` must be an integer of at least 0"),
        ((), {"shuffle": -1}, "`shuffle` must be an integer of at least 0. Or pass True or False"),
        ((data()[0], data(3)[1]), {}, "same number of samples"),
    ],
)
def test_errors_before_training(arguments, kwargs, message):
    model = network(faults=False)
    with pytest.raises(ValueError, match=message):
        fit(model, *arguments, **kwargs)
    assert int(model.optimizer.iterations.numpy()) == 0


@pytest.mark.parametrize("x", [iter([1]), 3, [[1.0, 2.0], [3.0, 4.0]]], ids=["generator", "number", "list"])
def test_what_is_no_array(x):
    with pytest.raises(TypeError, match="must be arrays of samples.*For generators"):
        fit(network(faults=False), x, np.zeros(2))


def test_errors_about_checkpoints(tmp_path):
    fit(network(faults=False), epochs=1, checkpoint_dir=tmp_path)
    other = keras.Sequential([keras.Input((8, 8, 3)), layers.Flatten(), layers.Dense(10)])
    with pytest.raises(ValueError, match="another model"):
        fit(compiled(other), checkpoint_dir=tmp_path)
    with pytest.raises(ValueError, match="compressed: False there, True here"):
        fit(network(faults=False, compress=True), checkpoint_dir=tmp_path)
    fit(network(faults=False, compress=True), epochs=1, checkpoint_dir=tmp_path / "compressed")
    renamed = network(faults=False)
    renamed.layers[0].name = "stem"
    other = keras.models.clone_model(renamed)
    ct.compress_model(other)
    with pytest.raises(ValueError, match="weights: 'network/conv1/bias: .*' there, 'network/"):
        fit(compiled(other, optimizer="adam", metrics=["accuracy"]), checkpoint_dir=tmp_path / "compressed")
    with pytest.raises(ValueError, match="other data: samples is 44 there, 40 here"):
        fit(network(faults=False), *data(40), checkpoint_dir=tmp_path)
    with pytest.raises(ValueError, match="other data: seed"):
        fit(network(faults=False), seed=1, checkpoint_dir=tmp_path)
    (tmp_path / "training.ckpt").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="is not a checkpoint of ct.fit"):
        fit(network(faults=False), checkpoint_dir=tmp_path)
