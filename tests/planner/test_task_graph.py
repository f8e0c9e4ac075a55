"""Task graphs as data: JSON both ways, and one clear error for each mistake."""

import json

import pytest
from planner.graphs import chain
from synthetic import KINDS, network

from tf_comptrain.planner import RebuildOption, Segment, graph_from_json
from tf_comptrain.planner.task_graph import check_graph


@pytest.mark.parametrize("kind", KINDS)
def test_json_both_ways(kind, tmp_path):
    graph = network(kind, 30)
    path = tmp_path / "graph.json"
    path.write_text(graph.to_json())
    assert graph_from_json(path) == graph_from_json(graph.to_json()) == graph


def changed(**fields):
    """The chain's JSON object with fields of its first task, tensor or option changed; None removes a field."""
    value = json.loads(chain().to_json())
    parts = {
        "graph": value,
        "task": value["tasks"][0],
        "tensor": value["tensors"][0],
        "stream": value["tensors"][0]["options"][0],
        "segment": value["segments"][0],
    }
    for name, item in fields.items():
        part, field = name.split("__")
        parts[part][field] = item
        if item is None:
            del parts[part][field]
    return value


MISTAKES = {
    "task__duration_s": (-1.0, "`duration_s of task 'f0'` must be a number of at least 0"),
    "task__backward": (True, "must have the forward pass first"),
    "task__speed": (3, "may have only the fields"),
    "tensor__bytes": ("big", "`bytes of tensor 'x0'` must be an integer"),
    "tensor__producer": ("f9", "must name one of the graph's tasks"),
    "tensor__readers": (["f0"], "must run after its producer"),
    "tensor__name": ("x1", "names of their own. Received: 'x1' twice"),
    "stream__kind": ("zip", "must be one of stream, rebuild, offload"),
    "stream__encode_s": (None, "must have encode_s"),
    "stream__decode_s": (float("nan"), "must be a number of at least 0"),
    "segment__sources": (["x1"], "must lie outside of it"),
    "segment__slices": (2, "must be named, since it runs in slices"),
    "graph__tasks": ({}, "`tasks` must be a list"),
    "graph__batch": (0, "`batch` must be an integer of at least 1"),
}


@pytest.mark.parametrize("field", MISTAKES)
def test_mistakes(field):
    value, message = MISTAKES[field]
    with pytest.raises(ValueError, match=message) as caught:
        graph_from_json(changed(**{field: value}))
    assert "Received" in str(caught.value)


def test_no_json():
    with pytest.raises(ValueError, match="must be JSON"):
        graph_from_json("{tasks")


def test_a_tensor_is_not_rebuilt_from_itself():
    graph = chain()
    tensor = graph.tensors[0]._replace(options=(RebuildOption(("x0",), 1.0),))
    with pytest.raises(ValueError, match="must be other tensors"):
        check_graph(graph._replace(tensors=(tensor, *graph.tensors[1:])))


def test_a_segment_that_nothing_reads():
    graph = chain()
    with pytest.raises(ValueError, match="must have one that the backward pass reads"):
        check_graph(graph._replace(segments=(Segment("dead", ("d1",), ("x0",), 1.0),)))
