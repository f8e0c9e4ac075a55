"""`_keras/loops.py`: the lists that loops keep for their gradients."""

import numpy as np
import pytest
import tensorflow as tf

from tf_comptrain import _keras

X = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")


def traced(hook, x=X, dtype=tf.float32, signature=None):
    """The gradient of a loop of three turns; `hook` is given the pass."""

    @tf.function(input_signature=[tf.TensorSpec(signature or x.shape, dtype)])
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.while_loop(lambda k, y: k < 3, lambda k, y: (k + 1, tf.tanh(y) * y), (0, x))[1]
        return tape.gradient(y, x)

    with _keras.on_gradients(hook):
        return gradient(tf.cast(x, dtype)).numpy()


def gradient_loop(backward):
    (loop,) = [op for op in backward.operations() if _keras.loop_body(op) is not None]
    return loop


def test_the_lists_of_a_loop():
    found = []

    def hook(backward):
        found.extend(_keras.loop_lists(gradient_loop(backward)))

    traced(hook)
    assert all(isinstance(each, _keras.LoopList) for each in found)
    elements = {each.element.op.type for each in found}
    assert "Tanh" in elements and all(each.element.shape == each.popped.shape for each in found)
    assert all(each.popped.op.type == "TensorListPopBack" for each in found)


def test_what_the_turns_change():
    def hook(backward):
        pairs = _keras.body_inputs(gradient_loop(backward))
        assert any(begins is not ends and begins.dtype.is_floating for begins, ends in pairs)

    traced(hook)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
@pytest.mark.parametrize("shape", [(4, 3), (None, 3), (None, None)])
def test_lists_hold_bytes_of_any_number(dtype, shape):
    """Here the bytes are the values, behind three more."""
    encoded = []

    def encode(tensor):
        encoded.append(tensor)
        return tf.concat([tf.zeros([3], tf.uint8), tf.reshape(tf.bitcast(tensor, tf.uint8), [-1])], 0)

    def decode(stream, shape):
        width = encoded[-1].dtype.size
        return tf.reshape(tf.bitcast(tf.reshape(stream[3:], [-1, width]), encoded[-1].dtype), shape)

    def hook(backward):
        loop = gradient_loop(backward)
        lists = [each for each in _keras.loop_lists(loop) if each.element.dtype.is_floating]
        for each in lists:
            _keras.hold_list(each, encode, decode)
        _keras.register_bodies([loop, *{each.filled.op.name: each.filled.op for each in lists}.values()])

    plain, ours = traced(lambda backward: None, X, dtype, shape), traced(hook, X, dtype, shape)
    assert encoded and np.array_equal(ours, plain)
