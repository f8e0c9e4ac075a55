"""What XLA compiles while the batch size moves: each size once, told from the programs that it dumps."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from needs_xla import needs_xla

HERE = Path(__file__).resolve().parent
TRAINING = """
import glob, sys
import numpy as np
import tf_comptrain as ct
from tensorflow import keras

layers = keras.layers
model = keras.Sequential([keras.Input((64,)), layers.Dense(64, activation="tanh"), layers.Dense(10)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("sgd", loss, jit_compile=True)
ct.compress_model(model)
x, y = np.ones((96, 64), "float32"), np.zeros(96)
data = ct.elastic_batch((x, y), batch_size=16)
sizes = [16, 32, 16, 48, 32]


class Move(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        data.elastic.resize(sizes[epoch])

    def on_epoch_end(self, epoch, logs=None):
        count()


def count():
    print("compiled", len(glob.glob(sys.argv[1] + "/*before_optimizations.txt")))


model.fit(data, epochs=len(sizes), verbose=0, callbacks=[Move()])
for size in (16, 32, 16, 24):
    ct.fit(model, x, y, batch_size=size, verbose=0)
    count()
"""


@pytest.mark.long
@needs_xla
def test_a_size_that_was_compiled_is_not_compiled_again(tmp_path):
    flags = f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text --xla_dump_hlo_module_re=.*one_step_on_data.*"
    environment = dict(os.environ, XLA_FLAGS=flags, PYTHONPATH=str(HERE.parent.parent))
    command = [sys.executable, "-c", TRAINING, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    counts = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("compiled")]
    assert counts == [1, 2, 2, 3, 3, 3, 3, 3, 4]
