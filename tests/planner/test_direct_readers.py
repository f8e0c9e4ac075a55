"""Readers that read a stream itself, what is held beside what is rebuilt, and what a kept tensor takes besides."""

import numpy as np
import pytest

from tf_comptrain.planner import (
    PlanState,
    RebuildOption,
    StreamOption,
    Task,
    TaskGraph,
    Tensor,
    graph_from_json,
)
from tf_comptrain.planner.effects import PHASES, PREPARE, RUN, compile_graph

TASKS = tuple(
    Task(name, name.startswith("back"), 1.0) for name in ("x", "y", "z", "back_mask", "back_y", "back_x")
)
X = Tensor("x", 100, "x", ("y", "back_x"), (StreamOption("plane", 10, 0.1, 0.2),))
Y = Tensor(
    "y",
    80,
    "y",
    ("z", "back_mask", "back_y"),
    (
        StreamOption("plane", 8, 0.1, 0.2, direct=("back_mask",)),
        RebuildOption(("x",), 0.5, held_bytes=3, direct=("back_mask",)),
    ),
    beside_bytes=40,
    beside=("back_mask",),
)
GRAPH = TaskGraph("direct", TASKS, (X, Y))


def levels(label):
    """(PREPARE, RUN) bytes of each backward task with x kept."""
    state = PlanState(compile_graph(GRAPH))
    state.set(next(c for c in state.effects.of_tensor[1] if state.effects.choices[c].label == label))
    live = np.reshape(state.live, (-1, PHASES))
    return [(int(row[PREPARE]), int(row[RUN])) for row in live[3:]], state.measure()[0]


def test_a_direct_reader_finds_nothing_restored():
    assert levels("stream:plane")[0] == [(108, 108), (188, 188), (100, 100)]


def test_a_kept_tensor_takes_more_beside():
    assert levels("keep")[0] == [(180, 220), (180, 180), (100, 100)]


def test_bits_are_held_beside_what_is_rebuilt():
    found, seconds = levels("rebuild:x")
    assert found == [(103, 103), (183, 183), (100, 100)]
    assert seconds == pytest.approx(6.5)


def test_json_has_them():
    assert graph_from_json(GRAPH.to_json()) == GRAPH


def test_unknown_readers():
    wrong = Y._replace(options=(StreamOption("plane", 8, 0.1, 0.2, direct=("x",)),))
    with pytest.raises(
        ValueError, match="option 'stream:plane' of tensor 'y' must name one of the graph's readers of it"
    ):
        compile_graph(GRAPH._replace(tensors=(X, wrong)))
