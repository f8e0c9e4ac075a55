"""When what waits outside of the device's memory is on its way: how much at once, in which order, two tensors ahead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from tf_comptrain import _keras, native
from tf_comptrain.graph.operations import about
from tf_comptrain.graph.order import edges
from tf_comptrain.graph.tensors import plain_bytes, readers_of
from tf_comptrain.storage import Offloaded

_AHEAD = 2  # buffers that are filled while a reader runs


def order_copies(backward: _keras.BackwardPass, offloaded: Sequence[Offloaded]) -> list[Offloaded]:
    """Lets the forward pass wait for room in flight, and what comes back begin with an earlier reader.

    Args:
      backward: The pass, rewired; its fetches wait for their readers' incoming gradients.
      offloaded: What waits, fetched or not.

    Returns:
      What stays on the device after all: beside a GPU what is made last and read first would still be on its way out
      when it is asked back. Of a file's tensors such stay by themselves.
    """
    if not any(each.fetches for each in offloaded):
        return []
    places = _places(backward)
    coming = _in_order(offloaded, places)
    _read_ahead(coming, places)
    numbers = {op.name: number for number, op in enumerate(backward.graph.get_operations())}
    on_host = [item for item in coming if item.offloaded.on_host]
    as_made = sorted(on_host, key=lambda item: numbers[item.offloaded.x.op.name])
    staying = [item for item in on_host[:_AHEAD] if item in as_made[-_AHEAD:]]
    _read_in_place(staying)
    _limit_in_flight([item.offloaded for item in as_made if item not in staying])
    return [item.offloaded for item in staying]


def _limit_in_flight(on_host: Sequence[Offloaded]) -> None:
    """Has what reads a tensor wait for the copies to the host of those before it, but for the last few.

    The host enqueues operations faster than a GPU runs them, and their outputs with them: without a limit it would set
    aside memory for the whole forward pass. A file's own threads count what is in flight.

    Args:
      on_host: What moves there, in the order of the forward pass.
    """
    waiting: list[Offloaded] = []
    in_flight = 0
    for each in on_host:
        waiting.append(each)
        in_flight += plain_bytes(each.x)
        done = []
        while in_flight > each.inflight and len(waiting) > 1:
            first = waiting.pop(0)
            in_flight -= plain_bytes(first.x)
            done.append(first.handle.op)
        for op in each.passed if done else ():
            _keras.wait_for(op, done)


def _in_order(offloaded: Sequence[Offloaded], places: Mapping[str, int]) -> list[_Coming]:
    """What comes back, by its first reader."""
    coming: list[_Coming] = []
    for each in offloaded:
        in_order = sorted((places[op.name], op) for op in each.fetches if op.name in places)
        if in_order:
            coming.append(_Coming(*in_order[0], [op for _, op in in_order], each))
    return sorted(coming, key=lambda item: item.place)


def _read_ahead(coming: Sequence[_Coming], places: Mapping[str, int]) -> None:
    """Brings what waits back in one order of all operations, each beginning with the reader of the tensor two before.

    In that order every operation that is made to wait comes after what it waits for: no circle closes.
    """
    for before, item in zip(coming, coming[1:]):
        # Of two branches one ends before the tensors of the other are there. Beside a GPU the copy back would wait
        # with them, which is to begin early.
        readers = [op for fetch in before.fetches for op in _readers(fetch)]
        readers = [op for op in readers if places.get(op.name, item.place) < item.place]
        if readers and not item.offloaded.on_host:
            _keras.wait_for(item.first, readers)
    # What the first readers wait for, as it is now: another operation may stand in for that of the tape.
    gates = [item.first.control_inputs for item in coming]
    for its_gates, item in zip(gates, coming[_AHEAD:]):
        with tf.device(item.offloaded.handle.op.device), tf.control_dependencies(its_gates):
            handle = native.ops().comptrain_read_ahead(item.offloaded.handle)
        for fetch in item.fetches:
            _keras.set_input(fetch, 0, handle)
        if item.offloaded.on_host:
            # The copy to the device begins as soon as there is something to copy.
            _keras.wait_for_nothing(item.first)


def _read_in_place(staying: Iterable[_Coming]) -> None:
    """Has the readers of what would come back read it where it is."""
    for item in staying:
        for fetch in item.fetches:
            with tf.device(item.offloaded.x.device), tf.control_dependencies(fetch.control_inputs):
                value = tf.identity(item.offloaded.value)
            for reader, index in readers_of(fetch.outputs[0]):
                _keras.set_input(reader, index, value)


class _Coming(NamedTuple):
    """What comes back.

    Attributes:
      place: Of the first fetch.
      first: That fetch.
      fetches: All, in order.
      offloaded: What they fetch.
    """

    place: int
    first: tf.Operation
    fetches: list[tf.Operation]
    offloaded: Offloaded


def _readers(fetch: tf.Operation) -> list[tf.Operation]:
    """The operations that compute with what a fetch brings, decompressed or not."""
    found, waiting = [], [fetch.outputs[0]]
    while waiting:
        for reader in waiting.pop().consumers():
            if about(reader.type).is_view or reader.type == "Comptrain>Decompress":
                waiting.append(reader.outputs[0])
            else:
                found.append(reader)
    return found


def _places(backward: _keras.BackwardPass) -> dict[str, int]:
    """An order that the backward pass could run in, one branch after the other: by name the place.

    Of what can run what was made possible last comes first.
    """
    seeds = {seed.op.name for seed in backward.seeds}
    later, missing = edges(backward.graph.get_operations()[backward.start :])
    ready = [name for name, count in reversed(missing.items()) if not count]
    stack = [name for name in ready if name not in seeds]
    held = [name for name in ready if name in seeds]  # what waits for no gradient is there from the beginning
    places: dict[str, int] = {}
    while stack or held:
        if not stack:
            stack, held = held, []
        name = stack.pop()
        places[name] = len(places)
        for after in reversed(later[name]):
            missing[after] -= 1
            if not missing[after]:
                (held if after in seeds else stack).append(after)
    return places
