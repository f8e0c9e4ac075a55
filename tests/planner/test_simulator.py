"""The simulator: against a slow reference, against figures worked out by hand, and changed step by step."""

import random

import numpy as np
import pytest
from planner.graphs import chain, label_state, reference
from synthetic import KINDS, network

from tf_comptrain.planner import Waste
from tf_comptrain.planner.effects import compile_graph
from tf_comptrain.planner.simulator import PlanState


def test_kept_chain_by_hand():
    """At the turn all four tensors are live, then x3's gradient maker has its workspace: 50 + 4 * 100 + 100 + 10."""
    step_s, peak = label_state(chain(), {}).measure()
    assert step_s == 4 * 1 + 4 * 2
    assert peak == 50 + 4 * 100 + 100 + 10


def test_stream_by_hand():
    step_s, _ = label_state(chain(), {"x0": "stream:plane"}).measure()
    assert step_s == 12 + 0.25 + 0.125


def test_rebuilding_from_a_stream_decodes_it():
    """x1 is rebuilt for b2, where x0's own reader is b1: x0 is decoded twice."""
    state = label_state(chain(), {"x0": "stream:plane", "x1": "rebuild:x0"})
    assert state.measure()[0] == 12 + (0.25 + 2 * 0.125) + 1.0


@pytest.mark.parametrize("seed", range(20))
def test_against_the_reference(seed):
    graph = chain(6, offload=False, segment=False)
    draw = random.Random(seed)
    labels, rebuilt = {}, False
    for tensor in graph.tensors[:6]:
        offered = [
            "keep",
            *(o.label for o in tensor.options if not (rebuilt and o.label.startswith("rebuild"))),
        ]
        labels[tensor.name] = draw.choice(offered)
        rebuilt = labels[tensor.name].startswith("rebuild")  # a source has to be held
    assert label_state(graph, labels).measure() == pytest.approx(reference(graph, labels))


def test_what_is_not_held_serves_nobody():
    state = label_state(chain(), {"x1": "rebuild:x0", "x2": "rebuild:x1"})
    assert state.unserved == 1
    state.set(1)  # keeps x1
    assert state.unserved == 0


def test_a_segment_holds_its_input_only():
    """Before b3 the block runs again: there are x0, the two tensors inside, the output x3 and the scratch memory."""
    state = label_state(chain(), {"x1": "segment:block"})
    before_b3 = 3 * 4
    assert state.live[before_b3] == 100 + 2 * 100 + 100 + 7
    assert state.measure()[0] == 12 + 2
    state.set(2)  # keeping x2 dissolves it
    assert state.chosen[:4] == [0, 1, 2, 3]


def test_slices_divide_a_block():
    """While b3 runs: x0; of x1, x2, d3, d4 and the workspace a quarter; what enters and leaves the block, d5 and d1."""
    state = label_state(chain(6, slices=4), {"x1": "segment:block"})
    in_b3 = 3 * 8 + 1
    assert state.live[in_b3] == 100 + 4 * 25 + 10 / 4 + 2 * 100


def test_offload_by_hand():
    """x0 is copied in seconds 1 to 2.5 and needed at second 10 of 12: back from 8.5 on, nobody waits."""
    simulation = label_state(chain(), {"x0": "offload"}).simulate()
    copies = {
        event.queue: (event.start_s, event.end_s) for event in simulation.events if event.kind == "copy"
    }
    assert copies["copy out"] == (1.0, 2.5)
    assert copies["copy in"][1] <= 8.0
    assert simulation.step_s == 12


def test_the_stream_of_a_tensor_is_offloaded():
    """Encoded after f0, decoded before b1: beside the computation it takes a quarter of the copy, and nothing stays."""
    state = label_state(chain(offload="stream"), {"x0": "offload"})
    stream = label_state(chain(offload="stream"), {"x0": "stream:plane"})
    assert state.measure()[0] == pytest.approx(stream.measure()[0])
    levels, _ = state.levels()
    in_f3, in_b1 = 3 * 3 + 1, 3 * 6 + 1
    assert levels[in_f3] == stream.live[in_f3] - 25
    assert levels[in_b1] == stream.live[in_b1]
    events = [(event.queue, event.kind) for event in state.simulate().events if event.name == "x0"]
    assert events == [("compute", "encode"), ("copy out", "copy"), ("copy in", "copy"), ("compute", "decode")]


def test_computation_waits_for_a_slow_link():
    """Three copies of 1.5 s each way: the last out ends at 5.5, so that its copy in cannot serve b3 at 4 s + 2 s."""
    simulation = label_state(chain(), {"x0": "offload", "x1": "offload", "x2": "offload"}).simulate()
    assert simulation.step_s > 12
    ends = [event.end_s for event in simulation.events if event.queue == "compute"]
    assert max(ends) == simulation.step_s
    for name in ("x0", "x1", "x2"):
        back = next(e.end_s for e in simulation.events if e.queue == "copy in" and e.name == name)
        reader = f"b{int(name[1]) + 1}"
        assert back <= next(e.start_s for e in simulation.events if e.name == reader) + 1e-9


def test_memory_counts_what_a_link_has_not_moved():
    slow = label_state(chain(), {"x0": "offload"})
    levels, waiting = slow.levels()
    assert waiting and levels.max() >= slow.live.max()
    assert levels.sum() > slow.live.sum()


@pytest.mark.parametrize("kind", KINDS)
def test_changes_and_their_undoing(kind):
    """A state changed a thousand times equals one that is made anew, and goes back to where it was."""
    effects = compile_graph(network(kind, 60))
    state, draw = PlanState(effects), random.Random(1)
    first = state.live.copy()
    for _ in range(1000):
        before = state.chosen[:]
        undo = state.set(draw.randrange(len(effects.choices)))
        if draw.random() < 0.5:
            for choice in undo:
                state.set(choice)
            assert state.chosen == before
    fresh = PlanState(effects)
    fresh.set_all(state.chosen)
    assert fresh.chosen == state.chosen
    assert fresh.unserved == state.unserved
    np.testing.assert_allclose(fresh.live, state.live, atol=1)
    assert fresh.measure() == pytest.approx(state.measure())
    state.restore(range(len(state.chosen)))
    np.testing.assert_allclose(state.live, first, atol=1)


def test_waste():
    plain = label_state(chain(), {}).measure()[1]
    wasted = label_state(chain(), {}, waste=Waste(1.5, 30)).measure()[1]
    assert wasted == 50 + 1.5 * (plain - 50) + 30
