"""When what waits in a file begins to come back: two tensors before its reader."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import tensorflow as tf

from tf_comptrain import _keras, native
from tf_comptrain.storage import Spilled

_AHEAD = 2  # buffers that are filled while a reader runs


def read_ahead(backward: _keras.BackwardPass, spilled: Sequence[Spilled]) -> None:
    """Lets the reading of each tensor begin with the reader of the tensor two before it.

    Args:
      backward: The pass, rewired; its fetches wait for their readers' incoming gradients.
      spilled: What waits, fetched or not.
    """
    if not any(each.fetches for each in spilled):
        return
    places = _places(backward)
    fetches = [
        (sorted((places[op.name], op) for op in each.fetches if op.name in places), each.handle)
        for each in spilled
    ]
    in_turn = sorted((each for each in fetches if each[0]), key=lambda each: each[0][0][0])
    for (earlier, _), (later, handle) in zip(in_turn, in_turn[_AHEAD:]):
        # In one order of all operations the gate comes before its fetch, and that before those of the later tensor:
        # no circle closes.
        # Of the fetch as it is now: another operation may stand in for the one that it was made with.
        gates = earlier[0][1].control_inputs
        with tf.device(handle.op.device), tf.control_dependencies(gates):
            coming = native.ops().comptrain_read_ahead(handle)
        for _, fetch in later:
            _keras.set_input(fetch, 0, coming)


def _places(backward: _keras.BackwardPass) -> dict[str, int]:
    """An order that the backward pass could run in, near that in which it was made: by name the place."""
    operations = backward.graph.get_operations()
    numbers = {op.name: number for number, op in enumerate(operations[backward.start :], backward.start)}
    later: dict[str, list[str]] = {name: [] for name in numbers}
    missing: dict[str, int] = {}
    for op in operations[backward.start :]:
        before = {
            other.name for other in (*(t.op for t in op.inputs), *op.control_inputs) if other.name in numbers
        }
        missing[op.name] = len(before)
        for name in before:
            later[name].append(op.name)
    # What the rewiring has made comes right after what it waits for.
    rank = {name: (number if number < backward.stop else backward.start) for name, number in numbers.items()}
    ready = [(rank[name], numbers[name], name) for name, count in missing.items() if not count]
    heapq.heapify(ready)
    places: dict[str, int] = {}
    while ready:
        current, _, name = heapq.heappop(ready)
        places[name] = len(places)
        for after in later[name]:
            rank[after] = max(rank[after], current)
            missing[after] -= 1
            if not missing[after]:
                heapq.heappush(ready, (rank[after], numbers[after], after))
    return places
