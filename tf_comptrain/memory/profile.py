"""What TensorFlow's profiler records of one training step."""

from __future__ import annotations

import glob
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tf_comptrain import _keras

_OPERATION = re.compile(r"([^:\s]+):([^:\s]+)")


class Recorded(NamedTuple):
    """One event of a profile.

    Attributes:
      plane: The device: "/host:CPU", "/device:GPU:0".
      line: The thread or the stream of that device.
      name: Of the event.
      start_ps: On the clock of all events of a profile.
      duration_ps: How long.
      fields: Of it, as the profile stores them.
      field_names: Of the plane.
    """

    plane: str
    line: str
    name: str
    start_ps: int
    duration_ps: int
    fields: Any
    field_names: Mapping[int, str]

    @property
    def end_ps(self) -> int:
        return self.start_ps + self.duration_ps

    def values(self) -> dict[str, Any]:
        """The fields by name."""
        found = {}
        for field in self.fields:
            kind = field.WhichOneof("value")
            value = getattr(field, kind)
            found[self.field_names[field.metadata_id]] = (
                self.field_names[value] if kind == "ref_value" else value
            )
        return found

    def operation(self) -> tuple[str, str] | None:
        """(name, type) where the event is an operation's run."""
        match = _OPERATION.fullmatch(self.name)
        return (match[1], match[2]) if match else None


def profile_step(step: Callable[[], Any]) -> list[Recorded]:
    """Runs `step` once under the profiler; no warm-up.

    Raises:
      RuntimeError: The profiler runs already.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=3, python_tracer_level=0)
        try:
            tf.profiler.experimental.start(folder, options)
        except tf.errors.AlreadyExistsError as error:
            raise RuntimeError("TensorFlow's profiler runs already: stop it (TensorBoard?) first.") from error
        try:
            step()
        finally:
            tf.profiler.experimental.stop()
        files = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
        return [event for path in files for event in _events_of(path)]


def _events_of(path: str) -> Iterator[Recorded]:
    for plane in _keras.planes_of_profile(path):
        names = {key: value.name for key, value in plane.event_metadata.items()}
        field_names = {key: value.name for key, value in plane.stat_metadata.items()}
        for line in plane.lines:
            for event in line.events:
                start_ps = line.timestamp_ns * 1000 + event.offset_ps
                name = names[event.metadata_id]
                yield Recorded(
                    plane.name, line.name, name, start_ps, event.duration_ps, event.stats, field_names
                )
