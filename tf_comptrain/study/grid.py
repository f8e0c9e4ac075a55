"""What a study compares: codecs that take part, settings of these, and the cells that are to be measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tf_comptrain import arguments, codecs
from tf_comptrain.codecs import RATES, Codec, ErrorBound
from tf_comptrain.storage import MODES
from tf_comptrain.study import outside
from tf_comptrain.study.decoding import OutsideCodec
from tf_comptrain.study.fixed_rate import fixed_rate
from tf_comptrain.study.group_quantization import GroupQuantization
from tf_comptrain.study.outside import Outside

FIXED_RATE = "fixed_rate"
LOSSLESS = "lossless"
PLAIN = "plain"  # as a codec's name: plain Keras
TRAINING, TENSORS = "training", "tensor"  # kinds of cells

DEFAULT_BOUNDS = {
    "abs": (0.01, 0.03, 0.1, 0.3),
    "sigma": (0.05, 0.1, 0.2, 0.4),
    "range": (0.005, 0.01, 0.02, 0.05),
    FIXED_RATE: (2, 4, 8),
}
# Of all steps of a training: when its tensors are looked at.
STAGES = {"start": 0.0, "early": 0.1, "mid": 0.5, "late": 1.0}

Bounds = Sequence[float] | Mapping[str, Sequence[float]] | None


class Contestant(NamedTuple):
    """A codec that takes part.

    Attributes:
      make: The codec, of the bits of a value; None where bounds say how it encodes.
      modes: Those of its settings.
      rates: Bits that a value may take; empty: any.
      is_bounded: No error is larger than the bound.
      package: That it needs, beside this one's requirements.
      is_own: A codec of this library, which `compress_model` and a policy take by name.
    """

    make: Callable[[float | None], Codec]
    modes: tuple[str, ...] = MODES
    rates: tuple[int, ...] = ()
    is_bounded: bool = True
    package: str | None = None
    is_own: bool = False


class Candidate(NamedTuple):
    """A codec, and how exact it is to be.

    Attributes:
      codec: Name of a contestant; "plain": plain Keras.
      mode: "abs", "sigma", "range", "fixed_rate" or "lossless".
      bound: In the unit of the mode: of the tensor, of its sigma, of its range, bits of a value, 0.
    """

    codec: str
    mode: str
    bound: float

    def error_bound(self) -> ErrorBound | None:
        """As `compress_model` takes it."""
        if self.mode == LOSSLESS:
            return None
        if self.mode == FIXED_RATE:  # so tight that the bits alone decide
            return ErrorBound(1e-6)
        if self.mode == "abs":
            return ErrorBound(self.bound, relative=False)
        return ErrorBound(self.bound, relative_to=self.mode)

    def made(self) -> Codec:
        """The codec itself, anew."""
        return CONTESTANTS[self.codec].make(self.bound if self.mode == FIXED_RATE else None)

    def __str__(self) -> str:
        unit = {"abs": "", FIXED_RATE: " bits"}.get(self.mode, f" {self.mode}")
        return self.codec if self.mode == LOSSLESS else f"{self.codec} {self.bound:g}{unit}"


PLAIN_TRAINING = Candidate(PLAIN, LOSSLESS, 0.0)


class Cell(NamedTuple):
    """One thing to measure: its name in the file of cells.

    Attributes:
      kind: "tensor": every held tensor of a step, by round trip. "training": a whole training.
      network: Name of the network.
      setting: Codec, mode and bound.
      stage: Of a tensor cell; "" of a training.
      seed: Of the training; of the one whose tensors are looked at.
    """

    kind: str
    network: str
    setting: Candidate
    stage: str
    seed: int


class Grid(NamedTuple):
    """Settings, stages and seeds of a study; see `impact_study`."""

    codecs: tuple[str, ...]
    modes: tuple[str, ...]
    bounds: Mapping[str, tuple[float, ...]]
    stages: tuple[str, ...]
    seeds: tuple[int, ...]
    trainings: bool = True

    def settings(self) -> list[Candidate]:
        """Those that the codecs have."""
        found = []
        for name in self.codecs:
            contestant = CONTESTANTS[name]
            if contestant.modes == (LOSSLESS,):
                found.append(Candidate(name, LOSSLESS, 0.0))
            for mode in self.modes:
                bounds = self.bounds[mode] if mode in contestant.modes else ()
                if mode == FIXED_RATE and contestant.rates:
                    bounds = tuple(bits for bits in bounds if bits in contestant.rates)
                found += [Candidate(name, mode, float(bound)) for bound in bounds]
        return found

    def cells(self, networks: Sequence[str]) -> Iterator[Cell]:
        """All cells, in the order in which they are measured: what they are compared with first."""
        settings = self.settings()
        for network in networks:
            for seed in self.seeds if self.trainings else self.seeds[:1]:
                yield Cell(TRAINING, network, PLAIN_TRAINING, "", seed)
            for stage in self.stages:
                for setting in settings:
                    yield Cell(TENSORS, network, setting, stage, self.seeds[0])
        for seed in self.seeds if self.trainings else ():
            for network in networks:
                for setting in settings:
                    yield Cell(TRAINING, network, setting, "", seed)


def grid_of(
    codecs: Sequence[str] | None,
    modes: Sequence[str],
    bounds: Bounds,
    stages: Sequence[str],
    seeds: Sequence[int],
) -> Grid:
    """The grid that the arguments of `impact_study` say.

    Raises:
      ValueError: An unknown codec, mode or stage, a codec that is not installed, a mode without bounds, a bound that is
        not positive, bits that no codec has, no settings at all, or no seeds.
    """
    if codecs is None:
        codecs = [name for name in CONTESTANTS if _is_installed(name)]
    _check_names("codecs", codecs, CONTESTANTS)
    _check_names("modes", modes, (*MODES, FIXED_RATE))
    _check_names("stages", stages, STAGES)
    missing = [name for name in codecs if not _is_installed(name)]
    if missing:
        raise ValueError(
            f"`codecs` names {missing[0]!r}, whose package is not installed: "
            f"pip install {CONTESTANTS[missing[0]].package}, or tf_comptrain[bench]."
        )
    numbers = tuple(arguments.whole("seeds", seed, least=0) for seed in seeds)
    if not numbers:
        raise ValueError("`seeds` must have one at least. Received: none.")
    grid = Grid(tuple(codecs), tuple(modes), _bounds_of(modes, bounds), tuple(stages), numbers)
    if not grid.settings():
        raise ValueError(f"`codecs` have none of the `modes`. Received: {list(codecs)} and {list(modes)}.")
    return grid


def _bounds_of(modes: Sequence[str], bounds: Bounds) -> dict[str, tuple[float, ...]]:
    if bounds is None:
        bounds = DEFAULT_BOUNDS
    if not isinstance(bounds, Mapping):
        bounds = {**dict.fromkeys(MODES, bounds), FIXED_RATE: DEFAULT_BOUNDS[FIXED_RATE]}
    absent = [mode for mode in modes if mode not in bounds]
    if absent:
        raise ValueError(f"`bounds` must have those of each mode. Received: none for {absent[0]!r}.")
    return {
        mode: tuple(arguments.real(f"bounds[{mode!r}]", bound, above=0) for bound in bounds[mode])
        for mode in modes
    }


def _check_names(argument: str, names: Sequence[str], known: Sequence[str] | Mapping) -> None:
    if isinstance(names, str):
        raise ValueError(f"`{argument}` must be a list of names. Received: the text {names!r}.")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"`{argument}` must be among {', '.join(map(repr, known))}. Received: {unknown[0]!r}."
        )


def _is_installed(name: str) -> bool:
    package = CONTESTANTS[name].package
    return package is None or Outside(None, None, package).is_installed  # type: ignore[arg-type]


def _own(name: str) -> Contestant:
    modes = (LOSSLESS,) if codecs.get(name).is_lossless else MODES
    return Contestant(lambda bits: codecs.get(name), modes, is_own=True)


def _other(name: str, found: Outside) -> Contestant:
    modes = (LOSSLESS,) if found.lossless else MODES
    return Contestant(
        lambda bits: OutsideCodec(name, found), modes, is_bounded=found.is_bounded, package=found.package
    )


def _zfp() -> Contestant:
    def make(bits: float | None) -> Codec:
        return OutsideCodec("zfp", outside.zfp(bits is not None), bits)

    return Contestant(make, (*MODES, FIXED_RATE), package="zfpy")


CONTESTANTS: dict[str, Contestant] = {
    "plane": _own("plane"),
    "rans": _own("rans"),
    "zvc": _own("zvc"),
    "fixed": Contestant(
        lambda bits: OutsideCodec("fixed", fixed_rate(), bits), (FIXED_RATE,), tuple(RATES), is_bounded=False
    ),
    "zfp": _zfp(),
    "sz3": _other("sz3", outside.sz3("INTERP_LORENZO")),
    "zstd": _other("zstd", outside.codes_zstd()),
    "blosc2": _other("blosc2", outside.blosc("ZSTD")),
    "cosine": _other("cosine", outside.cosine()),
    "group": Contestant(
        lambda bits: GroupQuantization(int(bits or 0)), (FIXED_RATE,), (2, 4, 8), is_bounded=False
    ),
}
