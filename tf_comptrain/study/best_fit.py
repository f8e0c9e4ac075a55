"""`ct.best_fit`: the policy that fits a network best, by a study of it."""

from __future__ import annotations

import os

from tf_comptrain.study.policy_fit import BestFit, fit_policy
from tf_comptrain.study.results import Study


def best_fit(
    study: Study | str | os.PathLike,
    tolerance: float = 0.1,
    *,
    network: str | None = None,
    per: str = "class",
    objective: str = "bytes",
    metric_tolerance: float | None = None,
) -> BestFit:
    """The policy of fewest bytes whose gradients are within a tolerance, from the tensor cells of a study.

    Errors of different tensors do not depend on each other, so that the squares of what each does to the gradients by
    itself add up: the settings are chosen so that the root of that sum, mean over the stages, is within `tolerance`.
    They are those of this library's codecs that the study has. Known weakness: what the sum leaves out, errors that
    meet in a gradient that both change, is in the study's rows of all tensors together.

    Args:
      study: The study, or its folder.
      tolerance: Root mean square over the weights of (error of the gradient / gradient).
      network: Of the study's networks; None where it has one.
      per: "class": a setting for all tensors that are read alike (convolution, linear, norm, nonlinear), which any
        model of the same kind can take. "tensor": one for each tensor by name, which is for this network alone.
      objective: "bytes", or "time": the seconds that encoding and decoding take.
      metric_tolerance: Settings whose trainings ended by more than that worse than plain ones, in units of the metric,
        mean over the seeds, are left out, as are those without trainings. None: trainings do not count.

    Returns:
      The policy, with what it is predicted to do, and the best single setting.

    Raises:
      ValueError: An argument is out of range; the study has no tensor cells of the network; nothing that was measured
        is within the tolerance (the message says what the most exact setting does).

    Examples:
      >>> fit = ct.best_fit("study", tolerance=0.1)
      >>> print(fit)
      >>> fit.write("policy.json")
    """
    found = study if isinstance(study, Study) else Study(study)
    return fit_policy(found, tolerance, network, per, objective, metric_tolerance)
