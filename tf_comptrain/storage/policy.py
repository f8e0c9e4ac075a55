"""A policy: the codec and the error bound of each class of tensors, or of single ones, as data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tf_comptrain import codecs
from tf_comptrain.codecs import RANGE, SIGMA, Codec, ErrorBound
from tf_comptrain.storage.site import DEFAULT_BOUNDS

MODES = ("abs", SIGMA, RANGE)
_FIELDS = {"codec", "mode", "bound"}


class Setting(NamedTuple):
    """How a tensor is encoded.

    Attributes:
      codec: A name that `codec=` knows.
      mode: What the bound is: "abs", in units of the tensor; "sigma" or "range", relative to that of the tensor.
      bound: The bound; None: the default of what reads the tensor, in sigma.
    """

    codec: str = "plane"
    mode: str = SIGMA
    bound: float | None = None

    def error_bound(self) -> ErrorBound | None:
        """As `error_bound=` takes it."""
        if self.bound is None:
            return None
        return (
            ErrorBound(self.bound, relative=False)
            if self.mode == "abs"
            else ErrorBound(self.bound, relative_to=self.mode)
        )


class _PolicyFields(NamedTuple):
    classes: Mapping[str, Setting]
    tensors: Mapping[str, Setting]


class Policy(_PolicyFields):
    """The codec and the bound of each tensor that a traced step holds: by its class, or by its name.

    Attributes:
      classes: By what reads the tensor: "convolution", "linear" (matrix products), "norm", "nonlinear". A class that
        is missing has codec "plane" and its default bound.
      tensors: By name of the operation that makes it, as the report has it; before `classes`.

    Raises:
      TypeError: Something that is no mapping from text to `Setting`.
      ValueError: An unknown class, codec or mode; a bound that is none (see `ErrorBound`).

    Examples:
      >>> policy = ct.Policy({"convolution": ct.Setting("rans", "sigma", 0.4)})
      >>> ct.compress_model(model, policy=policy)
    """

    __slots__ = ()

    def __new__(
        cls, classes: Mapping[str, Setting] | None = None, tensors: Mapping[str, Setting] | None = None
    ) -> Policy:
        policy = super().__new__(cls, dict(classes or {}), dict(tensors or {}))
        unknown = sorted(set(policy.classes) - set(DEFAULT_BOUNDS), key=str)
        if unknown:
            known = ", ".join(map(repr, DEFAULT_BOUNDS))
            raise ValueError(f"`classes` of a policy must be among {known}. Received: {unknown[0]!r}.")
        for name, setting in policy.settings():
            _check(name, setting)
        return policy

    def settings(self) -> list[tuple[str, Setting]]:
        """(class or tensor, setting) of all."""
        return [*self.classes.items(), *self.tensors.items()]

    def setting(self, name: str, kind: str) -> Setting:
        """Of a tensor, by its name and its class."""
        return self.tensors.get(name) or self.classes.get(kind) or Setting()

    def codecs(self) -> list[Codec]:
        """Those that it names."""
        return [codecs.get(name) for name in dict.fromkeys(setting.codec for _, setting in self.settings())]

    def to_json(self) -> str:
        """{"classes": {class: {codec, mode, bound}}, "tensors": {name: {codec, mode, bound}}}"""
        parts = {"classes": self.classes, "tensors": self.tensors}
        return json.dumps(
            {part: {k: s._asdict() for k, s in found.items()} for part, found in parts.items()}, indent=1
        )

    @classmethod
    def from_json(cls, source: str | Path | Mapping) -> Policy:
        """The policy in a file, or in what `json.loads` made of one.

        Raises:
          ValueError: It is not what `to_json` writes; the message names the entry.
          OSError: The file cannot be read.
        """
        found = source
        if not isinstance(source, Mapping):
            try:
                found = json.loads(Path(source).read_text())
            except (json.JSONDecodeError, RecursionError) as error:
                raise ValueError(
                    f"`policy` must be a JSON file. Received: {str(source)!r} ({error})."
                ) from None
            except OSError as error:
                raise type(error)(
                    error.errno,
                    f"`policy` must be a file, which tf-comptrain study or Policy.to_json writes ({error.strerror})",
                    str(source),
                ) from None
        if not isinstance(found, Mapping) or not set(found) <= {"classes", "tensors"}:
            raise ValueError(
                f'`policy` must be an object of "classes" and "tensors". Received: {str(found)[:80]!r}.'
            )
        return cls(*(_settings(part, found.get(part, {})) for part in ("classes", "tensors")))


PolicyChoice = Policy | str | Path | None


def policy_of(choice: PolicyChoice) -> Policy | None:
    """The policy that `policy=` names.

    Raises:
      TypeError: Neither a policy nor a path.
      ValueError, OSError: See `Policy.from_json`.
    """
    if choice is None or isinstance(choice, Policy):
        return choice
    if not isinstance(choice, (str, Path)):
        raise TypeError(
            "`policy` must be a tf_comptrain.Policy or the path of one's JSON. "
            f"Received: {choice!r} (of type {type(choice).__name__})."
        )
    return Policy.from_json(choice)


def _settings(part: str, found: Any) -> dict[str, Setting]:
    if not isinstance(found, Mapping):
        raise ValueError(f"`{part}` of a policy must be an object. Received: {str(found)[:80]!r}.")
    for name, fields in found.items():
        if not isinstance(fields, Mapping) or not set(fields) <= _FIELDS:
            raise ValueError(
                f'`{part}` of a policy must have objects of "codec", "mode" and "bound". '
                f"Received for {name!r}: {str(fields)[:80]!r}."
            )
    return {name: Setting(**fields) for name, fields in found.items()}


def _check(name: str, setting: Setting) -> None:
    if not isinstance(setting, Setting):
        raise TypeError(f"A policy is made of tf_comptrain.Setting. Received for {name!r}: {setting!r}.")
    try:
        codecs.get(setting.codec)
        if setting.mode not in MODES:
            raise ValueError(
                f"`mode` must be one of {', '.join(map(repr, MODES))}. Received: {setting.mode!r}."
            )
        if setting.bound is None and setting.mode != SIGMA:
            raise ValueError(
                f"`mode` says what a `bound` is. Received: mode {setting.mode!r} and no bound. Give one, or leave "
                "`mode` out: default bounds are in sigma."
            )
        if setting.bound is not None:
            ErrorBound.parse(setting.bound, "bound")
    except (TypeError, ValueError) as error:
        raise type(error)(f"The policy's setting of {name!r}: {error}") from None
