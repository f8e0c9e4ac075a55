"""Training on several devices and machines, by TensorFlow's own engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf_comptrain.lazy import lazy_names

if TYPE_CHECKING:
    from tf_comptrain.distribute.cluster import connect, is_first_worker
    from tf_comptrain.distribute.worker import fit
    from tf_comptrain.placement import Stage, place, unplace

__all__ = ["Stage", "connect", "fit", "is_first_worker", "place", "unplace"]

# `tf-comptrain launch` starts workers by `launching`, which needs no TensorFlow.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "distribute.cluster": ("connect", "is_first_worker"),
        "distribute.worker": ("fit",),
        "placement": ("Stage", "place", "unplace"),
    },
    first="backend",
)
