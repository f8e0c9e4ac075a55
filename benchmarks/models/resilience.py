"""Kills and out-of-memory events: does every training finish, with the weights of one undisturbed?

    python benchmarks/models/resilience.py --kills 20 --ooms 20
    python benchmarks/models/resilience.py --kills 40 --ooms 0 --callbacks all

Kills: a child process trains with `ct.fit(checkpoint_dir=...)`, gets SIGKILL at a random moment and
is started again, until it finishes; a new training begins while kills are left. Out of memory: one
training in which random steps fail at a random layer, forward or backward (on the executor a kernel
that raises, under XLA a real allocation of 256 TB), and are replayed at the same batch size. All
under op determinism; weights, history and callbacks' state are compared bit for bit. `--callbacks all`: with
every callback of Keras that holds state, and validation after each epoch (BackupAndRestore, which ct.fit
refuses, RemoteMonitor and OrbaxCheckpoint left out; TensorBoard where it is installed). Both modes:
executor (compressed model) and XLA (plain layers). Exits with 1 if a training does not finish or anything differs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

SAMPLES, BATCH, LAYERS = 100, 8, 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--ooms", type=int, default=20)
    parser.add_argument("--modes", nargs="+", default=["executor", "xla"], choices=["executor", "xla"])
    parser.add_argument("--callbacks", default="none", choices=["none", "all"])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        train(options.child, options)
        return 0
    rows = [row for mode in options.modes for row in study(mode, options)]
    print(
        "\n| mode | disturbance | events | trainings finished | weights, history, callbacks equal | batches replayed |"
    )
    print("|---|---|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    return 0 if all(row[3] == row[4] for row in rows) else 1


def study(mode: str, options: argparse.Namespace) -> list[tuple]:
    rows: list[tuple] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        undisturbed = [finish(start(folder / "plain", mode, options), folder / "plain")]

        def equals(found: Any) -> int:
            """1 where a training ended as an undisturbed one does.

            On a loaded machine about one undisturbed training in fifty ends with other last bits than the rest:
            where the first comparison fails, a second undisturbed training tells which of the two is odd.
            """
            if same(undisturbed[0], found):
                return 1
            if len(undisturbed) == 1:
                undisturbed.append(finish(start(folder / "again", mode, options), folder / "again"))
                if not same(undisturbed[0], undisturbed[1]):
                    print(f"{mode}: two undisturbed trainings differ", flush=True)
            return int(same(undisturbed[1], found))

        if options.kills:
            trainings = finished = equal = kills = 0
            rng = random.Random(options.seed)
            while kills < options.kills:
                trainings += 1
                place = folder / f"killed{trainings}"
                while kills < options.kills and not killed(place, mode, options, rng):
                    kills += 1
                    print(f"{mode}: kill {kills}", flush=True)
                found = finish(start(place, mode, options), place)
                finished += found is not None
                equal += equals(found)
            rows.append(
                (mode, "SIGKILL", kills, f"{finished} of {trainings}", f"{equal} of {trainings}", "-")
            )
        if options.ooms:
            found = finish(start(folder / "oom", mode, options, options.ooms), folder / "oom")
            equal = equals(found)
            replayed = int(found["replayed"]) if found is not None else "-"
            events = int(found["events"]) if found is not None else 0
            done = int(found is not None and events == options.ooms)
            rows.append((mode, "out of memory", events, f"{done} of 1", f"{equal} of 1", replayed))
    return rows


def start(place: Path, mode: str, options: argparse.Namespace, ooms: int = 0) -> subprocess.Popen:
    command = [sys.executable, __file__, "--child", place, "--modes", mode, "--ooms", ooms]
    command += ["--epochs", options.epochs, "--seed", options.seed, "--callbacks", options.callbacks]
    return subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def finish(child: subprocess.Popen, place: Path) -> Any:
    """What a training ends with; None if it does not end well."""
    output, _ = child.communicate()
    if child.returncode != 0:
        print(f"exit {child.returncode}: {output[-2000:]}")
        return None
    with np.load(place / "end.npz") as file:
        return dict(file)


def killed(place: Path, mode: str, options: argparse.Namespace, rng: random.Random) -> bool:
    """Kills a training at a random moment. True if it ended before that."""
    child = start(place, mode, options)
    assert child.stdout is not None
    if rng.random() < 0.8:  # else at any moment of the start
        for line in child.stdout:
            if line.startswith("training"):
                break
        time.sleep(rng.uniform(0.0, 1.0))
    else:
        time.sleep(rng.uniform(0.0, 6.0))
    ended = child.poll() is not None
    child.send_signal(signal.SIGKILL)
    child.communicate()
    return ended


def same(expected: Any, found: Any) -> bool:
    """Whether weights, history and callbacks' state are equal; where they are not, says which."""
    if found is None:
        return False
    differ = [
        k for k, v in expected.items() if k not in ("events", "replayed") and not np.array_equal(v, found[k])
    ]
    for name in differ:
        print(f"differs: {name}: {difference(expected[name], found[name])}")
    return not differ


def difference(expected: np.ndarray, found: np.ndarray) -> str:
    """Of two arrays, or two texts from where they part."""
    if expected.dtype.kind == "U" and expected.ndim == 0:
        ours, theirs = str(expected), str(found)
        start = max(len(os.path.commonprefix((ours, theirs))) - 100, 0)
        return f"{ours[start : start + 300]!r} and {theirs[start : start + 300]!r}"
    if expected.shape != found.shape or expected.dtype.kind not in "fiu":
        return f"{expected!r} and {found!r}"[:600]
    return f"by at most {np.abs(expected - found).max()} of {np.abs(expected).max()}"


