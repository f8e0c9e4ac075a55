"""What each layer will hold, from the model's graph alone: the rows of a report, with predicted bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow import keras

from tf_comptrain.codecs import RANGE
from tf_comptrain.plan import Plan
from tf_comptrain.report import Row
from tf_comptrain.rules import Save
from tf_comptrain.storage import (
    BITMASK,
    COMPRESS,
    DEFAULT_BOUNDS,
    FUSED,
    NOTHING,
    RECOMPUTE,
    Site,
)


def predicted_rows(
    plans: Sequence[Plan],
    sites: Mapping[int, Mapping[str, Site]],
    calls: Iterable[tuple[Any, list, list]],
    xla: bool = False,
) -> Iterator[Row]:
    """One row for each tensor that a layer holds, and for each layer that holds none.

    Args:
      plans: What will happen to each layer, in the order of the model.
      sites: Where layers hold streams: id of the layer -> role -> site.
      calls: (operation, input tensors, output tensors) of the calls in the model's graph.
      xla: The step is compiled by XLA: streams have a fixed rate.
    """
    calls = list(calls)
    graph = _Graph(plans, calls, xla)
    for plan in plans:
        saves = _saves(plan)
        if not saves and not isinstance(plan.layer, keras.layers.InputLayer):
            storage = plan.storage if plan.rule is None else NOTHING
            yield Row(plan.path, type(plan.layer).__name__, "", storage, note=plan.reason)
        for save in saves:
            yield graph.row(plan, save, sites.get(id(plan.layer), {}).get(save.role))


def _saves(plan: Plan) -> tuple[Save, ...]:
    return plan.rule.saves(plan.layer, plan.storage) if plan.rule and not plan.idle else ()


class _Graph:
    """Which tensor each layer reads and makes, and in which layer's stream each tensor is."""

    def __init__(self, plans: Sequence[Plan], calls: Iterable[tuple[Any, list, list]], xla: bool):
        self.xla = xla
        self.tensors: dict[int, tuple[list, list]] = {}  # layer -> inputs, outputs of its first call
        for operation, inputs, outputs in calls:
            self.tensors.setdefault(id(operation), (inputs, outputs))
        self.rebuilt = self._rebuildable(plans)
        self.streams: dict[int, str] = {}
        for plan in plans:
            for save in _saves(plan):
                tensor = self._tensor(plan, save)
                is_input = save.of == "input" and save.storage == COMPRESS and tensor is not None
                if is_input and not self._rebuilds(plan, save):
                    self.streams.setdefault(id(tensor), plan.path)
        self.counted: set[int] = set()

    def _rebuildable(self, plans: Sequence[Plan]) -> dict[int, str]:
        """tensor -> the batch normalization whose stream it can be rebuilt from."""
        found: dict[int, str] = {}
        by_layer = {id(plan.layer): plan for plan in plans}
        for _ in range(2):  # what makes a tensor may come later in the list than what reads it
            for layer, (inputs, outputs) in self.tensors.items():
                plan = by_layer.get(layer)
                if plan is None or plan.rule is None:
                    continue
                if any(save.kind == "norm" and save.storage == COMPRESS for save in _saves(plan)):
                    if isinstance(plan.layer, keras.layers.BatchNormalization):
                        found[id(outputs[0])] = plan.path
                elif plan.rule.elementwise and inputs and id(inputs[0]) in found:
                    found[id(outputs[0])] = found[id(inputs[0])]
        return found

    def _tensor(self, plan: Plan, save: Save) -> Any:
        """The graph's tensor that a save is of, or has the shape of; None where the graph has none."""
        inputs, outputs = self.tensors.get(id(plan.layer), ([], []))
        of = {"input": inputs, "output": outputs, "before": outputs}.get(save.of, [])
        return of[save.number] if save.number < len(of) else None

    def _rebuilds(self, plan: Plan, save: Save) -> str | None:
        """The layer from whose stream this tensor is rebuilt; None where it is held itself."""
        inputs, _ = self.tensors.get(id(plan.layer), ([], []))
        if plan.storage != RECOMPUTE or save.storage != COMPRESS or not inputs:
            return None
        return self.rebuilt.get(id(inputs[0]))

    def row(self, plan: Plan, save: Save, site: Site | None) -> Row:
        row = Row(plan.path, type(plan.layer).__name__, save.role, save.storage)
        if site is not None:
            row = row._replace(bound=str(site.bound))
        tensor = self._tensor(plan, save)
        if tensor is None:
            return row._replace(note="shape not known before the model runs")
        row = row._replace(shape=tuple(tensor.shape)[1:])
        source, holder = self._rebuilds(plan, save), self.streams.get(id(tensor))
        free = False
        if source is not None and holder is None:
            row = row._replace(storage=RECOMPUTE, bound="", note=f"rebuilt from the stream of {source}")
            free = True
        elif holder is not None and (
            save.from_stream or (save.storage == COMPRESS and save.of == "input" and holder != plan.path)
        ):
            row = row._replace(note=f"in the stream of {holder}")
            free = True
        if row.shape is None or any(size is None for size in row.shape):
            return row
        elements = math.prod(size or 1 for size in row.shape)
        itemsize = tf.as_dtype(tensor.dtype).size
        # Each tensor counts once. The one before an activation function is in no other layer's sight.
        which = id(plan.layer) if save.of == "before" else id(tensor)
        plain_bytes = 0 if which in self.counted else elements * itemsize
        self.counted.add(which)
        held_bytes = 0 if free else round(elements * _bits(save, site, itemsize, self.xla) / 8)
        return row._replace(plain_bytes=plain_bytes, predicted_bytes=held_bytes)


# Of normally distributed values, as many as a tensor has.
_RANGE_OVER_SIGMA = 10.0


def _bits(save: Save, site: Site | None, itemsize: int, xla: bool) -> float:
    """Predicted bits per element."""
    if save.storage == BITMASK:
        return save.bits
    if save.storage == FUSED or site is None:
        return 8 * itemsize
    sparse = save.kind == "linear"  # inputs of convolutions are mostly ReLU outputs
    if xla:
        return site.rate(mid_rise=sparse)
    bits = site.codec.predicted_bits["sparse" if sparse else "dense"]
    if site.bound.relative:  # each halving of the bound costs a bit
        scale = _RANGE_OVER_SIGMA if site.bound.scale == RANGE else 1.0
        bits += math.log2(DEFAULT_BOUNDS["linear"].value / (scale * site.bound.value))
    return max(bits, 0.5)
