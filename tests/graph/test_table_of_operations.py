"""Each row of the table of operations against the operation, and TensorFlow's registry against the table."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from kept_operations import KEPT
from operation_samples import SAMPLES
from tensorflow.core.framework import types_pb2
from tensorflow.python.framework import op_def_registry, ops

from tf_comptrain.graph import operations
from tf_comptrain.graph.operations import EVERY, TABLE, about

PACKAGE = Path(operations.__file__).parents[1]

# Rows say what any device reads. A CPU's kernels do without these: they find the maximum in the input, or are given its
# place; the last is what cuDNN holds for its gradient.
UNREAD = {
    ("MaxPool", operations.OUTPUT), ("MaxPoolWithArgmax", 0), ("FusedBatchNormV3", -6),
    ("MaxPoolGrad", 1), ("MaxPoolGradWithArgmax", 0),
}  # fmt: skip
# Where a gradient has no bound, beside zero and far from it.
POLES = {"Log1p": -1.0, "Tan": np.pi / 2}
Values = dict[int, np.ndarray]


def far(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def first(made: Any) -> np.ndarray:
    return np.asarray(made[0] if isinstance(made, (list, tuple)) else made)


def run(name: str, values: Values) -> np.ndarray:
    """The first result of a type's operation, with these values of its inputs."""
    function, *_ = SAMPLES[name]
    return np.asarray(first(function(*map(tf.constant, values.values()))), np.float64)


def values_of(name: str) -> Values:
    _, values, numbers = SAMPLES[name]
    return dict(zip(numbers, values))


# --- What a row says that is needed of a tensor ----------------------------------------------------------------------


def holds(result: Callable[[Values], np.ndarray], values: Values, number: int, need: str, name: str) -> None:
    """Checks what an error of one value does to a result."""
    value = values[number]
    plain = result(values)

    def of(other: np.ndarray) -> np.ndarray:
        return result({**values, number: other.astype(value.dtype)})

    if need == operations.EXACT:  # it is read, and no error of it is known to be small
        assert not far(of(~value if value.dtype == bool else value + 1), plain) <= 0.01  # no number, maybe
    elif need == operations.UNBOUNDED:
        near, one, at_large = (
            np.abs(of(np.full_like(value, x))).max() for x in (POLES.get(name, 0.0) + 1e-3, 1.0, 1e3)
        )
        assert near > 100 * one or at_large > 1e4 * one  # a pole, or more than in proportion
    elif need == operations.SIZE:
        np.testing.assert_array_equal(of(value + 1), plain)
    elif need == operations.SIGN:
        np.testing.assert_array_equal(of(np.where(value > 0, 3.0, -2.0)), plain)
        assert far(of(-value), plain) > 0.1
    elif need == operations.WINDOW:
        # The order within a window is all that is read of the values: another of the same order does as well.
        needs = {**(about(name).gradient or {}), **about(name).reads}
        others = {
            n: 2 * x + 1 if needs.get(n) == operations.WINDOW and x.dtype == np.float32 else x
            for n, x in values.items()
        }
        np.testing.assert_array_equal(result(others), plain)
        assert far(of(np.flip(value, 1)), plain) > 0.1 or (name, number) in UNREAD
    else:
        error = np.random.default_rng(0).uniform(-0.01, 0.01, value.shape)
        once, twice = (of(value + k * error) - plain for k in (1, 2))
        assert np.linalg.norm(once) > 0
        # In proportion, where the result is linear in it; nearly so, where it is smooth.
        is_linear = need in (operations.LINEAR, operations.CONVOLUTION)
        assert far(twice, 2 * once) < (1e-3 if is_linear else 0.1)
        assert np.linalg.norm(once) < 0.1 * np.linalg.norm(plain)


def reads() -> list[tuple[str, int, str]]:
    """(operation, number of an input, what it needs of it as an operation of the backward pass)."""
    return [
        (name, number, row.need(number))
        for name, row in TABLE.items()
        if row.reads
        for number in values_of(name)
        if EVERY in row.reads or number in row.reads
    ]


@pytest.mark.parametrize(("name", "number", "need"), reads())
def test_an_error_does_to_the_result_what_the_row_says(name, number, need):
    holds(functools.partial(run, name), values_of(name), number, need, name)


