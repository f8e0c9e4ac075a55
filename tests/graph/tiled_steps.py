"""Steps of a function of a model's weights, plain and compressed, and what a run of one makes."""

import numpy as np
import tensorflow as tf
from steps import Weights

import tf_comptrain as ct
from tf_comptrain.compression.instrumentation import instrumentation
from tf_comptrain.graph.tiles import loop


def scaled_model(shapes):
    """Weights that keep the scale of what they are multiplied with."""
    model = Weights(*shapes)
    rng = np.random.default_rng(2)
    for part in model.parts:
        part.assign(rng.normal(size=part.shape) / part.shape[0] ** 0.5)
    return model


def step_of(model, loss, shape, jit=False):
    """Loss and gradients; `shape` is that of what it is called with."""

    @tf.function(autograph=False, jit_compile=jit, input_signature=[tf.TensorSpec(shape)])
    def step(x):
        with tf.GradientTape() as tape:
            value = loss(x, *(part.value for part in model.parts))
        return value, tape.gradient(value, [part.value for part in model.parts])

    return step


def run(loss, x, shapes, spec, jit=False, **how):
    """What a step returns, plain and compressed, and the graph and the crossings of the second.

    Plain runs eagerly, which takes less time than a trace. It is traced where tensors are kept, which is compared
    to the bit, and compiled under XLA, which rounds in other places and draws other numbers.
    """
    plain_step = step_of(scaled_model(shapes), loss, spec, jit)
    plain = (plain_step if jit or "storage" in how else plain_step.python_function)(x)
    model = scaled_model(shapes)
    ct.compress_model(model, check=False, **how)
    step, held = step_of(model, loss, spec, jit), instrumentation(model).held
    made = step(x)
    return plain, made, step.get_concrete_function(), () if held is None else held.crossings


def made_whole(function):
    """The floating-point tensors that a run makes outside of loops."""
    found, waiting, seen = [], [t.op for t in function.graph.outputs], set()
    waiting += [op for op in function.graph.get_operations() if op.op_def.is_stateful]
    while waiting:
        op = waiting.pop()
        if op.name not in seen:
            seen.add(op.name)
            waiting += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
            found += [t for t in op.outputs if t.dtype.is_floating and t.shape.rank]
    return [tensor for tensor in found if not tensor.op.name.startswith(loop.TILES_SCOPE)]


def assert_same(plain, tiled, tolerance=1e-5):
    np.testing.assert_allclose(tiled[0], plain[0], rtol=1e-6 if tolerance < 1e-3 else tolerance, atol=1e-8)
    for ours, its in zip(tiled[1], plain[1]):
        assert np.linalg.norm(ours - its) <= tolerance * np.linalg.norm(its)
