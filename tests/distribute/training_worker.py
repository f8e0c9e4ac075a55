"""What the tests' workers run: python training_worker.py SCENARIO FOLDER. Results are in FOLDER/WORKER.json."""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

import tf_comptrain as ct
from tf_comptrain import _keras
from tf_comptrain.compression.instrumentation import instrumentation

SAMPLES, BATCH = 96, 16
EPOCHS = 2


def data(count=SAMPLES):
    random = np.random.default_rng(0)
    labels = random.integers(0, 4, count)
    images = random.normal(size=(count, 8, 8, 3)) + labels[:, None, None, None] / 3
    return images.astype(np.float32), labels


def network(norm=True, **compression):
    """Without `norm` nothing in it sees more than one sample: workers make what one process does."""

    def build():
        model = keras.Sequential(
            [keras.Input((8, 8, 3)), layers.Conv2D(8, 3, activation="relu", name="conv1")]
        )
        model.add(layers.Conv2D(8, 3, name="conv2"))
        if norm:
            model.add(layers.BatchNormalization(name="norm"))
        model.add(layers.ReLU(name="relu"))
        model.add(layers.Flatten(name="flatten"))
        model.add(layers.Dense(4, activation="softmax", name="dense"))
        ct.compress_model(model, **compression)
        model.compile(
            keras.optimizers.SGD(0.05, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"]
        )
        return model

    return build


def fit(build, *args, **kwargs):
    settings = {"batch_size": BATCH, "epochs": EPOCHS, "verbose": 0, "validation_data": data(20)}
    return ct.distribute.fit(build, *(args or data()), **{**settings, **kwargs})


def outcome(history):
    model = history.model
    own = [_keras.replica_parts(v) for v in _keras.moving_statistics(model)]
    states = instrumentation(model).codec_states() + instrumentation(model).statistics()
    own += [_keras.replica_parts(state) for state in states]
    return {
        "logs": {name: history.history[name] for name in ("loss", "accuracy", "val_loss", "val_accuracy")},
        "weights": [np.asarray(weight).tolist() for weight in model.get_weights()],
        "states": [float(np.abs(part.numpy()).sum()) for parts in own for part in parts if part is not None],
    }


def alike(folder):
    """All that is to be the same on each worker, and the same as one process makes of it."""
    bounds = ct.AdaptiveErrorBound(interval=2, warmup=1)
    csv = keras.callbacks.CSVLogger(folder / "log.csv")
    saved = keras.callbacks.ModelCheckpoint(folder / "model.keras")
    tuner = ct.AdaptiveBatchSize("1GB", max_batch=2 * BATCH, hold=1, verbose=0)
    compressed = fit(network(), callbacks=[bounds, csv, saved])
    stop = Stop()
    stopped = fit(network(), epochs=5, callbacks=[stop], validation_data=None)
    resized = fit(network(), epochs=3, callbacks=[tuner], validation_data=None)
    files = sorted(path.name for path in folder.glob("*.*"))
    return {
        "keep": outcome(fit(network(norm=False, storage="keep"))),
        "stream": outcome(fit(network(norm=False))),
        "odd": outcome(fit(network(norm=False), *data(SAMPLES - 15))),  # one sample is left in the end
        "compressed": {**outcome(compressed), "bounds": [update.bound for update in bounds.updates]},
        "stopped": len(stopped.epoch),
        "batches": [decision.batch for decision in tuner.decisions],
        "resized": [np.asarray(weight).tolist() for weight in resized.model.get_weights()],
        "files": files,
    }


class Stop(keras.callbacks.Callback):
    """Ends the training in its second epoch, on the last worker alone."""

    def on_train_batch_end(self, batch, logs=None):
        if (
            self.model.optimizer.iterations.numpy() == SAMPLES // BATCH + 2
            and not ct.distribute.is_first_worker()
        ):
            self.model.stop_training = True


class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.2)


def killed(folder):
    """A training that takes its time, with checkpoints."""
    return goes_on(folder, [Slow()])


def goes_on(folder, callbacks=()):
    tf.config.experimental.enable_op_determinism()
    bounds = ct.AdaptiveErrorBound(interval=2, warmup=1)
    fitted = fit(
        network(),
        epochs=4,
        callbacks=[bounds, *callbacks],
        checkpoint_dir=folder / "checkpoint",
        snapshot_every=2,
    )
    return {**outcome(fitted), "events": fitted.history["events"]}


def given_something_else(folder):
    """What is said where worker 1 was given something else."""
    second = json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1
    x, y = data()
    given = {
        "batch": ((x, y), {"batch_size": 18 if second else BATCH}),
        "length": ((x[:-1], y[:-1]) if second else (x, y), {}),
        "types": ((x.astype("float64") if second else x, y), {}),
        "values": ((x + 1 if second else x, y), {}),
    }
    said = {}
    for name, (arrays, how) in given.items():
        try:
            fit(network(), *arrays, **how)
        except ValueError as error:
            said[name] = str(error)
    return said


def main():
    scenario, folder = sys.argv[1], Path(sys.argv[2])
    result = globals()[scenario](folder)
    number = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    (folder / f"{number}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
