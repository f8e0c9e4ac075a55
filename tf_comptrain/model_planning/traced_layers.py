"""What each layer of a model's traced train step saves, and its scratch memory; no step is run."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.compression.report import Report
from tf_comptrain.graph.operations import SOURCE, about
from tf_comptrain.graph.order import ancestors, as_made
from tf_comptrain.graph.tensors import behind_views, values_of
from tf_comptrain.memory.batches import random_batch
from tf_comptrain.memory.saved import crossing_of, stands_for
from tf_comptrain.storage import name_of

_GRADIENTS = "gradient_tape/"  # the scope that TensorFlow puts before that of the operation


class LayerBytes(NamedTuple):
    """A layer's memory.

    Attributes:
      saved: Bytes of what it makes that are held from the forward to the backward pass, beside weights.
      workspace: The most that is alive beside those while it runs, forward or backward.
      entering: Bytes of what earlier layers made and the backward pass of this or a later one reads.
    """

    saved: int = 0
    workspace: int = 0
    entering: int = 0


def traced_layers(
    model: keras.Model, operations: Sequence[Any], samples: int, report: Report
) -> dict[str, LayerBytes]:
    """By name of a layer.

    Args:
      model: Compiled and compressed.
      operations: Of its graph.
      samples: Of the batch that is traced.
      report: Of `compress_model`, which knows the sizes of streams.
    """
    x, y = random_batch(model, samples)
    passes: list[_keras.BackwardPass] = []
    crossing: list[tf.Tensor] = []
    ends: list[tuple[int, str]] = []
    known = set(map(id, operations))

    def note(layer: keras.layers.Layer, output: Any) -> Any:
        if id(layer) in known:
            ends.append((len(tf.compat.v1.get_default_graph().get_operations()), layer.name))
        return output

    def found() -> tuple:
        crossing[:] = crossing_of(passes)  # where the step makes variables, it is traced twice
        return ()

    with _keras.layer_output_hook(note), _keras.on_gradients(passes.append):
        _keras.trace_train_step(model, x, y, found)
    shares = {
        row.layer: row.predicted_bytes / row.value_bytes
        for row in report.rows
        if row.predicted_bytes and row.value_bytes
    }
    last = len({name for _, name in ends})
    return _LayeredStep(passes[-1], crossing, ends[-last:], shares).layers()


class _LayeredStep:
    def __init__(
        self,
        backward: _keras.BackwardPass,
        crossing: Sequence[tf.Tensor],
        calls: Sequence[tuple[int, str]],
        shares: Mapping[str, float],
    ):
        self._graph, self._start, self._gradients = backward.graph, backward.start, backward.gradients
        self._operations = self._graph.get_operations()[: backward.stop]
        self._crossing, self._shares = crossing, shares
        self._ends, self._names = zip(*calls)
        self._numbers = {op.name: number for number, op in enumerate(self._operations)}
        self._order = {name: number for number, name in enumerate(self._names)}
        self._owners: dict[str, str] = {}
        self._scopes: dict[str, str] = {}
        for number, op in enumerate(self._operations[: self._start]):
            self._owners[op.name] = self._at(number)
            for scope in _scopes(op.name):
                known = self._scopes.setdefault(scope, self._owners[op.name])
                self._scopes[scope] = known if known == self._owners[op.name] else ""
        for op in self._operations[self._start :]:
            self._owners[op.name] = self._owner_of_gradient(op)

    def _at(self, number: int) -> str:
        return self._names[min(bisect.bisect_right(self._ends, number), len(self._ends) - 1)]

    def _owner_of_gradient(self, op: tf.Operation) -> str:
        for scope in _scopes(op.name.removeprefix(_GRADIENTS)):
            if self._scopes.get(scope):
                return self._scopes[scope]
        owners = (self._owners.get(tensor.op.name, "") for tensor in op.inputs)
        return next(filter(None, owners), self._names[-1])

    def layers(self) -> dict[str, LayerBytes]:
        saved, workspace, entering = (dict.fromkeys(self._names, 0) for _ in range(3))
        for tensor in self._crossing:
            size, maker = self._bytes(tensor), self._maker(tensor)
            saved[maker] += size
            last = max(map(self._order.__getitem__, self._readers(tensor)), default=0)
            for name in self._names[self._order[maker] + 1 : last + 1]:
                entering[name] += size
        for name, level in self._levels():
            workspace[name] = max(workspace[name], level)
        return {name: LayerBytes(saved[name], workspace[name], entering[name]) for name in self._names}

    def _maker(self, tensor: tf.Tensor) -> str:
        return self._owner(behind_views(stands_for(tensor)).op)

    def _owner(self, op: tf.Operation) -> str:
        if op.name not in self._owners:
            self._owners[op.name] = self._owner_of_gradient(op)
        return self._owners[op.name]

    def _readers(self, tensor: tf.Tensor) -> set[str]:
        """Layers whose backward pass reads a tensor."""
        waiting, readers = [tensor], set()
        while waiting:
            for op in waiting.pop().consumers():
                if self._numbers.get(op.name, 0) >= self._start:
                    readers.add(self._owners[op.name])
                elif op.outputs and behind_views(op.outputs[0]) is tensor:
                    waiting.append(op.outputs[0])
        return readers

    def _bytes(self, tensor: tf.Tensor) -> int:
        plain = stands_for(tensor)
        size = _elements(plain) * plain.dtype.size
        if plain is tensor:
            return size
        if tensor.op.type != "Comptrain>Compress":
            return math.ceil(_elements(plain) / 8)
        return math.ceil(size * self._shares.get(name_of(behind_views(plain)), 1.0))

    def _levels(self) -> Iterator[tuple[str, int]]:
        """(layer, bytes alive beside what is saved) at each operation of the step."""
        saved = {tensor.ref() for tensor in self._crossing}
        order = self._in_order()
        last: dict[Any, int] = {}
        for number, op in enumerate(order):
            for tensor in op.inputs:
                last[behind_views(tensor).ref()] = number
        freed: dict[int, int] = {}
        alive = 0
        for number, op in enumerate(order):
            made, row = 0, about(op.type)
            if not row.is_alias and not row.is_view and row.kind != SOURCE:
                for tensor in op.outputs:
                    end = last.get(tensor.ref())
                    if end and not saved & {tensor.ref(), behind_views(tensor).ref()}:
                        size = _elements(tensor) * tensor.dtype.size
                        made += size
                        freed[end] = freed.get(end, 0) + size
            over = freed.get(number, 0) if row.is_elementwise or op.type == "Softmax" else 0
            yield self._owner(op), alive + made - min(made, over)
            alive += made - freed.pop(number, 0)

    def _in_order(self) -> list[tf.Operation]:
        """What the gradients are made of, inputs first: the graph pass adds operations behind those that read them."""
        live = ancestors(values_of(gradient).op for gradient in self._gradients if gradient is not None)
        return as_made([op for op in self._graph.get_operations() if op.name in live])


def _scopes(name: str) -> Iterator[str]:
    """Those that an operation is in, the innermost first."""
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def _elements(tensor: tf.Tensor) -> int:
    return (tensor.shape.num_elements() or 0) if tensor.shape.rank is not None else 0
