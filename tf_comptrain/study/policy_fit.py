"""The policy that fits a network best: codec and bound of each class of tensors, or of each tensor, by a study."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tf_comptrain import arguments
from tf_comptrain.storage import Policy, Setting
from tf_comptrain.study.grid import CONTESTANTS, FIXED_RATE, LOSSLESS, Candidate

if TYPE_CHECKING:
    from tf_comptrain.study.results import Study

_GROUPS = {"class": "tensor_class", "tensor": "tensor"}
_OBJECTIVES = ("bytes", "time")


class SettingEffect(NamedTuple):
    """What a setting does to a group of tensors, mean over the stages and seeds.

    Attributes:
      setting: The setting.
      held_bytes: Of the streams.
      seconds: To encode and decode.
      squared_error: Sum over the tensors of the squares of their gradient errors.
    """

    setting: Candidate
    held_bytes: float
    seconds: float
    squared_error: float


class BestFit(NamedTuple):
    """A policy, beside the best single codec and bound.

    Attributes:
      policy: For `compress_model(model, policy=...)`.
      network: Of the study.
      gradient_error: Predicted: root mean square over the weights of error / gradient, with all tensors held so.
      held_bytes: Of the streams of a step.
      value_bytes: Of the same tensors as they are.
      single: The best that one codec and bound for all tensors does; None where none is within the tolerance.
      single_bytes: Of its streams.
      single_error: Its gradient error.
    """

    policy: Policy
    network: str
    gradient_error: float
    held_bytes: int
    value_bytes: int
    single: Candidate | None
    single_bytes: int
    single_error: float

    @property
    def saving(self) -> float:
        """Share of the best single setting's bytes that the policy does without; 0 where there is no such setting."""
        return 1 - self.held_bytes / self.single_bytes if self.single_bytes else 0.0

    def write(self, file: str | os.PathLike) -> None:
        """Writes the policy as JSON, which `compress_model(model, policy=file)` reads."""
        Path(file).write_text(self.policy.to_json())

    def __str__(self) -> str:
        names = self.policy.settings()
        width = max((len(name) for name, _ in names), default=0)
        lines = [f"{name:{width}}  {_words(setting)}" for name, setting in names]
        ratio = self.value_bytes / max(self.held_bytes, 1)
        lines.append(f"{ratio:.1f} times fewer bytes, gradients {self.gradient_error:.1%} off")
        if self.single is not None:
            lines.append(f"{self.saving:.0%} fewer bytes than the best single setting, {self.single}")
        return "\n".join(lines)


def fit_policy(
    study: Study,
    tolerance: float,
    network: str | None = None,
    per: str = "class",
    objective: str = "bytes",
    metric_tolerance: float | None = None,
) -> BestFit:
    """See `best_fit`."""
    limit = arguments.real("tolerance", tolerance, above=0) ** 2
    for name, value, known in (("per", per, _GROUPS), ("objective", objective, _OBJECTIVES)):
        if value not in known:
            raise ValueError(f"`{name}` must be one of {', '.join(map(repr, known))}. Received: {value!r}.")
    network = _network(study, network)
    settings = _settings(study, network, metric_tolerance)
    groups = _options(study, network, settings, _GROUPS[per])
    if not groups:
        raise ValueError(
            f"`study` must have tensor cells of {network!r}, of codecs of this library that are within "
            "`metric_tolerance`. Run tf_comptrain.impact_study with `stages` and more of them."
        )
    if not all(math.isfinite(option.squared_error) for group in groups.values() for option in group):
        raise ValueError(
            f"`study` must have gradients that an error can be compared with: some of {network!r} are zero, or "
            "not finite. Measure other `stages`, where the loss still falls."
        )
    single = _best(_sums(groups.values()), limit, objective)
    chosen = choose(list(groups.values()), limit, objective)
    if chosen is None:
        least = min(option.squared_error for option in _sums(groups.values()))
        raise ValueError(
            f"`tolerance` must be at least {math.sqrt(least):.3g} for what the study has measured of {network!r}. "
            f"Received: {tolerance!r}. Measure tighter bounds, or codec 'zvc'."
        )
    made = {name: _setting(option.setting) for name, option in zip(groups, chosen)}
    policy = Policy(made) if per == "class" else Policy(tensors=made)
    return BestFit(
        policy,
        network,
        math.sqrt(sum(option.squared_error for option in chosen)),
        round(sum(option.held_bytes for option in chosen)),
        _value_bytes(study, network, settings[0]),
        single.setting if single else None,
        round(single.held_bytes) if single else 0,
        math.sqrt(single.squared_error) if single else math.nan,
    )


