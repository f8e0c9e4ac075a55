"""Tensor cells of a study: each tensor that a step holds, through a codec and back, and what gradients make of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tf_comptrain import codecs
from tf_comptrain.compression.law_check import LawCheck
from tf_comptrain.study.grid import Candidate
from tf_comptrain.study.probe import Gradients, Probe, ProbedTensor
from tf_comptrain.study.round_trip import RoundTrip, round_trip

_SMALLEST = (
    1e-4  # of the whole gradient: below it, as of a bias before a normalization, a weight's is rounding
)
ALL = "all"  # as a tensor's name: all tensors of the step at once


class ProbedStage:
    """A step of a training, looked at.

    Args:
      probe: The step.
      weights: Those of the stage.
    """

    def __init__(self, probe: Probe, weights: Sequence[np.ndarray]):
        self._probe = probe
        self.tensors, self._exact = probe.look(weights)

    def rows(self, setting: Candidate) -> list[dict[str, Any]]:
        """Of each tensor, and of all at once."""
        found = {tensor.name: _taken(tensor, setting) for tensor in self.tensors}
        together = self._probe.run(found)
        rows = [
            {
                "tensor": tensor.name,
                "tensor_class": tensor.kind,
                "shape": "x".join(map(str, tensor.values.shape)),
                **found[tensor.name].row,
                **_law(together.checks, tensor.name),
                **self._difference(self._probe.run({tensor.name: found[tensor.name]})),
            }
            for tensor in self.tensors
        ]
        return [*rows, {**_sums(rows), **self._difference(together)}]

    def _difference(self, gradients: Gradients) -> dict[str, float]:
        """From those of the exact step: root mean square of the weights' relative errors, cosine of all as one."""
        pairs = list(zip(gradients.values, self._exact.values))
        sizes = [float(np.linalg.norm(exact)) for _, exact in pairs]
        size, found = math.hypot(*sizes), math.hypot(*(float(np.linalg.norm(ours)) for ours, _ in pairs))
        errors = [
            float(np.linalg.norm(ours - exact)) / of_weight
            for (ours, exact), of_weight in zip(pairs, sizes)
            if of_weight > _SMALLEST * size
        ]
        product = sum(float((ours * exact).sum()) for ours, exact in pairs)
        return {
            "gradient_error": math.hypot(*errors) / math.sqrt(len(errors)) if errors else math.nan,
            "gradient_cosine": product / (size * found) if size and found else math.nan,
        }


def _taken(tensor: ProbedTensor, setting: Candidate) -> RoundTrip:
    codec = codecs.dithered(setting.made(), tensor.mask, xla=False)
    return round_trip(setting, codec, tensor.values, tensor.mask, tensor.value_bytes)


def _law(checks: Sequence[LawCheck], name: str) -> dict[str, float | None]:
    """Of the gradients of weights that are made of a tensor, root sum of squares over those."""
    of_tensor = [
        check
        for check in checks
        if check.layer.partition(" -> ")[0] == name and check.gradient != "input" and check.gradient_rms
    ]
    if not of_tensor:
        return {"predicted_sigma": None, "measured_sigma": None, "law_cosine": None}
    return {
        "predicted_sigma": math.hypot(*(check.predicted_sigma / check.gradient_rms for check in of_tensor)),
        "measured_sigma": math.hypot(*(check.measured_sigma / check.gradient_rms for check in of_tensor)),
        "law_cosine": min(check.cosine for check in of_tensor),
    }


def _sums(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of all tensors of a step."""
    plain, held = (sum(row[name] for row in rows) for name in ("value_bytes", "held_bytes"))
    violations = [row["violations"] for row in rows if row["violations"] is not None]
    return {
        "tensor": ALL,
        "tensor_class": ALL,
        "value_bytes": plain,
        "held_bytes": held,
        "ratio": plain / max(held, 1),
        "violations": sum(violations) if violations else None,
        "encode_gb_s": _speed(rows, plain, "encode_gb_s"),
        "decode_gb_s": _speed(rows, plain, "decode_gb_s"),
    }


def _speed(rows: Sequence[dict[str, Any]], plain: int, name: str) -> float:
    return plain / max(sum(row["value_bytes"] / row[name] for row in rows), 1e-12)
