"""When a training step computes, and what leaves the device's memory and comes back meanwhile."""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.compression.restored_state import state_restored
from tf_comptrain.memory.batches import batch_of
from tf_comptrain.memory.counters import device
from tf_comptrain.memory.profile import Recorded, profile_step
from tf_comptrain.render import plots
from tf_comptrain.render.text import as_text, table_of
from tf_comptrain.render.units import format_bytes

OUT, BACK = "out", "back"
# Events of cc/kernels/offload, and of CUDA's copies.
_DIRECTIONS = {
    "comptrain_offload_out": OUT,
    "comptrain_offload_in": BACK,
    "MemcpyD2H": OUT,
    "MemcpyH2D": BACK,
}
# They hand over and take; threads of the op library carry the bytes.
_WAITING = frozenset(("Comptrain>Spill", "Comptrain>ReadAhead", "Comptrain>Fetch"))
_GPU = "/device:GPU:"
_STREAM = "Stream"
_COPIED_BYTES = re.compile(r"size:(\d+)")

Span = tuple[float, float]


class Transfer(NamedTuple):
    """Bytes that moved at once.

    Attributes:
      direction: "out" of the device's memory, or "back".
      site: Whose tensor; "" on a GPU, whose copies bear no name.
      plain_bytes: Of the tensor as plain values; 0 on a GPU.
      bytes: Moved.
      start_s, end_s: Since the first operation; negative before it. In and out of a file with the checksum.
    """

    direction: str
    site: str
    plain_bytes: int
    bytes: int
    start_s: float
    end_s: float


class Transfers(NamedTuple):
    """Result of `transfers`; `print` shows it as a table.

    Attributes:
      model: Name of the model.
      batch_size: Samples in a step.
      steps: That ran: the model's `steps_per_execution`.
      computing: Spans of time, (start, end) in seconds, in which operations ran; none touches another.
      moved: What moved, by the time at which it began. Beside a GPU all copies of 64 KiB and more from and to the
        host's memory, the batch's too.
    """

    model: str
    batch_size: int
    steps: int
    computing: tuple[Span, ...]
    moved: tuple[Transfer, ...]

    @property
    def moving_s(self) -> float:
        """Seconds in which something moved."""
        return _length(_merged((t.start_s, t.end_s) for t in self.moved))

    @property
    def exposed_s(self) -> float:
        """Of them those in which nothing was computed."""
        return self.moving_s - self.hidden_s

    @property
    def hidden_s(self) -> float:
        """Of them those in which something was computed."""
        return _overlap(_merged((t.start_s, t.end_s) for t in self.moved), self.computing)

    def to_json(self) -> str:
        """The result as a JSON object."""
        fields = self._asdict()
        fields["moved"] = [transfer._asdict() for transfer in self.moved]
        fields |= {name: getattr(self, name) for name in ("moving_s", "hidden_s", "exposed_s")}
        return json.dumps(fields, indent=1)

    def __str__(self) -> str:
        numbers = ("copies", "plain", "out", "back", "out, ms", "back, ms", "hidden")
        steps = "one step" if self.steps == 1 else f"{self.steps} steps"
        title = f"{self.model}, batch {self.batch_size}: moved in {steps}"
        table = table_of(title, ("site", *numbers), numbers)
        by_site: dict[str, list[Transfer]] = collections.defaultdict(list)
        for transfer in self.moved:
            by_site[transfer.site].append(transfer)
        for site, found in by_site.items():
            table.add_row(site or "all copies", *self._cells(found))
        if len(by_site) > 1:
            table.add_section()
            table.add_row("all", *self._cells(self.moved))
        step_s = self.computing[-1][1] - self.computing[0][0]
        line = (
            f"Of {1000 * step_s:.1f} ms something moved in {1000 * self.moving_s:.1f}: "
            f"{1000 * self.hidden_s:.1f} hidden behind computation, {1000 * self.exposed_s:.1f} exposed."
        )
        return as_text([table, line])

    def _cells(self, moved: Sequence[Transfer]) -> tuple[str, ...]:
        of = {direction: [t for t in moved if t.direction == direction] for direction in (OUT, BACK)}
        plain_bytes = sum(t.plain_bytes for t in of[OUT])
        spans = _merged((t.start_s, t.end_s) for t in moved)
        return (
            str(len(of[OUT])),
            format_bytes(plain_bytes) if plain_bytes else "",
            *(format_bytes(sum(t.bytes for t in of[direction])) for direction in (OUT, BACK)),
            *(f"{1000 * sum(t.end_s - t.start_s for t in of[direction]):.1f}" for direction in (OUT, BACK)),
            f"{_overlap(spans, self.computing) / max(_length(spans), 1e-12):.0%}",
        )

    def plot(self, path: str | Path) -> None:
        """Draws the step, computation above what moves out and back, into an image file. Needs Matplotlib (the extra
        "plots").

        Args:
          path: Of the image; its ending says the format.
        """
        lanes = (
            ("compute", self.computing, plots.GREY),
            (OUT, _merged(_spans(self.moved, OUT)), plots.BLUE),
            (BACK, _merged(_spans(self.moved, BACK)), plots.ORANGE),
        )
        figure = plots.figure(9, 3)
        axes = figure.subplots()
        bars = [
            (lane, colour, [(1000 * start, 1000 * end) for start, end in spans])
            for lane, (_, spans, colour) in enumerate(lanes)
        ]
        plots.lanes(axes, [name for name, *_ in lanes], bars)
        for lane, (name, *_) in enumerate(lanes):
            moved_bytes = sum(t.bytes for t in self.moved if t.direction == name)
            if moved_bytes:
                place = {"xycoords": ("axes fraction", "data"), "va": "center"}
                plots.note(axes, format_bytes(moved_bytes), (1, lane), (6, 0), **place)
        plots.title(
            axes,
            f"{self.model}, batch {self.batch_size}: {1000 * self.hidden_s:.0f} of {1000 * self.moving_s:.0f} "
            "ms of moving hidden behind computation",
        )
        axes.set(xlabel="ms")
        plots.save(figure, path)


