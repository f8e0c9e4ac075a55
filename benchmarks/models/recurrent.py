"""Peak memory and time of training recurrent layers, plain and compressed, on TensorFlow's executor.

    python benchmarks/models/recurrent.py --csv docs/tables/recurrent.csv

Each variant lives in a process of its own. Peaks are bytes of TensorFlow's allocator over the resting level,
the highest of 12 steps of `fit`, the first included; steps are the fastest of these after the first two.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

# Name -> (samples, turns, shape of a turn's input, units).
CASES = {
    "LSTM": (512, 64, (32,), 128),
    "GRU": (512, 64, (32,), 128),
    "Bidirectional LSTM": (256, 64, (32,), 128),
    "ConvLSTM2D": (8, 24, (32, 32, 2), 32),
}
HEADINGS = (
    "two layers of",
    "batch x turns x input, units",
    "peak plain, MB",
    "compressed",
    "ratio",
    "step / plain's",
)
STEPS = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--csv", type=Path, help="write the table there")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measured(args.one[0], args.one[1] == "compressed")))
        return
    rows = [HEADINGS]
    for name, (samples, turns, shape, units) in CASES.items():
        (plain, plain_s), (ours, ours_s) = (alone(name, variant) for variant in ("plain", "compressed"))
        sizes = f"{samples} x {turns} x {' x '.join(map(str, shape))}, {units}"
        rows.append(
            (
                name,
                sizes,
                f"{plain / 1e6:.0f}",
                f"{ours / 1e6:.0f}",
                f"{plain / ours:.1f}",
                f"{ours_s / plain_s:.2f}",
            )
        )
        print(*rows[-1], sep=" | ", flush=True)
    if args.csv:
        with args.csv.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)


def alone(name: str, variant: str) -> tuple[int, float]:
    """`measured` in a process of its own."""
    command = [sys.executable, __file__, "--one", name, variant]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return tuple(json.loads(found.splitlines()[-1]))


def measured(name: str, compress: bool) -> tuple[int, float]:
    """(highest peak over the resting level, seconds of the fastest step)"""
    import numpy as np
    import tensorflow as tf
    from tensorflow import keras

    import tf_comptrain as ct

    class Meter(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.peaks, self.seconds = [], []

        def on_train_batch_begin(self, batch, logs=None):
            tf.config.experimental.reset_memory_stats("CPU:0")
            self._before = tf.config.experimental.get_memory_info("CPU:0")["current"]
            self._start = time.perf_counter()

        def on_train_batch_end(self, batch, logs=None):
            self.seconds.append(time.perf_counter() - self._start)
            self.peaks.append(tf.config.experimental.get_memory_info("CPU:0")["peak"] - self._before)

    samples, turns, shape, units = CASES[name]
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((turns, *shape))
    for _ in range(2):
        x = _layer(name, units)(x)
    pooling = keras.layers.GlobalAveragePooling3D if len(shape) > 1 else keras.layers.GlobalAveragePooling1D
    model = keras.Model(inputs, keras.layers.Dense(10)(pooling()(x)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=False)
    if compress:
        ct.compress_model(model)
    rng = np.random.default_rng(0)
    batch = (
        tf.constant(rng.normal(size=(samples, turns, *shape)), tf.float32),
        tf.constant(rng.integers(0, 10, samples)),
    )
    meter = Meter()
    model.fit(tf.data.Dataset.from_tensors(batch).repeat(STEPS), verbose=0, callbacks=[meter])
    return max(meter.peaks), min(meter.seconds[2:])


def _layer(name: str, units: int):
    from tensorflow.keras import layers

    if name == "ConvLSTM2D":
        return layers.ConvLSTM2D(units, 3, padding="same", return_sequences=True)
    if name.startswith("Bidirectional"):
        return layers.Bidirectional(layers.LSTM(units, return_sequences=True))
    return getattr(layers, name)(units, return_sequences=True)


if __name__ == "__main__":
    main()
