"""A layer that is run again in the backward pass, as it was when it ran first."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_comptrain import _keras


class FirstRun:
    """A layer as it is now, for a second run in the backward pass.

    That reads the weights, the statistics and the seeds of the first one, and updates none; in Keras 2 the
    variables as they are then. In a traced graph the layer is not kept alive by it: a graph can outlive it.

    Attributes:
      values: Of all floating variables of the layer and of those inside it, to differentiate by; an operation
        that is no layer has none.
    """

    def __init__(self, layer: Any):
        self._training = _keras.training()
        self._in_scope = _keras.in_scope_of_values()
        found = _keras.values_of(layer)
        read = [(weakref.ref(variable), value) for variable, value in found]
        self.values = [value for _, value in read if value.dtype.is_floating]
        self._variables = [variable for variable, value in read if value.dtype.is_floating]
        self._seeds = [(variable, value) for variable, value in read if not value.dtype.is_floating]
        self._layer = weakref.ref(layer)
        self._alive = (layer, [variable for variable, _ in found]) if tf.executing_eagerly() else None

    @contextlib.contextmanager
    def again(
        self,
        values: Sequence[tf.Tensor],
        gate: tf.Tensor,
        slice_of: FirstRun | None = None,
    ) -> Iterator[None]:
        """Around the second run.

        Args:
          values: Those of the first, to differentiate by.
          gate: The incoming gradient. Random numbers drawn from the same seed before it is there would be
            those of the first run to the graph's optimizer, and stay alive until then.
          slice_of: The run on the whole batch, whose `values` are given: this one is of a slice.
        """
        whole = slice_of or self
        read: list[tuple[Any, tf.Tensor]] = [(v(), value) for v, value in zip(whole._variables, values)]
        if slice_of is not None:  # an earlier slice may have assigned a variable
            read = [(v, _assigned(value, own)) for (v, value), own in zip(read, self.values)]
        read += [(v(), _gated(value, gate)) for v, value in self._seeds]
        # Keras' scope would differentiate through a value that was assigned. Where the first run was in one, what it
        # read after an assignment was that value; elsewhere it was the variable.
        assigned = None if self._in_scope else _read_after
        variables = _keras.scope_of_values(read, assigned)
        with variables, _keras.call_scope(self._training), _keras.layer_scope(self._layer()):
            yield


def _read_after(before: tf.Tensor | None, value: tf.Tensor) -> tf.Tensor:
    return tf.stop_gradient(value) if before is None else _assigned(before, value)


@_keras.custom_gradient
def _assigned(before: tf.Tensor, value: tf.Tensor) -> Any:
    """The value, with a gradient that is the variable's."""
    return tf.identity(value), lambda dy: (dy, None)


def _gated(value: tf.Tensor, gate: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([] if tf.executing_eagerly() else [gate]):
        return tf.identity(value)
