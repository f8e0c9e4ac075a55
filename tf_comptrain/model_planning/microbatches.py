"""A plan for a limit that no step of the whole batch keeps: in microbatches, whose gradients are added up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.compression.model import restore_model
from tf_comptrain.memory.analysis import analysis_of_step
from tf_comptrain.memory.batches import random_batch
from tf_comptrain.memory.measure import measure_steps
from tf_comptrain.model_planning.model_plan import ModelPlan
from tf_comptrain.placement import accumulation

_TRIES = 3
MOST_MICROBATCHES = 16  # microbatches: a step is traced with all of them
_STEPS = 6  # that confirm a plan
_MARGIN = 0.03  # the peak of a step scatters from run to run, with the chunks that the allocator has


def obstacle_to_microbatches(model: keras.Model, wanted: bool | None) -> str:
    """Why a batch is not to be computed in microbatches; "" where it may be.

    Args:
      model: The model.
      wanted: None: only where that has the whole batch's gradient.
    """
    if wanted is False:
        return "microbatches=False"
    problem = accumulation.obstacle(model)
    if problem or wanted:
        return problem
    norms = [
        layer.name
        for layer in _keras.sublayers(model)
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
    ]
    what = "batch normalization takes its statistics from each microbatch"
    return f"{what} ({norms[0]!r}); microbatches=True accepts that" if norms else ""


def plan_in_microbatches(
    model: keras.Model,
    whole: ModelPlan,
    first: int,
    plan_of: Callable[[int, int], ModelPlan],
    streams: dict[str, Any],
) -> ModelPlan | None:
    """The plan in as few microbatches as a step of it confirms; None where none was found.

    Args:
      model: The model, which is left as it was.
      whole: The smallest plan of the whole batch, which does not fit.
      first: How many microbatches may be few enough.
      plan_of: From (samples, bytes) to the plan of a step of a microbatch.
      streams: How tensors are encoded, as arguments of `compress_model`.
    """
    batch, limit = whole.batch, whole.limit_bytes
    x, y = random_batch(model, 1)
    sample_bytes = sum(t.dtype.size * t.shape.num_elements() for t in tf.nest.flatten((x, y)))
    gradient_bytes = _keras.bytes_of(*_keras.trainable_variables(model))
    # `first` is of a step in proportion to the batch: a little too careful.
    counts = [count for count in range(max(first // 2, 2), MOST_MICROBATCHES + 1) if batch % count == 0]
    for count in counts[:_TRIES]:
        samples = batch // count
        others = gradient_bytes + (batch - samples) * sample_bytes
        plan = plan_of(samples, limit - others)
        if not plan.feasible:
            continue
        peak = _peak(model, plan, count, sample_bytes, streams)
        if peak <= limit:
            return plan._replace(
                batch=batch,
                microbatches=count,
                limit_bytes=limit,
                peak_bytes=peak,
                step_s=plan.step_s and plan.step_s * count,
                bound_s=None,
                gap=None,
                plain_s=whole.plain_s,
                kept_peak_bytes=whole.kept_peak_bytes,
                smallest_bytes=min(peak, whole.smallest_bytes),
                curve=(),
                events=(),
            )
    return None


def _peak(model: keras.Model, plan: ModelPlan, count: int, sample_bytes: int, streams: dict[str, Any]) -> int:
    """Of a step of so many microbatches.

    On the executor of two: the second finds the gradients of the first, as all later ones do.
    """
    compiled = _keras.jit_compile(model)
    run = count if compiled else 2
    plan.apply(model, **streams)
    try:
        accumulation.set_microbatches(model, run)
        x, y = random_batch(model, run * plan.batch)
        if compiled:
            return analysis_of_step(model, x, y).total_bytes
        with _keras.order_kept():
            above, resting, _ = measure_steps(model, x, y, _STEPS, copies=True)
        return resting + int(above * (1 + _MARGIN)) + (count - run) * plan.batch * sample_bytes
    finally:
        accumulation.set_microbatches(model, 1)
        restore_model(model)