class Gradient:
    """The registered gradient of a type's operation, as a function of the operation's inputs and outputs."""

    def __init__(self, name: str):
        function, values, numbers = SAMPLES[name]
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.given = {n: tf.compat.v1.placeholder(v.dtype, v.shape) for n, v in zip(numbers, values)}
            function(*self.given.values())
            op = next(op for op in reversed(self.graph.get_operations()) if op.type == name)
            self.of: dict[int, tf.Tensor] = {
                **{n: op.inputs[n] for n in numbers if op.inputs[n].dtype in (tf.float32, tf.bool)},
                **{-1 - n: t for n, t in enumerate(op.outputs)},
            }
            rng = np.random.default_rng(1)
            dys = [
                tf.constant(rng.normal(size=t.shape), t.dtype)
                if n == 0 and t.dtype.is_floating
                else tf.zeros_like(t)
                for n, t in enumerate(op.outputs)
            ]
            made = ops.get_gradient_function(op)(op, *dys)
            made = made if isinstance(made, (list, tuple)) else [made]
            made = [getattr(gradient, "values", gradient) for gradient in made if gradient is not None]
            self.made = [tf.reshape(gradient, [-1]) for gradient in made if gradient.dtype.is_floating]
        with tf.compat.v1.Session(graph=self.graph) as session:
            self.values: Values = session.run(self.of, dict(zip(self.given.values(), values)))

    def __call__(self, values: Values) -> np.ndarray:
        with tf.compat.v1.Session(graph=self.graph) as session:
            made = session.run(self.made, {self.of[n]: value for n, value in values.items()})
        return np.concatenate([np.asarray(each, np.float64) for each in made]) if made else np.zeros(0)


def poisoned(value: np.ndarray) -> np.ndarray:
    if value.dtype == bool:
        return ~value
    return np.full_like(value, np.nan) if value.dtype.kind == "f" else np.zeros_like(value)


def differentiable() -> list[str]:
    return [
        name for name, row in TABLE.items() if row.gradient is not None and _gradient_of(name) is not None
    ]


def _gradient_of(name: str) -> Any:
    try:
        return ops._gradient_registry.lookup(name)
    except LookupError:
        return None


@pytest.mark.parametrize("name", differentiable())
def test_a_gradient_reads_what_the_row_says(name):
    """What is not needed is replaced by no number at all, and the gradient stays what it was."""
    gradient, row = Gradient(name), about(name)
    plain = gradient(gradient.values)
    assert set(row.gradient) <= set(gradient.of)
    for number, value in gradient.values.items():
        need = row.gradient.get(number, operations.SIZE)
        found = gradient({**gradient.values, number: poisoned(value)})
        is_read = not np.array_equal(found, plain)
        assert is_read == (need != operations.SIZE and (name, number) not in UNREAD), (number, need)
        if is_read:
            holds(gradient, gradient.values, number, need, name)


def test_what_has_no_gradient_needs_nothing():
    without = [name for name, row in TABLE.items() if row.gradient is not None and _gradient_of(name) is None]
    assert without and not any(about(name).gradient for name in without)


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.gradient_of])
def test_a_gradient_operation_needs_what_the_gradient_does(name):
    row = about(name)
    assert set(row.reads.values()) == set(about(row.gradient_of).gradient.values())


def test_what_is_not_in_the_table_is_not_known():
    assert about("MadeUp").need(0) == operations.UNKNOWN and not about("MadeUp").again


# --- What else a row says --------------------------------------------------------------------------------------------


def independent(name: str, shape: tuple[int, ...]) -> Iterator[tuple[int, bool]]:
    """Axes of the result along which the rows are independent; whether inputs are broadcast to it."""
    rows, rank = about(name).rows, len(shape)
    if rows in (operations.EVERY_AXIS, operations.OTHER_AXES):
        yield from ((axis, True) for axis in range(rank) if rows == operations.EVERY_AXIS or shape[axis] == 6)
    else:
        last = 1 if rows == operations.FIRST_AXIS else rank - 1
        yield from ((axis, False) for axis in range(last))


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.rows])
def test_rows_are_independent(name):
    values = values_of(name)
    plain = run(name, values)
    only_first = about(name).rows == operations.ROWS_OF_FIRST
    checked, has_changed = 0, False
    for axis, is_broadcast in independent(name, plain.shape):
        for number, value in values.items():
            at = axis - (plain.ndim - value.ndim if is_broadcast else 0)
            fits = 0 <= at < value.ndim and value.shape[at] == plain.shape[axis] > 1
            if not fits or value.dtype.kind not in "bf" or only_first and number != 0:
                continue
            other = np.moveaxis(value.copy(), at, 0)
            other[0] = ~other[0] if value.dtype == bool else 0.5 - other[0]
            found = np.moveaxis(run(name, {**values, number: np.moveaxis(other, 0, at)}), axis, 0)
            expected = np.moveaxis(plain, axis, 0)
            np.testing.assert_allclose(found[1:], expected[1:], rtol=1e-5, atol=1e-6)
            checked, has_changed = checked + 1, has_changed or not np.array_equal(found[0], expected[0])
    assert checked
    assert has_changed or about(name).kind == operations.BLANK or name in ("IsFinite", "IsInf", "IsNan")


