"""When what waits outside of the device's memory is on its way: how much at once, and two tensors before its reader."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import tensorflow as tf

from tf_comptrain import _keras, native
from tf_comptrain.graph.tensors import plain_bytes
from tf_comptrain.storage import Offloaded

_AHEAD = 2  # buffers that are filled while a reader runs


def order_copies(backward: _keras.BackwardPass, offloaded: Sequence[Offloaded]) -> None:
    """Lets the forward pass wait for room in flight, and what comes back begin with an earlier reader.

    Args:
      backward: The pass, rewired; its fetches wait for their readers' incoming gradients.
      offloaded: What waits, fetched or not.
    """
    if any(each.fetches for each in offloaded):
        _limit_in_flight(backward, [each for each in offloaded if each.on_host])
        _read_ahead(backward, offloaded)


def _limit_in_flight(backward: _keras.BackwardPass, on_host: Sequence[Offloaded]) -> None:
    """Has what reads a tensor wait for the copies to the host of those before it, but for the last few.

    The host enqueues operations faster than a GPU runs them, and their outputs with them: without a limit it would set
    aside memory for the whole forward pass. A file's own threads count what is in flight.
    """
    places = {op.name: place for place, op in enumerate(backward.graph.get_operations())}
    waiting: list[Offloaded] = []
    in_flight = 0
    for each in sorted(on_host, key=lambda one: places[one.x.op.name]):
        waiting.append(each)
        in_flight += plain_bytes(each.x)
        done = []
        while in_flight > each.inflight and len(waiting) > 1:
            first = waiting.pop(0)
            in_flight -= plain_bytes(first.x)
            done.append(first.handle.op)
        for op in each.passed if done else ():
            _keras.wait_for(op, done)


def _read_ahead(backward: _keras.BackwardPass, offloaded: Sequence[Offloaded]) -> None:
    """Lets the reading of each tensor begin with the reader of the tensor two before it."""
    places = _places(backward)
    fetches = []
    for each in offloaded:
        in_order = sorted((places[op.name], op) for op in each.fetches if op.name in places)
        if in_order:
            # What the first reader waits for, as it is now: another operation may stand in for that of the tape.
            fetches.append((in_order[0][0], in_order[0][1].control_inputs, in_order, each))
    fetches.sort(key=lambda item: item[0])
    for (_, gates, _, _), (_, _, in_order, each) in zip(fetches, fetches[_AHEAD:]):
        # In one order of all operations the gate comes before its fetch, and that before those of the later tensor:
        # no circle closes.
        with tf.device(each.handle.op.device), tf.control_dependencies(gates):
            coming = native.ops().comptrain_read_ahead(each.handle)
        for _, fetch in in_order:
            _keras.set_input(fetch, 0, coming)
        if each.on_host:
            # The copy to the device begins as soon as there is something to copy.
            _keras.wait_for_nothing(in_order[0][1])


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
