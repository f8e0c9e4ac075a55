"""Where and how the tensors of a plan may wait outside of the device's memory."""

from __future__ import annotations

import dataclasses

from tf_comptrain import codecs
from tf_comptrain.codecs import Codec
from tf_comptrain.storage import Offload, default_folder, engine_of_model, is_in_memory, obstacle


def offload_of_plan(offload: bool | Offload, codec: str | Codec) -> Offload | None:
    """Where and how; None: they may not.

    Args:
      offload: As `plan` takes it.
      codec: Of the streams that wait.

    Raises:
      TypeError: `offload` is neither a truth value nor an `Offload`.
      ValueError: An `Offload` that does not go with this machine, or an unknown codec.
    """
    if not isinstance(offload, (bool, Offload)):
        raise TypeError(f"`offload` must be True, False or an Offload. Received: {offload!r}.")
    if offload is False or codecs.get(codec).is_lossless:
        return None
    engine = engine_of_model(xla=False)
    if isinstance(offload, Offload):
        why = obstacle(offload, engine)
        if why is not None:
            raise ValueError(f"`offload` must have a tier that this machine has: a step {why}.")
        return dataclasses.replace(offload, codec=codec)
    if engine.is_cpu_executor and not _has_disk():
        return None
    return Offload(codec=codec)


def _has_disk() -> bool:
    """Whether there is a folder of this user's, and not in memory."""
    try:
        return not is_in_memory(default_folder())
    except (OSError, ValueError):
        return False