@pytest.mark.parametrize("name", [n for n, row in TABLE.items() if row.again == operations.LINEAR])
def test_an_error_passes_in_proportion_where_the_row_says_so(name):
    values, exact = values_of(name), about(name).exact
    plain = run(name, values)
    for number, value in values.items():
        if value.dtype.kind == "f" and number not in exact:
            error = np.random.default_rng(0).uniform(-0.02, 0.02, value.shape).astype("f4")
            once, twice = (run(name, {**values, number: value + k * error}) - plain for k in (1, 2))
            assert far(twice, 2 * once) < 3e-3 or not (once.any() or twice.any())


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.is_verbatim])
def test_what_moves_values_makes_no_others(name):
    given = np.abs(np.concatenate([np.ravel(value) for value in values_of(name).values()]))
    limits = [limit for limit in about(name).limits or () if np.isfinite(limit)]
    assert np.isin(np.abs(run(name, values_of(name))), [*given, 0.0, *limits]).all()


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.is_alias or row.is_move])
def test_what_moves_all_values_loses_none(name):
    (value,) = values_of(name).values()
    made = run(name, values_of(name))
    in_order = about(name).kind != operations.MOVE
    np.testing.assert_array_equal(*(np.ravel(x) if in_order else np.sort(x, None) for x in (made, value)))


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.broadcasts])
def test_what_broadcasts_makes_of_a_part_what_is_broadcast(name):
    (number, value), *others = values_of(name).items()
    narrow, wide = ({number: x, **dict(others)} for x in (value[:1], np.broadcast_to(value[:1], value.shape)))
    np.testing.assert_array_equal(np.broadcast_to(run(name, narrow), value.shape), run(name, wide))


@pytest.mark.parametrize("name", [n for n, row in TABLE.items() if row.least is not None or row.saturates])
def test_functions_stay_above_their_least_value_and_within_their_bounds(name):
    row, values = about(name), values_of(name)
    for scale in (1.0, 1e3):
        made = run(name, {number: scale * value for number, value in values.items()})
        assert row.least is None or made.min() >= row.least
        assert not row.saturates or np.abs(made).max() <= 1.0


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.is_small and not row.is_free])
def test_small_results_are_smaller_than_what_is_read(name):
    largest = max(value.size for value in values_of(name).values())
    assert run(name, values_of(name)).size < largest


def _definition(name: str) -> Any:
    return op_def_registry.get(name)


def test_what_runs_again_has_no_state_and_no_chance():
    rows = {name: row for name, row in TABLE.items() if row.again}
    assert rows and not any(_definition(name).is_stateful for name in rows)
    chance = {name for name, row in TABLE.items() if row.kind == operations.RANDOM}
    assert chance and chance.isdisjoint(rows)


def test_every_row_is_of_an_operation_that_exists():
    assert not [name for name in TABLE if _definition(name) is None]


def test_every_row_that_says_something_of_values_has_a_sample():
    said = {name for name, row in TABLE.items() if row.gradient is not None or row.reads or row.rows}
    assert {name for name in said if not about(name).is_free} == set(SAMPLES)


MODULES = [path for path in PACKAGE.rglob("*.py") if path.name != "operations.py"]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_other_module_lists_operations(path):
    """What holds of a type of operation stands in its row: lists beside the table would come to disagree with it."""
    for node in ast.walk(ast.parse(path.read_text())):
        listed = getattr(node, "elts", None) or getattr(node, "keys", None) or ()
        named = [each.value for each in listed if isinstance(each, ast.Constant) and each.value in TABLE]
        assert len(named) <= 3, f"{path}:{node.lineno} lists {', '.join(named)}: give their rows a property"


# --- TensorFlow's registry -------------------------------------------------------------------------------------------


def _takes_numbers(definition: Any) -> bool:
    """Whether an operation takes floating-point tensors."""
    attributes: Mapping[str, Any] = {attr.name: attr for attr in definition.attr}
    for argument in definition.input_arg:
        types = [argument.type] if argument.type else []
        for name in (argument.type_attr, argument.type_list_attr):
            if name:
                types += attributes[name].allowed_values.list.type or [types_pb2.DT_FLOAT]
        if types_pb2.DT_FLOAT in types:
            return True
    return False


def registered() -> set[str]:
    """TensorFlow's operations that take floating-point tensors and have a gradient."""
    names = (name for name in ops._gradient_registry.list() if not name.startswith("Comptrain>"))
    return {
        name
        for name in names
        if (definition := _definition(name)) and _takes_numbers(definition) and _gradient_of(name) is not None
    }


def test_every_operation_with_a_gradient_is_in_the_table_or_kept_on_purpose():
    checked = {name for name in differentiable() if name in registered()}
    kept = {name for names, _ in KEPT for name in names.split()}
    assert len(checked) > 100
    assert not checked & kept, "both in the table with a gradient, and kept on purpose"
    missing = registered() - checked - kept
    assert not missing, (
        "give each a row with a gradient in graph/operations.py, or a reason in kept_operations.py"
    )
    assert not kept - registered(), "not among TensorFlow's operations with a gradient"


def test_what_is_kept_on_purpose_is_kept():
    for names, _ in KEPT:
        for name in names.split():
            row = about(name)
            assert row.gradient is None
