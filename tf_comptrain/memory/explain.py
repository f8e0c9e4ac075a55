"""What the peak of a training step is made of: the tensors alive at that moment."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.compression.restored_state import state_restored
from tf_comptrain.graph import TILES_SCOPE
from tf_comptrain.memory.analysis import MemoryAnalysis, PlannedBuffer, memory_analysis
from tf_comptrain.memory.batches import batch_of
from tf_comptrain.memory.trace import AllocationEvent, Trace, trace_step
from tf_comptrain.render.text import as_text, table_of
from tf_comptrain.render.units import format_bytes

STREAM = "streams and masks"
FORWARD = "activations"
RESTORED = "restored inputs"
ACTIVATION_GRADIENT = "gradients of activations"
TILE = "tiles of rows"
WEIGHT_GRADIENT = "weight gradients"
METRIC = "metric"
UPDATE = "new values of variables"
WORKSPACE = "scratch space of operations"
OTHER = "other"
REPLACED = "old values freed"
KINDS = (
    STREAM, FORWARD, RESTORED, TILE, ACTIVATION_GRADIENT, WEIGHT_GRADIENT, METRIC, UPDATE, WORKSPACE, OTHER, REPLACED,
)  # fmt: skip

_OWN_OP = "Comptrain>"
_PACKED_DTYPES = ("uint8", "uint16", "uint32", "uint64")  # of streams and bit masks
_RESTORING = ("Comptrain>Decompress",)


class PeakRow(NamedTuple):
    """One tensor alive at the peak.

    Attributes:
      kind: One of `KINDS`.
      op: The operation that allocated the buffer; later ones may have gone on in place.
      shape: Of that operation's output, as text; "" where not known.
      dtype: Of that output.
      bytes: What the allocator set aside for it. Negative in the one row of kind "old values
        freed": what was there before the step and is gone at the peak, variables mostly.
      requested_bytes: What the operation asked for; the rest is the allocator's rounding.
    """

    kind: str
    op: str
    shape: str
    dtype: str
    bytes: int
    requested_bytes: int


class Peak(NamedTuple):
    """Result of `explain_peak`; `print` shows it as a table.

    Attributes:
      model: Name of the model.
      batch_size: Samples in the step.
      peak_bytes: The allocator's peak over the resting level: the sum of the rows.
      resting_bytes: Weights, optimizer slots and the batch, which lie below.
      during: The operation whose allocation made the peak; under XLA its program.
      rows: The tensors alive, largest first.
    """

    model: str
    batch_size: int
    peak_bytes: int
    resting_bytes: int
    during: str
    rows: tuple[PeakRow, ...]

    @property
    def by_kind(self) -> dict[str, int]:
        """Bytes of each kind that occurs, largest first; new values less the old ones freed."""
        sums: dict[str, int] = {}
        for row in self.rows:
            kind = UPDATE if row.kind == REPLACED else row.kind
            sums[kind] = sums.get(kind, 0) + row.bytes
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def to_json(self) -> str:
        """The result as a JSON object, rows as objects."""
        fields = self._asdict()
        fields["by_kind"] = self.by_kind
        fields["rows"] = [row._asdict() for row in self.rows]
        return json.dumps(fields, indent=1)

    def table(self, rows: int = 30) -> str:
        """The kinds, then the largest `rows` tensors, as text."""
        numbers = ("bytes", "of peak")
        title = f"{self.model}, batch {self.batch_size}: alive at the peak"
        kinds = table_of(title, ("kind", *numbers), numbers)
        for kind, size in self.by_kind.items():
            kind = f"{kind}, less the old ones" if kind == UPDATE else kind
            kinds.add_row(kind, format_bytes(size), f"{size / max(self.peak_bytes, 1):.0%}")
        kinds.add_section()
        kinds.add_row("peak over resting", format_bytes(self.peak_bytes), "100%")
        headings = ("kind", "allocated by", "shape", "dtype", "bytes")
        tensors = table_of("largest tensors", headings, ("bytes",))
        for row in self.rows[:rows]:
            tensors.add_row(row.kind, row.op, row.shape, row.dtype, format_bytes(row.bytes))
        rest = self.rows[rows:]
        if rest:
            tensors.add_row(f"{len(rest)} more", "", "", "", format_bytes(sum(row.bytes for row in rest)))
        below = f"{format_bytes(self.resting_bytes)} of weights, optimizer slots and the batch."
        return as_text([kinds, "", tensors, f"Peak while {self.during} ran; below it {below}"])

    def __str__(self) -> str:
        return self.table()


def explain_peak(model: keras.Model, x: Any, y: Any = None) -> Peak:
    """Lists what is alive at the peak of a training step.

    On TensorFlow's executor one real step runs under the profiler. It is the model's own compiled one, after
    two of warm-up; weights are put back. The allocator's own total says where the peak is, so the rows add up
    to it exactly: variables that the step replaces are counted as new values, and what it frees of the old
    ones as one negative row.

    A step that XLA compiles is not run: the rows are the buffers of the compiler's plan, `memory_analysis`.

    Args:
      model: A compiled Keras model, compressed or not.
      x: One batch of inputs; or a batch size, for random inputs of the model's input shapes.
      y: The batch's targets; None with a batch size, and for a model with a `train_step` of its own that
        takes none.

    Returns:
      A `Peak`.

    Raises:
      ValueError: The model is not compiled, or has no input shapes to make a random batch from.
      RuntimeError: The profiler runs already, or records no allocations in this TensorFlow build.

    Examples:
      >>> print(ct.memory.explain_peak(model, 32))
    """
    x, y = batch_of(model, x, y)
    batch_size = len(tf.nest.flatten(x)[0])
    if _keras.jit_compile(model):
        return _explain_plan(model, batch_size, memory_analysis(model, x, y))
    return _explain(model, batch_size, trace_model(model, x, y))


def trace_model(model: keras.Model, x: Any, y: Any) -> Trace:
    """The allocator trace of one training step after two of warm-up; the model is left as it was."""
    return trace_steps(model, x, y, 1)[0]


def trace_steps(model: keras.Model, x: Any, y: Any, count: int) -> list[Trace]:
    """As `trace_model`, of several steps one after the other."""
    step = _keras.train_step_runner(model, x, y)
    with state_restored(model):
        step()
        step()
        return [trace_step(step) for _ in range(count)]


def _explain(model: keras.Model, batch_size: int, trace: Trace) -> Peak:
    index = trace.peak_index
    live = trace.live_at(index)
    classify = Classifier(model, trace.events)
    rows = [
        PeakRow(classify(event), event.op, event.shape, event.dtype, event.bytes, event.requested_bytes)
        for event in live
    ]
    replaced = trace.peak_bytes - sum(row.bytes for row in rows)
    if replaced:
        rows.append(PeakRow(REPLACED, "", "", "", replaced, replaced))
    rows.sort(key=lambda row: -row.bytes)
    during = trace.events[index].op
    return Peak(model.name, batch_size, trace.peak_bytes, trace.base_bytes, during, tuple(rows))


def _explain_plan(model: keras.Model, batch_size: int, planned: MemoryAnalysis) -> Peak:
    kind_of = Classifier(model).kind_of_planned
    rows = [
        PeakRow(kind_of(each), each.op, each.shape, each.dtype, each.bytes, each.bytes)
        for each in planned.buffers
    ]
    gaps = planned.temporary_bytes - sum(row.bytes for row in rows)
    if gaps > 0:
        rows.append(PeakRow(OTHER, "gaps between buffers", "", "", gaps, 0))
    rows.sort(key=lambda row: -row.bytes)
    return Peak(
        model.name, batch_size, planned.temporary_bytes, planned.argument_bytes, "XLA's program", tuple(rows)
    )


def forward_end_s(model: keras.Model, trace: Trace) -> float:
    """When the forward pass of a traced step made its last tensor."""
    return Classifier(model, trace.events).forward_end_s


class Classifier:
    """Says what kind of tensor an allocation is, from who made it and when.

    The graph that ran is an optimized one: names are those of the operations left. Forward ones
    stand under the model's name; the backward pass's, where Keras or TensorFlow made them, under
    "gradient_tape"; Keras' own train step makes those of metrics under no name. An unknown one belongs to the pass that
    was under way.
    """

    def __init__(self, model: keras.Model, events: Sequence[AllocationEvent] = ()):
        self._has_metrics = not _keras.has_own_train_step(model) and len(model.metrics) > 1  # beside the loss
        # A train step may call the parts of a model, and not the model.
        called = [model, *_keras.direct_sublayers(model)] if _keras.has_own_train_step(model) else [model]
        names = "|".join(re.escape(layer.name) for layer in called)
        self._forward_name = re.compile(rf"(({names})(_\d+)?|compile_loss|loss)/")
        optimizers = _keras.optimizers_of(model)
        optimizers += [o.inner_optimizer for o in optimizers if hasattr(o, "inner_optimizer")]
        self._optimizers = {optimizer.name for optimizer in optimizers}
        self._variable_shapes = {_text(v.shape) for v in model.trainable_variables}
        self.forward_end_s = max(
            (event.time_s for event in events if self._forward_name.match(event.op)), default=0.0
        )

    def __call__(self, event: AllocationEvent) -> str:
        own = event.op.rpartition("/")[2].startswith(_OWN_OP)
        if self._is_update(event.op):
            return UPDATE
        if event.region == "temp":
            return WORKSPACE
        if TILES_SCOPE in event.op:
            return WEIGHT_GRADIENT if event.shape in self._variable_shapes else TILE
        if own and event.dtype in _PACKED_DTYPES:
            return STREAM
        if event.op.rpartition("/")[2].startswith(_RESTORING):
            return RESTORED
        if self._has_metrics and "/" not in event.op and not own:
            return METRIC
        if self._is_forward(event):
            return FORWARD
        if event.shape in self._variable_shapes:
            return WEIGHT_GRADIENT
        return ACTIVATION_GRADIENT if event.shape else OTHER

    def kind_of_planned(self, buffer: PlannedBuffer) -> str:
        """Of a buffer that XLA's compiler planned; scratch space is what no operation is named for."""
        if buffer.op.startswith("%"):
            return WORKSPACE
        made = AllocationEvent(
            0.0, buffer.bytes, 0, 0, buffer.op, "output", buffer.dtype, buffer.shape, buffer.bytes
        )
        return self(made)

    def _is_update(self, op: str) -> bool:
        scope = op.partition("/")[0]
        named = {scope, re.sub(r"_\d+$", "", scope)}  # an optimizer's name, or that of a scope made anew
        return not named.isdisjoint(self._optimizers) or "AssignVariableOp" in op

    def _is_forward(self, event: AllocationEvent) -> bool:
        if self._forward_name.match(event.op):
            return True
        return not event.op.startswith("gradient_tape/") and event.time_s < self.forward_end_s


def _text(shape: tf.Tensor) -> str:
    return f"[{','.join(str(size) for size in shape)}]"
