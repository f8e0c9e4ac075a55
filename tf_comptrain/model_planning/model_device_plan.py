"""A plan for a model over several devices, which can be applied to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorflow import keras

from tf_comptrain import placement, planner
from tf_comptrain.compression.model import compress_model
from tf_comptrain.compression.report import Report
from tf_comptrain.render.units import format_bytes
from tf_comptrain.storage import COMPRESS, KEEP, OFFLOAD

_STREAM = "stream:"


class ModelDevicePlan(planner.DevicePlan):
    """A `planner.DevicePlan` of a model's training step; see `plan`.

    Examples:
      >>> plan = ct.plan(model, batch_size=64, memory="2GB", devices=4)
      >>> print(plan)
      >>> plan.apply(model)
    """

    __slots__ = ()

    def apply(self, model: keras.Model, devices: Sequence[str] | None = None, **how: Any) -> Report:
        """Puts a model's layers on the plan's devices, and holds what they save as it says.

        It is `ct.distribute.place` with the plan's stages, microbatches and streams at borders, and `compress_model`.
        What a layer saves is kept, compressed or offloaded.

        Args:
          model: The one that the plan was made for, or one with the same names of layers; built.
          devices: Names that the numbers of the stages stand for; see `ct.distribute.place`.
          **how: `codec`, `error_bound` and `policy` of `compress_model`.

        Returns:
          The report of `compress_model`.

        Raises:
          ValueError: The plan does not fit into its memory, or names other layers; or see `ct.distribute.place` and
            `compress_model`. Nothing has been changed then.
        """
        if not self.feasible:
            raise ValueError(
                f"The plan for {self.model!r} takes {format_bytes(self.peak_bytes)} on a device, over the "
                f"{format_bytes(self.memory_bytes)} that it was made for: plan with more memory or devices."
            )
        names = {layer.name for layer in model.layers}
        stages = [
            stage._replace(layers=tuple(n for n in stage.layers if n in names)) for stage in self.stages
        ]
        codec = next((way.removeprefix(_STREAM) for way in self.crossings if way.startswith(_STREAM)), None)
        placement.place(model, stages, self.microbatches, devices, codec)
        try:
            return compress_model(model, storage=self._storage_of_layers(), **how)
        except Exception:
            placement.unplace(model)
            raise

    def _storage_of_layers(self) -> dict[str, str]:
        found = {}
        for layer in (layer for stage in self.stages for layer in stage.layers):
            way = self.storage.get(layer, KEEP).partition(":")[0]
            found[layer] = way if way in (KEEP, OFFLOAD) else COMPRESS
        return found

    @classmethod
    def from_json(cls, source: str | Path | dict) -> ModelDevicePlan:
        """The plan in JSON text, a file, or what `json.loads` made of one; see `planner.device_plan_from_json`."""
        return cls(*planner.device_plan_from_json(source))