def choose(
    groups: Sequence[Sequence[SettingEffect]], limit: float, objective: str = "bytes"
) -> list[SettingEffect] | None:
    """An option of each group: of least cost, the sum of the squared errors within a limit; None where there is none.

    From the most exact options on, the exchange that saves most for the error that it adds is made, as long as one
    fits: a greedy solution of the multiple-choice knapsack problem, at most one exchange from the optimum.
    """
    chosen = [min(group, key=lambda o: (o.squared_error, cost(o, objective))) for group in groups]
    error = sum(option.squared_error for option in chosen)
    if not groups or error > limit:
        return None
    while True:
        best: tuple[float, int, SettingEffect] | None = None
        for place, group in enumerate(groups):
            now = chosen[place]
            for option in group:
                saved, added = (
                    cost(now, objective) - cost(option, objective),
                    option.squared_error - now.squared_error,
                )
                if saved > 0 and error + added <= limit:
                    gain = saved / max(added, 1e-12)
                    if best is None or gain > best[0]:
                        best = gain, place, option
        if best is None:
            return chosen
        _, place, option = best
        chosen[place] = option
        error = sum(found.squared_error for found in chosen)


def cost(option: SettingEffect, objective: str) -> float:
    """What is to be little."""
    return option.held_bytes if objective == "bytes" else option.seconds


def _network(study: Study, network: str | None) -> str:
    names = study.networks
    if network is None and len(names) == 1:
        return names[0]
    if network not in names:
        raise ValueError(f"`network` must be one of {', '.join(map(repr, names))}. Received: {network!r}.")
    return network


def _settings(study: Study, network: str, metric_tolerance: float | None) -> list[Candidate]:
    """Those that a policy can name, and whose trainings are within the tolerance."""
    found = []
    sign = 1 if study.is_higher_better(network) else -1
    for row in study.summary():
        setting = Candidate(row["codec"], row["mode"], row["bound"])
        is_possible = (
            CONTESTANTS[setting.codec].is_own and setting.mode != FIXED_RATE and "problem" not in row
        )
        if row["network"] != network or not is_possible or "ratio" not in row:
            continue
        change = row.get("metric_change")
        if metric_tolerance is None or change is not None and sign * change >= -metric_tolerance:
            found.append(setting)
    return found


def _options(
    study: Study, network: str, settings: Sequence[Candidate], column: str
) -> dict[str, list[SettingEffect]]:
    """By group, an option of each setting, in their order."""
    groups: dict[str, list[SettingEffect]] = {}
    for setting in settings:
        rows = study.tensors(network, setting)
        steps = len({(row["stage"], row["seed"]) for row in rows})
        for name in dict.fromkeys(row[column] for row in rows):
            of_group = [row for row in rows if row[column] == name]
            seconds = sum(
                row["value_bytes"] / 1e9 * (1 / row["encode_gb_s"] + 1 / row["decode_gb_s"])
                for row in of_group
            )
            option = SettingEffect(
                setting,
                sum(row["held_bytes"] for row in of_group) / steps,
                seconds / steps,
                sum(row["gradient_error"] ** 2 for row in of_group) / steps,
            )
            groups.setdefault(name, []).append(option)
    return groups


def _sums(groups: Any) -> list[SettingEffect]:
    """Of each setting for all groups."""
    return [
        SettingEffect(
            options[0].setting,
            sum(option.held_bytes for option in options),
            sum(option.seconds for option in options),
            sum(option.squared_error for option in options),
        )
        for options in zip(*groups)
    ]


def _best(options: Sequence[SettingEffect], limit: float, objective: str) -> SettingEffect | None:
    within = [option for option in options if option.squared_error <= limit]
    return min(within, key=lambda option: cost(option, objective), default=None)


def _setting(setting: Candidate) -> Setting:
    return Setting(setting.codec) if setting.mode == LOSSLESS else Setting(*setting)


def _value_bytes(study: Study, network: str, setting: Candidate) -> int:
    of_step: dict[tuple[str, int], int] = {}
    for row in study.tensors(network, setting):
        step = row["stage"], row["seed"]
        of_step[step] = of_step.get(step, 0) + row["value_bytes"]
    return round(statistics.fmean(of_step.values()))


def _words(setting: Setting) -> str:
    return setting.codec if setting.bound is None else f"{setting.codec} {setting.bound:g} {setting.mode}"
