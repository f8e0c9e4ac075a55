"""`_keras/scopes.py`: what kind of call it is, under which scopes and tapes."""

import threading

import keras
import numpy as np
import tensorflow as tf

from tf_comptrain import _keras

layers = keras.layers


class Asked(layers.Layer):
    """Answers in its call what the test asks for."""

    def __init__(self, ask):
        super().__init__()
        self.ask, self.answers = ask, []

    def call(self, x, training=None):
        self.answers.append(self.ask())
        return x


def test_what_keras_tells_layers():
    layer, x = Asked(_keras.training), tf.ones((1, 2))
    layer(x, training=True)
    layer(x, training=False)
    assert layer.answers == [True, False]
    assert _keras.training() is None


def test_what_layers_are_told():
    noise = layers.GaussianNoise(1.0)
    x = tf.ones((1, 2))
    with _keras.call_scope(True):
        assert _keras.training() is True
        assert not np.array_equal(noise(x), x)
    with _keras.call_scope(None):
        assert np.array_equal(noise(x), x)
    assert _keras.training() is None


def test_scopes_of_this_package():
    assert _keras.scope_says() is None and not _keras.in_plain_scope()
    with _keras.training_scope():
        with _keras.training_scope(False), _keras.plain_scope():
            assert _keras.scope_says() is False and _keras.in_plain_scope()
        assert _keras.scope_says() is True and not _keras.in_plain_scope()
    assert _keras.scope_says() is None


def test_traces_of_this_package():
    seen = []

    def look():
        seen.append(_keras.in_own_trace())

    with _keras.own_trace():
        with _keras.own_trace():
            pass
        other = threading.Thread(target=look)  # where TensorFlow traces replicas
        other.start()
        other.join()
    look()
    assert seen == [True, False]


def test_shape_inference():
    layer = Asked(lambda: _keras.in_shape_inference())
    layer(keras.Input((2,)))
    layer(tf.ones((1, 2)))
    tf.function(layer)(tf.ones((1, 2)))
    assert layer.answers[0] is True
    assert layer.answers[-2:] == [False, False]


def test_branches_inside_a_tape():
    _keras.note_tapes()
    found = {}

    @tf.function
    def step(x):
        def ask(name):
            found[name] = _keras.branch_inside_tape()
            return 2.0 * x

        def within():
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = ask("tape in the branch")
            return tape.gradient(y, x)

        with tf.GradientTape() as tape:
            tape.watch(x)
            ask("no branch")
            y = tf.cond(x > 0.0, lambda: ask("branch in the tape"), lambda: x)
        return tape.gradient(y, x) + tf.cond(x > 0.0, within, lambda: x)

    step(tf.constant(1.0))
    assert found.pop("branch in the tape") == "in a branch or loop that the tape is outside of"
    assert found == {"no branch": None, "tape in the branch": None}


def test_vectorized_map():
    answers = []

    def ask(x):
        answers.append(_keras.in_vectorized_map())
        return 2.0 * x

    tf.vectorized_map(ask, tf.ones((2, 3)))
    tf.function(ask)(tf.ones((2, 3)))
    ask(tf.ones((2, 3)))
    assert answers == [True, False, False]


def test_devices_with_a_kernel():
    assert {"CPU", "XLA_CPU_JIT"} <= set(_keras.kernel_devices("MatMul"))
    assert _keras.kernel_devices("NoSuchOperation") == []


def test_tapes_that_record():
    x, other = tf.ones(2), tf.ones(2)
    assert not _keras.recording() and not _keras.watched(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        assert _keras.recording()
        assert _keras.watched({"a": [x], "b": 3}) and not _keras.watched([other])
        with _keras.quiet_tape():
            y = 2.0 * x
    assert tape.gradient(y, x) is None


def test_a_tape_of_a_graph_records_on():
    @tf.function
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            with _keras.quiet_tape():
                y = 2.0 * x
        return tape.gradient(y, x)

    assert gradient(tf.constant(1.0)) == 2.0


def test_dtype_of_a_layers_variables():
    layer = layers.Dense(2, dtype="mixed_bfloat16")
    layer.build((None, 3))
    with _keras.layer_scope(layer):
        assert tf.convert_to_tensor(layer.kernel).dtype == tf.bfloat16
    with _keras.layer_scope(keras.ops.exp):  # no layer
        assert tf.convert_to_tensor(layer.kernel).dtype == tf.float32


def test_keys_are_what_a_layer_would_draw_with():
    one, other = (layers.Dropout(0.5, seed=3) for _ in range(2))
    for _ in range(2):
        key, counter = _keras.draw_key(one)
        drawn = tf.raw_ops.StatelessRandomUniformV2(shape=[4], key=key, counter=counter, alg=1)
        assert np.array_equal(drawn, keras.random.uniform((4,), seed=other.seed_generator))


def test_values_of_a_layer():
    dense = layers.Dense(2, dtype="mixed_bfloat16")
    assert _keras.values_of(dense) == []  # not built
    outer = keras.Sequential([dense, layers.Dropout(0.5)])
    outer.build((None, 3))
    found = _keras.values_of(outer)
    assert [id(variable) for variable, _ in found] == [id(variable) for variable in outer.variables]
    assert {value.dtype.name for _, value in found} == {"float32", "int64"}
    assert _keras.values_of(keras.ops.exp) == []


def test_values_in_place_of_variables():
    variable, new = keras.Variable([1.0, 1.0]), tf.constant([5.0, 5.0])
    assert not _keras.in_scope_of_values()
    with _keras.scope_of_values([(variable, new)]):
        assert _keras.in_scope_of_values()
        assert np.array_equal(variable + 0.0, new)
        variable.assign([7.0, 7.0])
        assert np.array_equal(variable + 0.0, [7.0, 7.0])
    with _keras.scope_of_values([(variable, new)], lambda before, value: before + value):
        variable.assign([7.0, 7.0])
        assert np.array_equal(variable + 0.0, [12.0, 12.0])
    assert np.array_equal(variable.numpy(), [1.0, 1.0])
