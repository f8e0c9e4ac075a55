"""ct.fit's restart with every callback of Keras that holds state: as if there had been none."""

import contextlib
import csv

import numpy as np
import pytest
import tensorflow as tf
from models import compiled
from tensorflow import keras
from tensorflow.python.framework import config

import tf_comptrain as ct
from tf_comptrain.training import snapshot

callbacks = keras.callbacks
EPOCHS, STEPS = 4, 3
IN_EPOCH_2 = {"step": STEPS + 2}


@pytest.fixture(autouse=True, scope="module")
def determinism():
    tf.config.experimental.enable_op_determinism()
    yield
    config.disable_op_determinism()


class Killed(BaseException):
    pass


class Kill(callbacks.Callback):
    """Ends a training at its n-th step, or after its n-th epoch, as SIGKILL would."""

    def __init__(self, step=0, epoch=0):
        super().__init__()
        # Iterators are no state for ct.fit: they count in this process only.
        self.steps, self.epochs = iter(range(1, step)), iter(range(1, epoch))
        self.at_step, self.at_epoch = step > 0, epoch > 0

    def on_train_batch_end(self, batch, logs=None):
        if self.at_step and next(self.steps, None) is None:
            raise Killed

    def on_epoch_end(self, epoch, logs=None):
        if self.at_epoch and next(self.epochs, None) is None:
            raise Killed


def halved(epoch, rate):
    return rate / 2 if epoch == 2 else rate


def network(ema):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(16, activation="relu", name="first")], name="net"
    )
    model.add(keras.layers.Dropout(0.2, name="dropout"))
    model.add(keras.layers.Dense(2, name="last"))
    ct.compress_model(model)
    optimizer = keras.optimizers.Adam(0.05, use_ema=ema, ema_momentum=0.5)
    return compiled(model, optimizer=optimizer, metrics=["accuracy"])


def data(seed):
    x = np.random.default_rng(seed).normal(size=(8 * STEPS, 6)).astype("float32")
    return x, (x[:, 0] > 0).astype(int)


def train(make, folder, *kills):
    """A training that is killed and started anew.

    Args:
      make: From a folder for files to a list of callbacks.
      folder: For checkpoint and files.
      kills: Arguments of `Kill` in each process but the last.

    Returns:
      The model, the History and the callbacks of the last process.
    """
    folder.mkdir(exist_ok=True)
    for kill in (*kills, {}):
        made = make(folder)
        model = network(ema=any(isinstance(callback, callbacks.SwapEMAWeights) for callback in made))
        try:
            history = ct.fit(
                model, *data(0), batch_size=8, epochs=EPOCHS, snapshot_every=1, validation_data=data(1),
                checkpoint_dir=folder / "checkpoint", callbacks=[*made, Kill(**kill)], verbose=0,
            )  # fmt: skip
        except Killed:
            assert kill, "the last process is not killed"
        else:
            assert not kill, "a kill came too late"
    return model, history, made


def state_of(made):
    """Of callbacks, in text; folders and what is found in files left out."""
    names = ("filepath", "filename", "log_dir", "_log_write_dir", "_train_dir", "_val_dir", "append_header")
    found = snapshot.attributes(made)
    return [(name, {k: str(v) for k, v in state.items() if k not in names}) for name, state in found]


def assert_same(run, other):
    (model, history, made), (plain, expected, theirs) = run, other
    for ours, variable in zip(snapshot.state_variables(model), snapshot.state_variables(plain)):
        np.testing.assert_array_equal(ours.numpy(), variable.numpy())
    events = history.history.pop("events")
    expected.history.pop("events", None)
    assert history.history == expected.history and history.epoch == expected.epoch
    assert state_of(made) == state_of(theirs)
    return events


def early_stopping(folder):
    return [callbacks.EarlyStopping("loss", min_delta=0.15, patience=1, restore_best_weights=True)]


STOCK = {
    "EarlyStopping": early_stopping,
    "EarlyStopping, max": lambda folder: [
        callbacks.EarlyStopping("val_accuracy", min_delta=0.01, patience=1)
    ],
    "ReduceLROnPlateau": lambda folder: [
        callbacks.ReduceLROnPlateau("loss", min_delta=0.15, patience=1, cooldown=1)
    ],
    "ModelCheckpoint": lambda folder: [
        callbacks.ModelCheckpoint(
            folder / "best.weights.h5", "loss", save_best_only=True, save_weights_only=True
        )
    ],
    "ModelCheckpoint, steps": lambda folder: [
        callbacks.ModelCheckpoint(folder / "{epoch}-{batch}.weights.h5", save_weights_only=True, save_freq=3)
    ],
    "LearningRateScheduler": lambda folder: [callbacks.LearningRateScheduler(halved)],
    "CSVLogger": lambda folder: [callbacks.CSVLogger(folder / "log.csv")],
    "CSVLogger, append": lambda folder: [callbacks.CSVLogger(folder / "log.csv", append=True)],
    "SwapEMAWeights": lambda folder: [callbacks.SwapEMAWeights()],
    "SwapEMAWeights, epochs": lambda folder: [callbacks.SwapEMAWeights(swap_on_epoch=True)],
    "TerminateOnNaN": lambda folder: [callbacks.TerminateOnNaN()],
    "TensorBoard": lambda folder: [callbacks.TensorBoard(folder / "logs", update_freq=2, histogram_freq=1)],
    "TensorBoard, profile": lambda folder: [callbacks.TensorBoard(folder / "logs", profile_batch=(4, 6))],
    "ProgbarLogger": lambda folder: [callbacks.ProgbarLogger()],
    "LambdaCallback": lambda folder: [callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None)],
    "History": lambda folder: [callbacks.History()],
}


