"""Gradients as a GradientTape takes them: where in a traced graph each backward pass stands.

Private: `auto_control_deps`, `record` (TensorFlow 2.21, 2.15).
"""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.framework import auto_control_deps

from tf_comptrain._keras.graphs import under_xla
from tf_comptrain._keras.inner_functions import inline_functions


class BackwardPass(NamedTuple):
    """What one `tape.gradient` added to the graph being traced.

    Operations are counted in the order in which a graph makes them. All before `start` are the forward
    pass of this gradient, earlier backward passes and updates among them.

    Attributes:
      graph: The graph.
      start: Number of the first operation that was made for the gradient.
      stop: Number of the last one, plus 1.
      seeds: The gradients of the targets, which all others come from.
      sources: Variables or tensors, flat.
      gradients: Tensors, IndexedSlices or None, one for each source.
      recorded: Another tape records the backward pass, for a gradient of the gradient.
      xla: XLA compiles the graph.
      instead: By name of one of its operations, or of the forward pass: what was put in its place.
    """

    graph: tf.Graph
    start: int
    stop: int
    seeds: tuple[tf.Tensor, ...]
    sources: tuple[Any, ...]
    gradients: tuple[Any, ...]
    recorded: bool
    xla: bool
    instead: Mapping[str, tuple[tf.Operation, ...]] = types.MappingProxyType({})

    def operations(self) -> list[tf.Operation]:
        """The backward pass, each operation after those that it reads."""
        made = self.graph.get_operations()[self.start : self.stop]
        return [op for each in made for op in self.instead.get(each.name, (each,))]


# What is called with a backward pass, and answers which of its gradients are to be replaced: by the name of a
# gradient tensor its replacement; None for none.
Hook = Callable[[BackwardPass], dict[str, tf.Tensor] | None]

_hooks: list[tuple[Hook, Callable[[list], None], Callable[[], bool]]] = []
_inside = threading.local()


class on_gradients:
    """Inside, or from `begin` on, `hook` is called with every backward pass of a graph being traced, in any thread.

    `tape.gradient` returns after that, so what the hook does to the graph is done before anything reads
    the gradients. Not told are those that a gradient takes while it is taken. Of eager gradients `eager` is called with
    the sources. While `inlines` answers so, a `tf.function` that a tape records becomes part of the graph, see
    `inline_functions`.
    """

    def __init__(
        self,
        hook: Hook,
        eager: Callable[[list], None] = lambda sources: None,
        inlines: Callable[[], bool] = lambda: True,
    ):
        self._hook = hook, eager, inlines

    def begin(self) -> None:
        _tell_of_gradients()
        _tell_of_ends()
        note_tapes()
        inline_functions(lambda: any(inlines() for _, _, inlines in tuple(_hooks)))
        _hooks.append(self._hook)

    def end(self) -> None:
        _hooks.remove(self._hook)

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *unused: Any) -> None:
        self.end()


