"""Gradients as a GradientTape takes them: where in a traced graph each backward pass stands."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf


class BackwardPass(NamedTuple):
    """What one `tape.gradient` added to the graph being traced.

    Operations are counted in the order in which a graph makes them. All before `start` are the forward
    pass of this gradient, earlier backward passes and updates among them.

    Attributes:
      graph: The graph.
      start: Number of the first operation that was made for the gradient.
      stop: Number of the last one, plus 1.
      gradients: Tensors, IndexedSlices or None, one for each source, flat.
    """

    graph: tf.Graph
    start: int
    stop: int
    gradients: tuple[Any, ...]

    def operations(self) -> list[tf.Operation]:
        """The backward pass."""
        return self.graph.get_operations()[self.start : self.stop]


_hooks: list[Callable[[BackwardPass], None]] = []


@contextlib.contextmanager
def on_gradients(hook: Callable[[BackwardPass], None]) -> Iterator[None]:
    """Inside, `hook` is called with every backward pass of a graph being traced, in any thread.

    `tape.gradient` returns after that, so what the hook does to the graph is done before anything reads
    the gradients. Eager gradients are not told.
    """
    _tell_of_gradients()
    _hooks.append(hook)
    try:
        yield
    finally:
        _hooks.remove(hook)


def _tell_of_gradients() -> None:
    """Lets every GradientTape call the hooks, once for the process."""
    original = tf.GradientTape.gradient
    if hasattr(original, "tells_hooks"):
        return

    @functools.wraps(original)
    def gradient(tape, target, sources, *args, **kwargs):
        if not _hooks or tf.executing_eagerly():
            return original(tape, target, sources, *args, **kwargs)
        graph = tf.compat.v1.get_default_graph()
        start = len(graph.get_operations())
        found = original(tape, target, sources, *args, **kwargs)
        flat = tuple(tf.nest.flatten(found))
        made = BackwardPass(graph, start, len(graph.get_operations()), flat)
        for hook in tuple(_hooks):
            hook(made)
        return found

    gradient = tf.autograph.experimental.do_not_convert(gradient)
    gradient.tells_hooks = True
    tf.GradientTape.gradient = gradient
