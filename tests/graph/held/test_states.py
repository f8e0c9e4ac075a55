"""Rows of a table: by name, from trace to trace and from process to process."""

import numpy as np
import pytest
import tensorflow as tf

from tf_comptrain.graph import StateTable
from tf_comptrain.graph.held.states import CAPACITY, TableInStep


def table(*names):
    made = StateTable("states", 2)
    for k, name in enumerate(names):
        made.row(name).assign((k, 10.0 * k))
    return made


def test_a_place_keeps_its_row():
    made = table("a", "b")
    assert made.row("a").index == 0 and made.row("c").index == 2
    assert made.used == 3 and made.names == ["a", "b", "c"]
    np.testing.assert_array_equal(made.row("b").numpy(), (1, 10))


def test_rows_come_back_before_and_after_their_places_are_made():
    values = table("a", "b").values()
    assert values == {"a": [0.0, 0.0], "b": [1.0, 10.0]}
    early, late = StateTable("states", 2), table("b", "x", "a")
    early.put(values)
    late.put(values)
    for made in (early, late):
        np.testing.assert_array_equal(made.row("b").numpy(), (1, 10))
        np.testing.assert_array_equal(made.row("a").numpy(), (0, 0))
    np.testing.assert_array_equal(late.row("x").numpy(), (1, 10))  # as it was
    assert early.used == 2 and late.used == 3


@pytest.mark.parametrize("first", [True, False])
def test_a_model_built_again_has_other_numbers(first):
    values = table("model/dense/MatMul", "model/dense_1/MatMul", "model/dense_1/Split:1").values()
    again = StateTable("states", 2)
    names = ["model_1_1/dense_2/MatMul", "model_1_1/dense_3/MatMul", "model_1_1/dense_3/Split:1"]
    if first:
        again.put(values)
    rows = [again.row(name) for name in names]
    if not first:
        again.put(values)
    assert [row.numpy()[0] for row in rows] == [0, 1, 2]
    assert again.names == names


def test_names_that_are_there_come_before_those_that_are_like_them():
    made = StateTable("states", 2)
    made.put({"MatMul": [1.0, 0.0], "MatMul_1": [2.0, 0.0]})
    assert made.row("MatMul_1").numpy()[0] == 2
    assert made.row("MatMul").numpy()[0] == 1
    assert made.row("MatMul_2").numpy()[0] == 0


def test_a_table_that_is_full_says_so():
    made = StateTable("states", 1)
    rows = [made.row(f"place/{k}a") for k in range(CAPACITY)]
    assert rows[-1].index == CAPACITY - 1
    assert made.is_full_for("another") and not made.is_full_for("place/0a")


@pytest.mark.parametrize("rows", [(1, 2, 3), (0, 70)])
@pytest.mark.parametrize("on_host", [False, True])
def test_a_step_reads_and_writes_the_variable_once(on_host, rows):
    made = table(*map(str, range(80)))

    @tf.function
    def step():
        in_step = TableInStep(made, on_host)
        for row in rows:
            in_step.set(row, in_step.read(row) + 1.0)
        in_step.write()

    before = made.variable.numpy()
    step()
    changed = made.variable.numpy() - before
    np.testing.assert_array_equal(np.flatnonzero(changed[:, 0]), rows)
    operations = step.get_concrete_function().graph.get_operations()
    assert [op.type for op in operations].count("ReadVariableOp") == 1
    assert [op.type for op in operations].count("AssignVariableOp") == 1
    apart = {op.type: op.device for op in operations if op.type in ("Unpack", "Pack", "ConcatV2")}
    assert all(device.endswith("CPU:0") == on_host for device in apart.values())
