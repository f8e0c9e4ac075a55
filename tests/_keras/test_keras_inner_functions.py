"""`_keras/inner_functions.py`: functions that a traced step calls become part of its graph."""

import numpy as np
import pytest
import tensorflow as tf

from tf_comptrain import _keras


def steps_of(function, wanted=True, jit_compile=False):
    """Names of the operations of a step that calls a function under a tape, and what the function returned."""
    found = []

    @tf.function(jit_compile=jit_compile)
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            found.append(function(x))
            y = tf.add_n([tf.reduce_sum(part) for part in tf.nest.flatten(found[-1]) if part is not None])
        return y, tape.gradient(y, x)

    with _keras.on_gradients(lambda backward: None):
        x = tf.constant([1.0, -2.0])
        graph = step.get_concrete_function(x).graph
        y, dx = step(x)
    return {op.type for op in graph.get_operations()}, found[0], (y.numpy(), dx.numpy())


def types_in_a_step():
    """Of the operations of a step, traced now, that calls a function."""

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.function(tf.exp)(x)
        return tape.gradient(y, x)

    return [op.type for op in step.get_concrete_function(tf.constant(1.0)).graph.get_operations()]


def is_call(types):
    return any("PartitionedCall" in kind for kind in types)


def test_a_function_is_part_of_the_graph():
    types, _, (y, dx) = steps_of(tf.function(lambda x: tf.exp(x) * 2.0))
    assert not is_call(types) and "Exp" in types
    np.testing.assert_allclose(y, 2 * np.exp([1.0, -2.0]).sum(), rtol=1e-6)
    np.testing.assert_allclose(dx, 2 * np.exp([1.0, -2.0]), rtol=1e-6)


def test_where_nobody_is_told_of_gradients_it_stays_a_function(monkeypatch):
    with _keras.on_gradients(lambda backward: None):
        pass
    monkeypatch.setattr("tf_comptrain._keras.tapes._hooks", [])
    assert is_call(types_in_a_step())


def test_without_a_tape_it_stays_a_function():
    with _keras.on_gradients(lambda backward: None):
        graph = tf.function(tf.function(tf.exp)).get_concrete_function(tf.constant(1.0)).graph
    assert is_call(op.type for op in graph.get_operations())


def test_branches_and_loops_of_python_become_tensorflows():
    @tf.function
    def grown(x):
        for _ in tf.range(3):
            if tf.reduce_sum(x) < 100.0:
                x = 2.0 * x
        return x

    types, _, (y, dx) = steps_of(grown)
    assert not is_call(types) and {"While", "StatelessWhile"} & types
    assert y == -8.0 and list(dx) == [8.0, 8.0]


def test_autograph_stays_off_where_it_is():
    @tf.function(autograph=False)
    def chosen(x):
        return x if tf.reduce_sum(x) > 0.0 else 2.0 * x

    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError):
        steps_of(chosen)


def test_arguments_and_results_are_those_of_a_function():
    seen = []

    @tf.function
    def several(x, factor, scale=1.0, *, parts):
        seen.append((factor, scale, parts))
        return {"a": x * factor * scale, "b": (parts[0] * x, None, 3.0)}

    _, found, _ = steps_of(lambda x: several(x, np.float32([2.0, 3.0]), parts=[tf.constant(1.0)]))
    factor, scale, parts = seen[0]
    assert tf.is_tensor(factor) and scale == 1.0 and len(parts) == 1
    assert tf.is_tensor(found["a"]) and found["b"][1] is None and tf.is_tensor(found["b"][2])


def test_a_method_of_a_layer():
    class Twice(tf.Module):
        def __init__(self):
            self.factor = tf.Variable(2.0)

        @tf.function
        def __call__(self, x):
            self.factor.assign_add(0.0)
            return self.factor * x

    types, _, (y, _) = steps_of(Twice())
    assert not is_call(types) and "AssignAddVariableOp" in types and y == -2.0


@pytest.mark.parametrize("jit_compile", [False, True], ids=["executor", "XLA"])
def test_what_is_compiled_by_itself_stays_so(jit_compile):
    types, _, (y, _) = steps_of(tf.function(tf.exp, jit_compile=True), jit_compile=jit_compile)
    assert is_call(types) != jit_compile
    np.testing.assert_allclose(y, np.exp([1.0, -2.0]).sum(), rtol=1e-5)


def test_a_signature_that_converts_stays():
    function = tf.function(tf.exp, input_signature=[tf.TensorSpec([None])])
    assert is_call(steps_of(function)[0])


def test_an_error_names_the_users_line():
    @tf.function
    def wrong(x):
        return x + tf.ones((3, 5, 7, 2))[0, 0, 0, 0] + tf.ones([5])

    with pytest.raises(ValueError, match="Dimensions must be equal"):
        steps_of(wrong)


def test_no_tensor_of_the_caller_goes_in_or_out():
    """What is hung on a tensor, such as Keras' mask, and what it is watched for, stay with it."""
    seen = []

    @tf.function
    def handed_back(x):
        seen.append(x)
        return x

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            z = handed_back(x)
            tape.watch(z)
            y = x * z
        assert seen[-1] is not x and z is not seen[-1]
        return tape.gradient(y, [x, z])

    with _keras.on_gradients(lambda backward: None):
        dx, dz = step(tf.constant([1.0, 2.0]))
    assert list(dx) == [2.0, 4.0] and list(dz) == [1.0, 2.0]


@pytest.mark.parametrize(
    "make",
    [
        lambda x: tf.data.Dataset.from_tensors(x),
        lambda x: tf.experimental.Optional.from_value(x),
        lambda x: tf.RaggedTensor.from_row_lengths(x, [2]),
        lambda x: tf.sparse.from_dense(x),
    ],
    ids=["dataset", "optional", "ragged", "sparse"],
)
def test_results_that_are_no_tensors(make):
    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            found = tf.function(make)(x)
            assert type(found) is type(make(x))
        return x

    with _keras.on_gradients(lambda backward: None):
        step(tf.constant([1.0, 2.0]))


def test_a_loaded_function_fills_in_its_defaults(tmp_path):
    class Scaled(tf.Module):
        @tf.function
        def scaled(self, x, factor=2.0):
            return factor * x

    module = Scaled()
    module.scaled.get_concrete_function(tf.TensorSpec([2]))
    tf.saved_model.save(module, tmp_path)
    types, _, (y, _) = steps_of(tf.saved_model.load(tmp_path).scaled)
    assert is_call(types) and y == -2.0


def test_a_hook_says_whether_functions_become_part(monkeypatch):
    # A compressed model of another test may be alive.
    monkeypatch.setattr("tf_comptrain._keras.tapes._hooks", [])
    with _keras.on_gradients(lambda backward: None, inlines=lambda: False):
        assert is_call(types_in_a_step())
