"""Arguments that are numbers: what is taken, and what a refusal says."""

import math

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain import arguments, planner


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_integers_are_python_s(value):
    found = arguments.whole("steps", value)
    assert found == 3 and type(found) is int


@pytest.mark.parametrize("value", [2, True, np.True_, 3.0, "3", None, [3], np.array([3, 4])])
def test_what_is_no_integer(value):
    with pytest.raises(
        ValueError, match=r"`steps` must be an integer of at least 3. Do so. Received: .* \(of type"
    ):
        arguments.whole("steps", value, least=3, remedy="Do so.")


@pytest.mark.parametrize("value", [1, 0.5, np.float32(0.5), np.int32(1)])
def test_numbers_are_python_s(value):
    found = arguments.real("margin", value, above=0, most=1)
    assert found == value and type(found) is float


@pytest.mark.parametrize("value", [0, 1.5, 10**400, math.inf, math.nan, True, "0.5", None, 1j])
def test_what_is_no_number_within_limits(value):
    with pytest.raises(ValueError, match="`margin` must be a number above 0 and of at most 1. Received"):
        arguments.real("margin", value, above=0, most=1)


@pytest.mark.parametrize("value", [2 * 10**9, 2e9, np.float64(2e9), "2GB", "2000 mb", "2000000000"])
def test_bytes(value):
    found = arguments.size_in_bytes("limit", value)
    assert found == 2 * 10**9 and type(found) is int


@pytest.mark.parametrize(
    "value", ["two", "", "-2GB", "0", 0, -1, 10**400, math.inf, math.nan, True, None, b"2GB"]
)
def test_what_is_no_number_of_bytes(value):
    with pytest.raises(ValueError, match='`limit` must be bytes: .* such as "2GB" .* Received'):
        arguments.size_in_bytes("limit", value)


def test_limits_are_taken_as_text():
    held = tf.random.normal((100_000,)) + 1.0
    with (
        pytest.raises(ValueError, match="`limit_bytes` must be above .* Received: 100000"),
        ct.memory.limit("100kB"),
    ):
        tf.reduce_sum(held)
    with ct.memory.limit("900GB"):
        tf.constant(1.0)
    assert ct.AdaptiveBatchSize("1.5GB").limit_bytes == 1_500_000_000
    with pytest.raises(ValueError, match="`limit_bytes` must be bytes"):
        ct.find_max_batch_size("models:build", limit_bytes="all")


def test_error_bounds_are_numbers_of_any_kind():
    assert ct.ErrorBound.parse(np.float32(0.5)) == ct.ErrorBound(0.5, relative=False)
    with pytest.raises(TypeError, match="`ErrorBound.value` must be a number"):
        ct.ErrorBound("0.1")
    for relative in ("yes", 1, None):
        with pytest.raises(TypeError, match="`ErrorBound.relative` must be True or False. Received"):
            ct.ErrorBound(0.1, relative=relative)
    with pytest.raises(ValueError, match="`ErrorBound.relative_to` must be"):
        ct.ErrorBound(0.1, relative_to=["sigma"])
    for value in (float("nan"), float("inf"), 0, -0.1, 1e37):
        for relative in (False, True):
            with pytest.raises(ValueError, match="`ErrorBound` must be a number between.*Received: "):
                ct.ErrorBound(value, relative)
        with pytest.raises(ValueError, match="`error_bound` must be a number between"):
            ct.ErrorBound.parse(value)
        with pytest.raises(ValueError, match="`error_bound` must be a number between"):
            ct.ErrorBound.parse(ct.ErrorBound(0.1)._replace(value=value))


def test_a_limit_that_is_missing_is_named():
    with pytest.raises(ValueError, match="`limit_bytes` is missing.*'8GB'"):
        ct.AdaptiveBatchSize()


def test_json_of_endless_brackets_is_an_error(tmp_path):
    (tmp_path / "policy.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="must be JSON"):
        planner.graph_from_json("[" * 100_000)
    with pytest.raises(ValueError, match="`policy` must be a JSON file"):
        ct.Policy.from_json(tmp_path / "policy.json")


def test_a_policy_that_is_not_there_is_named(tmp_path):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    for path, error in ((tmp_path / "none.json", FileNotFoundError), (tmp_path, IsADirectoryError)):
        with pytest.raises(error, match=f"`policy` must be a file, which.*{path}"):
            ct.compress_model(model, policy=path)


def test_a_network_too_small_for_a_choice_is_planned_as_it_is():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse", jit_compile=False)
    plan = ct.plan(model, 8, memory="1GB")
    assert plan.feasible and not plan.rows