def transfers(model: keras.Model, batch_size: Any, y: Any = None) -> Transfers:
    """Runs a real training step under the profiler and says what moved out of the device's memory and back, and when.

    The step is the model's own compiled one, after two of warm-up; weights are put back. The profiler slows a step of
    many small operations down.

    Args:
      model: A compiled Keras model with `storage="offload"` for some of its tensors.
      batch_size: Samples, for random inputs of the model's input shapes; or one batch of inputs. Streams of random
        inputs are smaller or larger than those of real ones.
      y: The batch's targets; None with a batch size, and for a model with a `train_step` of its own that takes none.

    Returns:
      A `Transfers`; nothing moved where no tensor is offloaded.

    Raises:
      ValueError: The model is not compiled, or has no input shapes to make a random batch from.
      RuntimeError: The profiler runs already, or records no operation: of a GPU it needs the right to.

    Examples:
      >>> ct.compress_model(model, storage="offload")
      >>> found = ct.memory.transfers(model, 32)
      >>> print(found)
      >>> found.plot("transfers.png")
    """
    x, y = batch_of(model, batch_size, y)
    step = _keras.train_step_runner(model, x, y)
    with state_restored(model):
        step()
        step()
        recorded = profile_step(step)
    samples = int(tf.nest.flatten(x)[0].shape[0])
    on_gpu = device().startswith("GPU")
    return transfers_of(recorded, on_gpu, model.name, samples, _keras.steps_at_once(model))


def transfers_of(
    recorded: Sequence[Recorded], on_gpu: bool, model: str, batch_size: int, steps: int
) -> Transfers:
    """Those of a profile; of several GPUs those of the busiest.

    Raises:
      RuntimeError: It has no operation of the device.
    """
    if on_gpu:
        recorded = of_busiest_gpu(recorded)
        ran = [event for event in recorded if is_kernel(event)]
    else:
        ran = [event for event in recorded if _computes(event)]
    if not ran:
        why = ", as without the right to its counters (ERR_NVGPUCTRPERM) or without the CUPTI library"
        raise RuntimeError(
            f"TensorFlow's profiler recorded no operation of the {'GPU' + why if on_gpu else 'step'}."
        )
    origin_ps = min(event.start_ps for event in ran)

    def span(event: Recorded) -> Span:
        return (event.start_ps - origin_ps) / 1e12, (event.end_ps - origin_ps) / 1e12

    moved = []
    for event in recorded:
        if event.name in _DIRECTIONS:
            values = event.values()
            copied = _COPIED_BYTES.search(str(values.get("memcpy_details", "")))
            size = int(copied[1]) if copied else int(values.get("bytes", 0))
            if size >= 1 << 16:
                site, plain_bytes = str(values.get("site", "")), int(values.get("plain_bytes", 0))
                moved.append(Transfer(_DIRECTIONS[event.name], site, plain_bytes, size, *span(event)))
    moved.sort(key=lambda transfer: transfer.start_s)
    return Transfers(model, batch_size, steps, tuple(_merged(map(span, ran))), tuple(moved))


def of_busiest_gpu(recorded: Sequence[Recorded]) -> list[Recorded]:
    """What one GPU's streams ran; the profile has lines beside them that are derived from it."""
    streams = [e for e in recorded if e.plane.startswith(_GPU) and e.line.startswith(_STREAM)]
    busy_ps: collections.Counter[str] = collections.Counter()
    for event in filter(is_kernel, streams):
        busy_ps[event.plane] += event.duration_ps
    busiest = max(busy_ps, key=busy_ps.__getitem__, default="")
    return [event for event in streams if event.plane == busiest]


def is_kernel(event: Recorded) -> bool:
    return not event.name.startswith(("Memcpy", "Memset"))


def _computes(event: Recorded) -> bool:
    operation = event.operation()
    return operation is not None and operation[1] not in _WAITING


def _spans(moved: Iterable[Transfer], direction: str) -> Iterable[Span]:
    return ((t.start_s, t.end_s) for t in moved if t.direction == direction)


def _merged(spans: Iterable[Span]) -> list[Span]:
    """Their union, in order."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def _length(spans: Iterable[Span]) -> float:
    return sum(end - start for start, end in spans)


def _overlap(some: Sequence[Span], others: Sequence[Span]) -> float:
    """Seconds that lie in both; each in order, and no span of either touches another."""
    seconds, k = 0.0, 0
    for start, end in some:
        while k < len(others) and others[k][1] <= start:
            k += 1
        j = k
        while j < len(others) and others[j][0] < end:
            seconds += min(end, others[j][1]) - max(start, others[j][0])
            j += 1
    return seconds
