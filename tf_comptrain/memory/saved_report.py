"""Every saved tensor of a model, and the memory of a step over time: plain against as it is now."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.compression.instrumentation import instrumentation, is_compressed
from tf_comptrain.memory.batches import batch_of
from tf_comptrain.memory.explain import forward_end_s, trace_model
from tf_comptrain.memory.saved import SavedTensor, saved_bytes, saved_tensors
from tf_comptrain.memory.timeline import Timeline, draw
from tf_comptrain.memory.trace import NothingRecordedError
from tf_comptrain.render.text import as_text, table_of
from tf_comptrain.render.units import format_bytes

PLAIN, COMPRESSED = "plain", "compressed"


class MemoryReport(NamedTuple):
    """Result of `report`; `print` shows it as a table.

    Attributes:
      model: Name of the model.
      batch_size: Samples in the step.
      rows: Each tensor that is held between the forward and the backward pass.
      saved_plain_bytes: Plain bytes: what the step in plain Keras holds there.
      predicted_bytes: What `compress_model` predicted for the tensors it stores; None for a model
        that is not compressed, or where it did not know all shapes.
      timelines: "plain" and, for a compressed model, "compressed"; empty with `timeline=False`, and where
        TensorFlow records no allocations, as of very small steps.
      no_timelines: Why there are none; "" where there are.
    """

    model: str
    batch_size: int
    rows: tuple[SavedTensor, ...]
    saved_plain_bytes: int
    predicted_bytes: int | None
    timelines: dict[str, Timeline]
    no_timelines: str = ""

    @property
    def saved_bytes(self) -> int:
        return sum(row.bytes for row in self.rows)

    def to_json(self) -> str:
        """The report as a JSON object; rows and timelines as objects."""
        fields = self._asdict()
        fields["saved_bytes"] = self.saved_bytes
        fields["rows"] = [row._asdict() for row in self.rows]
        fields["timelines"] = {name: line._asdict() for name, line in self.timelines.items()}
        return json.dumps(fields, indent=1)

    def __str__(self) -> str:
        title = f"{self.model}, batch {self.batch_size}: held until the backward pass"
        numbers = ("values", "held", "ratio")
        table = table_of(title, ("layer", "made by", "storage", "shape", *numbers), numbers)
        for row in self.rows:
            table.add_row(
                row.layer,
                row.op.rpartition("/")[2],
                row.storage,
                "x".join("?" if size is None else str(size) for size in row.shape),
                format_bytes(row.value_bytes),
                format_bytes(row.bytes),
                f"{row.value_bytes / row.bytes:.1f}" if row.bytes else "",
            )
        return as_text([table, *self._summary()])

    def _summary(self) -> list[str]:
        ratio = f" ({self.saved_plain_bytes / self.saved_bytes:.1f}x)" if self.saved_bytes else ""
        lines = [
            f"Held: {format_bytes(self.saved_bytes)}, of {format_bytes(self.saved_plain_bytes)} in plain Keras{ratio}."
        ]
        if self.predicted_bytes is not None:
            lines.append(f"Predicted before this step: {format_bytes(self.predicted_bytes)}.")
        if self.timelines:
            peaks = ", ".join(f"{name} {format_bytes(t.peak_bytes)}" for name, t in self.timelines.items())
            lines.append(f"Peak over the resting level: {peaks}.")
        else:
            lines.append(f"No memory over time: {self.no_timelines}")
        return lines

    def plot(self, path: str | Path) -> None:
        """Draws the timelines into an image file. Needs Matplotlib (the extra "plots").

        Args:
          path: Of the image; its ending says the format.

        Raises:
          ValueError: The report has no timelines.
        """
        if not self.timelines:
            raise ValueError(f"This report has no timelines to draw: {self.no_timelines}")
        draw(self.timelines, f"{self.model}, batch {self.batch_size}", path)


def report(model: keras.Model, batch_size: Any, y: Any = None, *, timeline: bool = True) -> MemoryReport:
    """Lists every tensor that a training step holds for its backward pass, and traces the step's memory.

    Traces the model's own train step, as the model is now and as plain Keras, and runs it once where there are
    streams, whose size depends on the data; random inputs compress worse or better than real ones. With
    `timeline` it also runs three real steps of each under the profiler; the model is left as it was.

    Args:
      model: A compiled Keras model, compressed or not.
      batch_size: Samples, for random inputs of the model's input shapes; or one batch of inputs.
      y: The batch's targets; None with a batch size, and for a model with a `train_step` of its own that
        takes none.
      timeline: Whether to trace the memory of a step over time, for `plot`.

    Returns:
      A `MemoryReport`.

    Raises:
      ValueError: The model is not compiled, or has no input shapes to make a random batch from.
      RuntimeError: The profiler runs already.

    Examples:
      >>> found = ct.memory.report(model, 32)
      >>> print(found)
      >>> found.plot("memory.png")
    """
    x, y = batch_of(model, batch_size, y)
    samples = int(tf.nest.flatten(x)[0].shape[0])
    predicted = _predicted_bytes(model, samples)
    rows = saved_tensors(model, x, y)
    with _keras.plain_scope():
        plain_bytes = saved_bytes(model, x, y)
    timelines, no_timelines = {}, ""
    compressed = is_compressed(model)
    if not timeline:
        no_timelines = "call report(..., timeline=True)."
    else:
        try:
            timelines[PLAIN] = _plain_timeline(model, x, y) if compressed else _timeline(model, x, y)
            if compressed:
                timelines[COMPRESSED] = _timeline(model, x, y)
        except NothingRecordedError as error:
            timelines, no_timelines = {}, str(error)
    return MemoryReport(model.name, samples, tuple(rows), plain_bytes, predicted, timelines, no_timelines)


def _predicted_bytes(model: keras.Model, samples: int) -> int | None:
    before = instrumentation(model).report if is_compressed(model) else None
    return None if before is None or before.unpredicted else before.predicted_bytes * samples


def _timeline(model: keras.Model, x: Any, y: Any) -> Timeline:
    trace = trace_model(model, x, y)
    seconds, live = trace.timeline()
    return Timeline(tuple(seconds), tuple(live), forward_end_s(model, trace))


def _plain_timeline(model: keras.Model, x: Any, y: Any) -> Timeline:
    """Of a compressed model's step as plain Keras runs it."""
    _keras.forget_traces(model)
    try:
        with _keras.plain_train_step(model), _keras.plain_scope():
            return _timeline(model, x, y)
    finally:
        _keras.forget_traces(model)
