"""Plain data as JSON with arrays: what goes in comes out, and what is no plain data is refused."""

import math
import operator
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

from tf_comptrain.training import plain_data


class Pair(NamedTuple):
    first: int
    second: object


def twice(x):
    return 2 * x


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        -0.0,
        math.inf,
        "text",
        [1, [2.5]],
        (1, "a"),
        {"a": 1, 2: (3,)},
        Pair(1, [Pair(2, None)]),
    ],
    ids=repr,
)
def test_values_come_back_as_they_were(value):
    found = plain_data.decode(plain_data.encode(value))
    assert repr(found) == repr(value) and type(found) is type(value)


@pytest.mark.parametrize(
    "function", [keras.ops.less, np.less, np.mean, operator.gt, math.sin, max, float, twice, Pair, Pair.count]
)
def test_functions_and_classes_come_back_by_name(function):
    """`monitor_op` of Keras' callbacks is one."""
    code = plain_data.encode(function)
    assert plain_data.decode(code) == function
    assert all(isinstance(part, str) for part in code["name"])


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=">f4").reshape(2, 3),
        np.array(["a", "bcd"]),
        np.array(3, "datetime64[s]"),
        np.zeros((0, 2), bool),
        np.float32(2.5),
        np.ones(2, tf.bfloat16.as_numpy_dtype),
    ],
    ids=lambda array: array.dtype.str,
)
def test_arrays_come_back_with_their_type(array):
    found = plain_data.decode(plain_data.encode(array))
    assert found.dtype == array.dtype and type(found) is type(array)
    np.testing.assert_array_equal(found, array)


def test_tensors_come_back_as_tensors():
    found = plain_data.decode(plain_data.encode(tf.constant([1.0, 2.0], tf.bfloat16)))
    assert isinstance(found, tf.Tensor) and found.dtype == tf.bfloat16
    np.testing.assert_array_equal(found, [1, 2])


@pytest.mark.parametrize(
    "value",
    [
        lambda x: x,
        object(),
        keras.Sequential(),
        math,
        np.array([object()]),
        np.zeros(2, [("a", "f4")]),
        tf.constant(["text"]),
        [1, {"a": object()}],
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_plain_data(value):
    with pytest.raises(TypeError, match="not plain data"):
        plain_data.encode(value)


@pytest.mark.parametrize(
    "code",
    [
        {"name": ["math", "no_such"]},
        {"name": ["no_such_module", "f"]},
        {"name": ["math", "sin.__doc__"]},
        {"name": ["no_such_module", "__class__"]},
        {"name": ["keras.ops"]},
        {"name": 3},
        {"named": ["math", "no_such"], "items": []},
        {"tuple": 3},
        {"array": [1], "scalar": False},
        {"other": 1},
        np.zeros(2),
    ],
    ids=str,
)
def test_what_is_no_code(code):
    with pytest.raises(ValueError, match="is not there|no plain data|no name"):
        plain_data.decode(code)


def test_named_tuples_of_other_fields_are_refused():
    code = plain_data.encode(Pair(1, 2))
    with pytest.raises(TypeError, match="Expected 2 arguments, got 3"):
        plain_data.decode({**code, "items": [1, 2, 3]})


def test_same():
    values = [
        1,
        True,
        1.0,
        "1",
        [1],
        (1,),
        np.ones(2),
        np.ones(2, "f4"),
        np.zeros(2),
        np.ones((2, 1)),
        {"a": 1},
    ]
    codes = [plain_data.encode(value) for value in values]
    again = [plain_data.encode(value) for value in values]
    equal = [[plain_data.same(code, other) for other in again] for code in codes]
    np.testing.assert_array_equal(equal, np.eye(len(values), dtype=bool))
