"""What TensorFlow's own loops and branches keep: the report has it, with the bytes where the graph says them."""

import numpy as np
import pytest
import tensorflow as tf
from models import layers
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.graph.control_flow import IN_LISTS

STEPS, UNITS, SAMPLES = 12, 32, 4  # too small for streams of each turn
RNG = np.random.default_rng(0)
X = RNG.normal(size=(SAMPLES, STEPS, UNITS)).astype("float32")


class Loop(layers.Layer):
    """A loop of three turns, or one whose turns are not known when the step is traced, or a branch."""

    def __init__(self, kind, **kwargs):
        super().__init__(**kwargs)
        self.kind = kind

    def call(self, x):
        if self.kind == "map":
            return tf.map_fn(lambda part: tf.tanh(part) * part, x)
        if self.kind == "branch":
            return tf.cond(tf.reduce_mean(x) > 1e3, lambda: x, lambda: tf.tanh(x) * x)
        return tf.while_loop(
            lambda k, x: k < 3, lambda k, x: (k + 1, tf.tanh(x) * x), (0, x), maximum_iterations=3
        )[1]


def rows_of(layer):
    x = layers.Dense(UNITS)(inputs := keras.Input((STEPS, UNITS)))
    model = keras.Model(inputs, layers.Dense(1)(layers.Flatten()(layer(x))))
    model.compile("sgd", "mse")
    ct.compress_model(model)
    model.fit(X, np.zeros((SAMPLES, 1)), verbose=0)
    return ct.report(model).rows


# Of a turn of the LSTM its input, eight tensors of its units; of that of the loop x and tanh(x).
CASES = {
    "LSTM": (lambda: layers.LSTM(16), STEPS * 4 * (UNITS + 8 * 16)),
    "while": (lambda: Loop("while"), 3 * 4 * STEPS * UNITS * 2),
    "map": (lambda: Loop("map"), None),
    "branch": (lambda: Loop("branch"), None),
}


@pytest.mark.parametrize(("make", "size"), CASES.values(), ids=CASES)
def test_the_report_has_what_a_loop_keeps(make, size):
    (row,) = [row for row in rows_of(make()) if row.note == IN_LISTS]
    assert row.storage == "keep" and row.layer_class.endswith(("While", "If"))
    assert row.value_bytes == row.predicted_bytes == size


def test_recompute_is_the_way_out():
    rows = rows_of(ct.Recompute(layers.LSTM(32)))
    assert not [row for row in rows if row.note == IN_LISTS]
    assert not [row for row in rows if row.layer_class in ("Fill", "ZerosLike")]