@pytest.fixture(autouse=True)
def no_profiler_is_left():
    """A training that is ended within a profile, as a kill ends it, leaves that running in this process."""
    yield
    with contextlib.suppress(tf.errors.UnavailableError):
        tf.profiler.experimental.stop(save=False)


@pytest.mark.long(but=["EarlyStopping"])  # most others are in `test_all_at_once`
@pytest.mark.parametrize("name", STOCK)
def test_a_restart_changes_nothing(tmp_path, name):
    """In TensorBoard's profile too."""
    expected = train(STOCK[name], tmp_path / "plain")
    events = assert_same(train(STOCK[name], tmp_path / "killed", IN_EPOCH_2), expected)
    assert [event.kind for epoch in events for event in epoch] == ["resumed"]


def test_all_at_once(tmp_path):
    """Killed in an epoch, between two, and in one again. But one SwapEMAWeights, and none that ends the training."""
    left_out = (
        "EarlyStopping",
        "EarlyStopping, max",
        "SwapEMAWeights",
        "TensorBoard",
        "TensorBoard, profile",
    )
    makes = [make for name, make in STOCK.items() if name not in left_out]

    def every(folder):
        return [callback for make in makes for callback in make(folder)]

    expected = train(every, tmp_path / "plain")
    assert_same(train(every, tmp_path / "killed", IN_EPOCH_2, {"epoch": 1}, {"step": 2 + STEPS}), expected)


@pytest.mark.long("True")
@pytest.mark.parametrize("append", [False, True])
def test_a_csv_log_keeps_the_epochs_before_a_restart(tmp_path, append):
    def make(folder):
        return [callbacks.CSVLogger(folder / "log.csv", append=append)]

    _, _, (logger,) = train(make, tmp_path, IN_EPOCH_2, IN_EPOCH_2)
    with open(tmp_path / "log.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == [str(epoch) for epoch in range(EPOCHS)]
    assert logger.append is append
    train(make, tmp_path)  # of a finished training nothing is lost either
    assert len((tmp_path / "log.csv").read_text().splitlines()) == EPOCHS + 1


def above(value, best):
    return value > best


def below(value, best):
    return value < best


class Choosing(callbacks.Callback):
    """Chooses functions while it trains, one of them in a container, and holds a tensor."""

    def __init__(self, rule=below):
        super().__init__()
        self.rule, self.chosen, self.kept, self.last = rule, None, {}, None

    def on_epoch_end(self, epoch, logs=None):
        if self.chosen is None:
            self.chosen = above
            self.kept["rules"] = (np.less, [Choosing, keras.ops.add])
            self.last = tf.constant(logs["loss"])


@pytest.mark.long
def test_functions_chosen_while_training_are_kept(tmp_path):
    expected = train(lambda folder: [Choosing()], tmp_path / "plain")
    run = train(lambda folder: [Choosing()], tmp_path / "killed", IN_EPOCH_2)
    assert_same(run, expected)
    (found,) = run[2]
    assert found.chosen is above and found.kept == {"rules": (np.less, [Choosing, keras.ops.add])}
    assert isinstance(found.last, tf.Tensor)


@pytest.mark.long("lambda")
@pytest.mark.parametrize("new", [above, lambda value, best: True], ids=["function", "lambda"])
def test_a_function_given_to_a_callback_is_the_new_call_s(tmp_path, new):
    """What training has not changed is an argument, also where the new one is no plain data."""
    rules = iter([below, new])
    found = train(lambda folder: [Choosing(next(rules))], tmp_path, IN_EPOCH_2)[2]
    assert found[0].rule is new and found[0].chosen is above


@pytest.mark.long
def test_a_callback_with_a_list_that_holds_itself(tmp_path):
    def make(folder):
        callback = Choosing()
        callback.kept["self"] = callback.kept
        return [callback]

    train(make, tmp_path, IN_EPOCH_2)
