"""Orders of operations: by what they read, and of gradients while more of them are made to wait for others."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf


def in_order(operations: Iterable[tf.Operation]) -> list[tf.Operation]:
    """Operations, each after those of them that it reads."""
    some = {op.name: op for op in operations}
    found: dict[str, tf.Operation] = {}
    waiting = [(op, False) for op in some.values()]
    while waiting:
        op, is_ready = waiting.pop()
        if is_ready:
            found.setdefault(op.name, op)
        elif op.name not in found:
            waiting.append((op, True))
            waiting += [(tensor.op, False) for tensor in op.inputs if tensor.op.name in some]
    return list(found.values())


def as_made(operations: Sequence[tf.Operation]) -> list[tf.Operation]:
    """Operations in the order in which they were made, but each after those that it reads or waits for.

    Reference:
      Kahn, Topological sorting of large networks (1962).
    """
    later, missing = edges(operations)
    places = {op.name: place for place, op in enumerate(operations)}
    ready = [places[name] for name, count in missing.items() if not count]
    found: list[tf.Operation] = []
    while ready:
        op = operations[heapq.heappop(ready)]
        found.append(op)
        for name in later[op.name]:
            missing[name] -= 1
            if not missing[name]:
                heapq.heappush(ready, places[name])
    return found


def edges(operations: Iterable[tf.Operation]) -> tuple[dict[str, list[str]], dict[str, int]]:
    """By name of an operation: those of the others that come after it, and how many of them it comes after.

    All of it is in the order of the operations.
    """
    some = {op.name: op for op in operations}
    later: dict[str, list[str]] = {name: [] for name in some}
    missing: dict[str, int] = {}
    for name, op in some.items():
        before = {other.name for other in operations_before(op)} & some.keys()
        missing[name] = len(before)
        for other in before:
            later[other].append(name)
    return later, missing


def operations_before(op: tf.Operation) -> Iterator[tf.Operation]:
    """Those that it reads, and those that it waits for."""
    yield from (tensor.op for tensor in op.inputs)
    yield from op.control_inputs


def ancestors(
    operations: Iterable[tf.Operation],
    within: Collection[str] | None = None,
    without: Collection[str] = (),
) -> set[str]:
    """Names of operations and of those that they come from.

    Args:
      operations: Where the walk begins.
      within: Names of those that it may reach; None: all.
      without: Names of those that it does not go to, nor past.
    """
    found: set[str] = set()
    waiting = list(operations)
    while waiting:
        op = waiting.pop()
        is_inside = (within is None or op.name in within) and op.name not in without
        if is_inside and op.name not in found:
            found.add(op.name)
            waiting += operations_before(op)
    return found


def names_of_run(operations: Sequence[tf.Operation], returned: Iterable[tf.Tensor]) -> set[str]:
    """Names of what a function runs: to wait for another operation would make that run too.

    Args:
      operations: Of the function.
      returned: What it returns.
    """
    roots = [op for op in operations if op.op_def.is_stateful] + [tensor.op for tensor in returned]
    return ancestors(roots, {op.name for op in operations})


class TopologicalOrder:
    """A topological order that follows added edges and refuses those that would close a circle.

    Args:
      operations: Each after what it reads and waits for.

    Reference:
      Pearce and Kelly, A dynamic topological sort algorithm for directed acyclic graphs (2006).
    """

    def __init__(self, operations: Sequence[tf.Operation]):
        self._place = {op.name: number for number, op in enumerate(operations)}
        self._later: dict[str, set[str]] = {name: set() for name in self._place}
        self._earlier: dict[str, set[str]] = {name: set() for name in self._place}
        for op in operations:
            for before in operations_before(op):
                if before.name in self._place:
                    self._add(before.name, op.name)

    def knows(self, op: tf.Operation) -> bool:
        """Whether it is one of the operations."""
        return op.name in self._place

    def place(self, op: tf.Operation) -> int:
        """The number of an operation in the order as it is now."""
        return self._place[op.name]

    def put(self, first: tf.Operation, second: tf.Operation) -> bool:
        """Orders `first` before `second`; False, and no change, where `first` comes from `second`."""
        a, b = first.name, second.name
        if a == b:
            return False
        if self._place[a] > self._place[b]:
            after = self._reach(b, self._later, lambda place: place <= self._place[a])
            if a in after:
                return False
            before = self._reach(a, self._earlier, lambda place: place >= self._place[b])
            moved = sorted(before, key=self._place.__getitem__) + sorted(after, key=self._place.__getitem__)
            places = sorted(self._place[name] for name in moved)
            self._place.update(zip(moved, places))
        self._add(a, b)
        return True

    def _add(self, first: str, second: str) -> None:
        self._later[first].add(second)
        self._earlier[second].add(first)

    def _reach(self, start: str, neighbours: dict[str, set[str]], within: Any) -> set[str]:
        found, waiting = {start}, [start]
        while waiting:
            for name in neighbours[waiting.pop()]:
                if name not in found and within(self._place[name]):
                    found.add(name)
                    waiting.append(name)
        return found