def _tell_of_gradients() -> None:
    """Lets every GradientTape call the hooks, once for the process."""
    original = tf.GradientTape.gradient
    if hasattr(original, "tells_hooks"):
        return

    @functools.wraps(original)
    def gradient(
        self: tf.GradientTape,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        if _hooks and tf.executing_eagerly():
            for _, eager, _ in tuple(_hooks):
                eager(tf.nest.flatten(sources))
        if not _hooks or tf.executing_eagerly() or getattr(_inside, "gradient", False):
            return original(self, target, sources, output_gradients, unconnected_gradients)
        graph = tf.compat.v1.get_default_graph()
        start = len(graph.get_operations())
        if output_gradients is None:
            output_gradients = _seeds(target)
        _inside.gradient = True
        try:
            found = original(self, target, sources, output_gradients, unconnected_gradients)
        finally:
            _inside.gradient = False
        made = BackwardPass(
            graph,
            start,
            len(graph.get_operations()),
            tuple(seed for seed in tf.nest.flatten(output_gradients) if tf.is_tensor(seed)),
            tuple(tf.nest.flatten(sources)),
            tuple(tf.nest.flatten(found)),
            bool(record.could_possibly_record()),
            under_xla(),
        )
        for hook, _, _ in tuple(_hooks):
            with record.stop_recording():
                replaced = hook(made)
            if not made.recorded:  # the other tape knows the gradients that it recorded, and no others
                found = _replaced(found, replaced)
                made = made._replace(gradients=tuple(tf.nest.flatten(found)))  # for the next hook
        return found

    telling: Any = tf.autograph.experimental.do_not_convert(gradient)
    telling.tells_hooks = True
    tf.GradientTape.gradient = telling


def at_end_of_trace(graph: Any, do: Callable[[Sequence[tf.Tensor]], None]) -> None:
    """Has something done to a function's graph when all of the function is traced, before TensorFlow orders it.

    Of graphs whose trace began after `on_gradients`. `do` is called with what the function returns.
    """
    if not hasattr(graph, "_comptrain_at_end"):
        graph._comptrain_at_end = []
    graph._comptrain_at_end.append(do)


def when_ordered(graph: Any, do: Callable[[Any, Sequence[tf.Tensor]], None]) -> None:
    """Has something done to a function's graph, once, when TensorFlow has ordered what touches the same variables.

    Of graphs whose trace began after `on_gradients`. `do` is called with the graph and with what the function returns.
    """
    if not hasattr(graph, "_comptrain_when_ordered"):
        graph._comptrain_when_ordered = []
    if do not in graph._comptrain_when_ordered:
        graph._comptrain_when_ordered.append(do)


def end_trace(graph: Any, returned: Sequence[tf.Tensor] = ()) -> None:
    """Does now what waits for the end of a graph's trace; what the function returns is told as far as it is known."""
    waiting = getattr(graph, "_comptrain_at_end", [])
    while waiting:
        waiting.pop(0)(list(returned))


def _tell_of_ends() -> None:
    """Lets the end of every function's trace do what waits for it, once for the process.

    Private: `AutomaticControlDependencies.__exit__`, `AutomaticControlDependencies._graph`,
      `AutomaticControlDependencies._returned_tensors` (TensorFlow 2.21, 2.15).
    """
    ordering = auto_control_deps.AutomaticControlDependencies
    leave = ordering.__exit__
    if hasattr(leave, "ends_trace"):
        return

    @functools.wraps(leave)
    def end(self: Any, kind: Any, error: Any, trace: Any) -> Any:
        is_traced = error is None and not tf.executing_eagerly()
        if is_traced:
            end_trace(self._graph, self._returned_tensors)
        left = leave(self, kind, error, trace)
        if is_traced:
            for do in getattr(self._graph, "_comptrain_when_ordered", []):
                do(self._graph, list(self._returned_tensors))
        return left

    end.ends_trace = True  # type: ignore[attr-defined]
    ordering.__exit__ = end


def stop_recording() -> Any:
    """Inside, no tape records."""
    return record.stop_recording()


def graphs_of_tapes() -> list[tf.Graph]:
    """Of the GradientTapes that record in this thread, innermost last: where each began. Since `note_tapes`."""
    return getattr(_inside, "tapes", [])


def note_tapes() -> None:
    """Lets every GradientTape say when it records, once for the process.

    Private: `GradientTape._push_tape`, `GradientTape._pop_tape` (TensorFlow 2.21, 2.15).
    """
    if hasattr(tf.GradientTape._push_tape, "notes_tapes"):
        return
    push, pop = tf.GradientTape._push_tape, tf.GradientTape._pop_tape

    @functools.wraps(push)
    def noted_push(self: tf.GradientTape) -> None:
        push(self)
        _inside.tapes = [*graphs_of_tapes(), tf.compat.v1.get_default_graph()]

    @functools.wraps(pop)
    def noted_pop(self: tf.GradientTape) -> None:
        pop(self)
        _inside.tapes = graphs_of_tapes()[:-1]

    noted_push.notes_tapes = True  # type: ignore[attr-defined]
    tf.GradientTape._push_tape = tf.autograph.experimental.do_not_convert(noted_push)
    tf.GradientTape._pop_tape = tf.autograph.experimental.do_not_convert(noted_pop)


def _seeds(target: Any) -> list[tf.Tensor] | None:
    """Ones for each target, as the tape makes them; None where it has to make them itself."""
    flat = tf.nest.flatten(target)
    if not all(isinstance(t, tf.Tensor) and t.dtype.is_floating for t in flat):
        return None
    with tf.name_scope("gradient_tape"), record.stop_recording():
        return [tf.ones_like(t) for t in flat]


def _replaced(found: Any, by_name: dict[str, tf.Tensor] | None) -> Any:
    if not by_name:
        return found

    def replace(gradient: Any) -> Any:
        if isinstance(gradient, tf.IndexedSlices):
            values = by_name.get(gradient.values.name)
            if values is None:
                return gradient
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return by_name.get(gradient.name, gradient) if isinstance(gradient, tf.Tensor) else gradient

    return tf.nest.map_structure(replace, found)
