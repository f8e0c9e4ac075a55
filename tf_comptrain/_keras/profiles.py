"""The files of TensorFlow's profiler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def planes_of_profile(path: str) -> Sequence[Any]:
    """The planes of an `.xplane.pb` file, one of each device, as its protocol buffer has them.

    Args:
      path: The file, which `tf.profiler.experimental.stop` has written.

    Private: `xplane_pb2` (TensorFlow 2.21, 2.15).
    """
    from tensorflow.tsl.profiler.protobuf import xplane_pb2  # not every build has it

    space = xplane_pb2.XSpace()
    with open(path, "rb") as file:
        space.ParseFromString(file.read())
    return space.planes