def stock_callbacks(place: Path) -> list:
    """Every callback of Keras that holds state, none of which ends the training early."""
    from tensorflow.keras import callbacks

    found = [
        callbacks.EarlyStopping("val_loss", min_delta=0.01, patience=10**6, restore_best_weights=True),
        callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.99),
        callbacks.ReduceLROnPlateau("loss", min_delta=0.02, patience=2, cooldown=1),
        callbacks.SwapEMAWeights(swap_on_epoch=True),
        callbacks.ModelCheckpoint(
            place / "best.weights.h5", "val_accuracy", save_best_only=True, save_weights_only=True
        ),
        callbacks.ModelCheckpoint(place / "latest.weights.h5", save_weights_only=True, save_freq=17),
        callbacks.CSVLogger(place / "log.csv"),
        callbacks.TerminateOnNaN(),
        callbacks.ProgbarLogger(),
        callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None),
        callbacks.History(),
    ]
    if importlib.util.find_spec("tensorboard"):
        found.append(callbacks.TensorBoard(place / "logs", histogram_freq=1, update_freq=5))
    return found


def state_of(callbacks: list) -> str:
    """Their plain attributes, without those that are another folder in another run, or found in a file."""
    from tf_comptrain.training import snapshot

    left_out = (
        "filepath",
        "filename",
        "log_dir",
        "_log_write_dir",
        "_train_dir",
        "_val_dir",
        "append_header",
    )
    states = [
        (name, {k: v for k, v in found.items() if k not in left_out})
        for name, found in snapshot.attributes(callbacks)
    ]
    return json.dumps(states, default=lambda array: [array.dtype.name, array.tolist()])


def train(place: Path, options: argparse.Namespace) -> None:
    """In the child process."""
    mode, epochs, ooms, seed = options.modes[0], options.epochs, options.ooms, options.seed
    import tensorflow as tf
    from tensorflow import keras

    import tf_comptrain as ct

    tf.config.experimental.enable_op_determinism()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    keras.utils.set_random_seed(seed)

    class Fault(keras.layers.Layer):
        """Passes its input through; when armed, runs out of memory in that direction."""

        armed = ""

        def call(self, x):
            @tf.custom_gradient
            def through(x):
                y = self.exhaust(x) if self.armed == "forward" else tf.identity(x)
                return y, lambda dy: self.exhaust(dy) if self.armed == "backward" else tf.identity(dy)

            return through(x)

        def exhaust(self, x):
            if mode == "executor":
                y = tf.numpy_function(no_memory, [x], x.dtype)
                y.set_shape(x.shape)
                return y
            size = 8_000_000
            seed = tf.cast(tf.reshape(x, [-1])[:2], tf.int32)
            big = tf.sort(tf.random.stateless_uniform([size, size], seed=seed), axis=1)
            return x + 1e-30 * tf.reduce_sum(big[:, 0])

    def no_memory(x):
        raise MemoryError("Out of memory, injected")

    class Trouble(keras.callbacks.Callback):
        """Arms a fault for one step each; what it has done is not rolled back."""

        def on_train_batch_begin(self, batch, logs=None):
            step = int(self.model.optimizer.iterations.numpy())
            if now:
                faults.pop(now.pop()).armed = ""
                self.model.make_train_function(force=True)
            if step in faults:
                faults[step].armed = rng.choice(["forward", "backward"])
                now.add(step)
                self.model.make_train_function(force=True)

        def on_train_batch_end(self, batch, logs=None):
            if not said:
                said.append(True)
                print("training", flush=True)

    said: list = []
    now: set = set()
    points = [Fault() for _ in range(LAYERS)]
    inputs = x = keras.Input((8, 8, 3))
    for point in points:
        x = point(keras.layers.Conv2D(8, 3, padding="same", activation="relu")(x))
    x = keras.layers.Dropout(0.2)(keras.layers.Flatten()(x))
    model = keras.Model(inputs, keras.layers.Dense(10)(x))
    rng = random.Random(seed)
    steps = epochs * -(-SAMPLES // BATCH)
    faults = {step: rng.choice(points) for step in rng.sample(range(steps), ooms)}
    stock = stock_callbacks(place) if options.callbacks == "all" else []
    callbacks: list = [Trouble(), *stock]
    if mode == "executor":
        ct.compress_model(model)
        callbacks.append(ct.AdaptiveErrorBound(interval=5, warmup=2))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.Adam(use_ema=bool(stock))
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=mode == "xla")
    data = np.random.default_rng(seed)
    images = data.normal(size=(SAMPLES, 8, 8, 3)).astype("float32")
    labels = data.integers(0, 10, SAMPLES)
    history = ct.fit(
        model, images, labels, batch_size=BATCH, epochs=epochs, snapshot_every=3, retries=1,
        checkpoint_dir=place, callbacks=callbacks, verbose=2,
        validation_data=(images[:20], labels[:20]) if stock else None,
    )  # fmt: skip
    told = history.history.pop("events")  # of kills too, which leave no other trace
    events = [event for epoch in told for event in epoch if event.kind == "out of memory"]
    weights = {f"w{i}": w for i, w in enumerate(model.get_weights())}
    replayed = sum(event.step - event.back_to for event in events)
    np.savez(
        place / "end.npz", events=len(events), replayed=replayed, history=json.dumps(history.history),
        callbacks=state_of(callbacks[1:]), **weights,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
