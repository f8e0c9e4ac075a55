"""A plan for a model, which can be applied to it."""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import logging
from tensorflow import keras

from tf_comptrain import _keras, planner
from tf_comptrain.compression.instrumentation import compressed_models
from tf_comptrain.compression.layer_names import fingerprint
from tf_comptrain.compression.model import compress_model
from tf_comptrain.compression.report import Report
from tf_comptrain.memory import counters
from tf_comptrain.model_planning.crossing_tensors import carried_out
from tf_comptrain.placement.accumulation import set_microbatches
from tf_comptrain.render.units import format_bytes
from tf_comptrain.storage import Offload

_ENGINES = {False: "TensorFlow's executor (jit_compile=False)", True: "XLA (jit_compile=True)"}


class ModelPlan(planner.Plan):
    """A `planner.Plan` of a model's training step; see `plan`.

    Examples:
      >>> plan = ct.plan(model, batch_size=64, memory="8GiB")
      >>> print(plan)
      >>> plan.apply(model)
    """

    __slots__ = ()

    def apply(self, model: keras.Model, offload: Offload | None = None, **how: Any) -> Report:
        """Compresses a model as the plan says: `compress_model` with its storages, in its microbatches.

        Args:
          model: The model that the plan was made for, or one of the same layers.
          offload: Where and how what the plan offloads waits; its codec is `codec`. None: where that is by default.
          **how: `codec`, `error_bound` and `policy`, as the plan was made with.

        Raises:
          ValueError: The plan is of another model or of another engine, or fits into no limit; or see `compress_model`.
            Nothing has been changed then.
        """
        if self.fingerprint != fingerprint(model):
            raise ValueError(
                f"`model` must be the one that the plan was made for, {self.model!r}, or one with the same layers, "
                f"inputs and shapes of weights. Received: {model.name!r}. Plan it anew: tf_comptrain.plan(model, ...). "
                "Where the names are Keras' own, which it numbers: keras.utils.clear_session() before it is built."
            )
        if not self.feasible:
            raise ValueError(too_small(self))
        if _keras.is_compiled(model) and self._is_of_other_engine(model):
            raise ValueError(
                f"`model` must run its steps where they were planned, {_ENGINES[self.step_s is None]}. Received: "
                f"{model.name!r}, compiled with jit_compile={_keras.jit_compile(model)}. Compile it so, or plan it "
                "anew: tf_comptrain.plan(model, ...)."
            )
        waiting = dataclasses.replace(offload or Offload(), codec=how.get("codec", "plane"))
        report = compress_model(model, storage=carried_out(self.storage, waiting), **how)
        held = compressed_models[model].held
        if held is not None:
            held.wishes.is_plan = True
            held.wishes.smaller_tiles = self.smaller_tiles
        set_microbatches(model, self.microbatches)
        if not _keras.jit_compile(model):
            counters.reserve(self.limit_bytes)
            _keras.around_runs(model, "plan", _run)
        _keras.around_runs(model, "engine", self._comparing(model))
        return report

    def _is_of_other_engine(self, model: keras.Model) -> bool:
        return _keras.jit_compile(model) != (self.step_s is None)

    def _comparing(self, model: keras.Model) -> Callable[[Callable, Any], Any]:
        """What runs a train function, and says where it was compiled for another engine since."""
        reference, said = weakref.ref(model), False

        def run(train_function: Callable, iterator: Any) -> Any:
            nonlocal said
            model = reference()
            if not said and model is not None and self._is_of_other_engine(model):
                said = True
                logging.warning(
                    "%s: its plan is for steps on %s, which these are not: the limit of %s may not be kept. "
                    "tf_comptrain.restore_model(model), then plan it anew.",
                    self.model,
                    _ENGINES[self.step_s is None],
                    format_bytes(self.limit_bytes),
                )
            return train_function(iterator)

        return run

    @classmethod
    def from_json(cls, source: str | Path | dict) -> ModelPlan:
        """The plan in JSON text, a file, or what `json.loads` made of one; see `planner.plan_from_json`."""
        return cls(*planner.plan_from_json(source))


def _run(train_function: Callable, iterator: Any) -> Any:
    with _keras.order_kept():
        return train_function(iterator)


def too_small(
    plan: planner.Plan, parts: tuple[int, int] | None = None, obstacle: str = "", others: int = 0
) -> str:
    """The message that no plan fits.

    Args:
      plan: The smallest.
      parts: (Into how many microbatches the batch may be divided so that one does, or of one sample, bytes that it
        takes then.)
      obstacle: Why that was not done.
      others: Bytes in use by others than the model.
    """
    remedy = "A smaller batch takes less."
    if parts is None and obstacle:
        remedy = f"It was not divided into microbatches: {obstacle}. {remedy}"
    elif parts is not None:
        count, size = parts
        of = f"The same batch in {count} microbatches of {plan.batch // count} takes"
        if obstacle:
            remedy = f"{of} about {_megabytes(size)}; it was not divided: {obstacle}."
        elif size > plan.limit_bytes:
            remedy = f"{of} about {_megabytes(size)}. {remedy}"
        else:
            remedy = (
                f"{of} about {_megabytes(size)} by its tensors, and took more when it was tried. {remedy}"
            )
    said = ""
    if others > plan.smallest_bytes // 20:
        said = (
            f" Others than this model hold {_megabytes(others)} of that, such as data and models of before: del and "
            "keras.utils.clear_session() free these."
        )
    return (
        f"`memory` must be at least about {_megabytes(plan.smallest_bytes)} for {plan.model!r} at batch {plan.batch}, "
        f"what the smallest plan of the whole batch takes. Received: {_megabytes(plan.limit_bytes)}.{said} {remedy}"
    )


def _megabytes(size: int) -> str:
    """Rounded up: what is advised has room."""
    return f'"{math.ceil(size / 1e5) / 10:.1f}MB"'


def fewest_parts(batch: int, fixed: int, proportional: float, limit: int) -> tuple[int, int] | None:
    """(parts of a batch, bytes) that fit into a limit, where so many bytes are for all of it.

    Where no number does, the batch in parts of one sample; None of one sample.
    """
    sizes = [
        (count, fixed + int(proportional / count)) for count in range(2, batch + 1) if batch % count == 0
    ]
    return next((part for part in sizes if part[1] <= limit), sizes[-1] if sizes else None)
