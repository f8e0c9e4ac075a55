"""A SavedModel whose signature trains: it goes on where the model was, with the op library alone."""

import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain import native
from tf_comptrain.compression.instrumentation import instrumentation

layers = keras.layers
X = np.random.default_rng(0).normal(size=(16, 16, 16, 8)).astype("float32")
Y = np.random.default_rng(1).integers(0, 5, 16)
# No package of ours, and no Keras model: what serves a SavedModel elsewhere.
ELSEWHERE = """
import json, sys
import numpy as np, tensorflow as tf
library, folder = sys.argv[1:]
tf.load_op_library(library)
loaded = tf.saved_model.load(folder)
x, y = (tf.constant(np.load(f"{folder}/{name}.npy")) for name in "xy")
losses = [float(loaded.signatures["train"](x=x, y=y)["loss"]) for _ in range(3)]
assert not any(name.startswith("tf_comptrain") for name in sys.modules)
print(json.dumps(losses))
"""


class Trainer(tf.Module):
    """A model, its optimizer, and a step of both."""

    def __init__(self, wrap):
        super().__init__()
        keras.utils.set_random_seed(0)
        inputs = keras.Input((16, 16, 8))
        h = layers.ReLU()(layers.BatchNormalization()(wrap(layers.Conv2D(16, 3))(inputs)))
        self.model = keras.Model(inputs, layers.Dense(5)(layers.GlobalAveragePooling2D()(h)))
        self.optimizer = keras.optimizers.SGD(0.05)
        self.optimizer.build(self.model.trainable_variables)
        self.kept = [v.value for v in (*self.model.variables, *self.optimizer.variables)]

    @tf.function(
        input_signature=[tf.TensorSpec(X.shape, name="x"), tf.TensorSpec(Y.shape, tf.int64, name="y")]
    )
    def train(self, x, y):
        with ct.training_scope(), tf.GradientTape() as tape:
            logits = self.model(x, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        weights = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return {"loss": loss}


def nothing(layer):
    return layer


@pytest.mark.long(but=["Compress-True"])
@pytest.mark.parametrize("wrap, whole", [(nothing, True), (ct.Compress, False), (ct.Compress, True)])
def test_it_trains_on_elsewhere(wrap, whole, tmp_path):
    trainer = Trainer(wrap)
    if whole:
        ct.compress_model(trainer.model)
    trainer.train(X, Y)
    tf.saved_model.save(trainer, tmp_path, signatures={"train": trainer.train})
    for name, array in (("x", X), ("y", Y)):
        np.save(tmp_path / f"{name}.npy", array)
    saved = tf.train.load_checkpoint(str(tmp_path / "variables" / "variables"))
    values = [saved.get_tensor(name) for name in saved.get_variable_to_shape_map() if "comptrain" in name]
    states = {v.tobytes() for v in values}
    assert any(v.any() for v in values)
    assert {v.numpy().tobytes() for v in instrumentation(trainer.model).codec_states()} <= states
    live = [float(trainer.train(X, Y)["loss"]) for _ in range(3)]
    command = [sys.executable, "-c", ELSEWHERE, str(native.library_path()), str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout.splitlines()[-1]) == pytest.approx(live, rel=1e-5)


def test_what_else_is_saved_stays_as_it_was(tmp_path):
    """A checkpoint, and a SavedModel after `restore_model`."""
    trainer = Trainer(nothing)
    before = tf.train.list_variables(tf.train.Checkpoint(model=trainer.model).save(str(tmp_path / "before")))
    ct.compress_model(trainer.model)
    after = tf.train.list_variables(tf.train.Checkpoint(model=trainer.model).save(str(tmp_path / "after")))
    assert after == before
    ct.restore_model(trainer.model)
    tf.saved_model.save(trainer, tmp_path, signatures={"train": trainer.train})
    assert not [
        name
        for name, _ in tf.train.list_variables(str(tmp_path / "variables" / "variables"))
        if "comptrain" in name
    ]
