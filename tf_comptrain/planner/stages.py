"""A stage: consecutive layers, the devices that have them, and how these divide the work."""

from __future__ import annotations

from typing import NamedTuple

BATCH, CHANNELS, ROWS = "batch", "channels", "rows"
SPLITS = (BATCH, CHANNELS, ROWS)


class Stage(NamedTuple):
    """Consecutive layers of a model on devices of their own.

    Attributes:
      layers: Names, in the order of the model.
      devices: Numbers, from 0.
      split: What each of several devices has: "batch", a part of every microbatch and all weights; "channels", a part
        of every layer's output channels and weights; or "rows", a part of every image's rows, whose neighbours'
        border rows (the halo) it is sent, and all weights.
    """

    layers: tuple[str, ...]
    devices: tuple[int, ...]
    split: str = BATCH
