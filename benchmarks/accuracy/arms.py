"""What is compared with plain training: the default settings, candidates for others, and baselines.

The default of `compress_model(model)` is codec "plane" with `ErrorBound(0.2)` for what the gradient of a
convolution's kernel or of a normalization reads, `ErrorBound(0.1)` for factors of matrix products (dense layers,
attention), and `ErrorBound(0.02)` where a nonlinear function reads the tensor; all in running standard deviations of
the tensor. Streams of a traced step on the executor always have dither, whatever the codec's name says: "plane" and
"plane+dither" are the same there. An `error_bound=` holds for all tensors: "dither-0.25" has 0.25 where the default
has 0.1 or 0.02; in networks of convolutions and ReLU little is read that way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain import codecs
from tf_comptrain.study.group_quantization import GroupQuantization


class Undithered(codecs.Codec):
    """Codec A rounding to the nearest code, which a traced step would otherwise not do: it has a name of its own."""

    format = "plane-undithered"

    def __init__(self) -> None:
        plane = codecs.PlaneCodec()
        self.compress = plane.compress
        self.decompress = plane.decompress
        self.mask_gradient = plane.mask_gradient
        self.batch_norm_gradient = plane.batch_norm_gradient


class Arm(NamedTuple):
    """A way to train.

    Attributes:
      words: What it is, for the report.
      codec: Of `compress_model`, made anew for each model; None for plain Keras.
      bound: Bound of all tensors / running standard deviation; None for the default ones.
      adaptive: With `AdaptiveErrorBound()`.
    """

    words: str
    codec: Callable[[], Any] | None
    bound: float | None = None
    adaptive: bool = False

    def compress(self, model: keras.Model) -> list[keras.callbacks.Callback]:
        """Makes a model train this way; the callbacks that belong to it."""
        if self.codec is None:
            return []
        bound = None if self.bound is None else ct.ErrorBound(self.bound)
        report = ct.compress_model(model, codec=self.codec(), error_bound=bound)
        if report.obstacle:
            raise SystemExit(f"{self.words}: the model would train as plain Keras here: {report.obstacle}.")
        return [ct.AdaptiveErrorBound()] if self.adaptive else []


def _dithered(bound: float) -> Arm:
    return Arm(f'`codec="plane+dither", error_bound=ErrorBound({bound})`', lambda: "plane+dither", bound)


def _undithered(bound: float) -> Arm:
    return Arm(
        f"plane at {bound} sigma rounding to the nearest, which only this benchmark does", Undithered, bound
    )


ARMS: dict[str, Arm] = {
    "plain": Arm("plain Keras", None),
    "default": Arm(
        "`compress_model(model)`: plane with dither, 0.2 sigma, 0.1 for matrix products, 0.02 for nonlinear readers",
        lambda: "plane",
    ),
    "lossless": Arm(
        '`codec="zvc"`: what is left is rounding in another order (fused batch normalization)', lambda: "zvc"
    ),
    "adaptive": Arm("`compress_model(model)` and `AdaptiveErrorBound()`", lambda: "plane", adaptive=True),
    "group-4bit": Arm(
        "4 bits a value in groups of 256, stochastic rounding, as ActNN: the bits of the default and of 0.25 sigma",
        lambda: GroupQuantization(4),
    ),
    "dither-0.25": _dithered(0.25),
    "undithered-0.1": _undithered(0.1),
    "undithered-0.25": _undithered(0.25),
    "dither-0.35": _dithered(0.35),
    "dither-0.5": _dithered(0.5),
    "group-2bit": Arm("2 bits a value, likewise: the bits of 0.5 sigma", lambda: GroupQuantization(2)),
    "rans": Arm('`codec="rans"`: its bounds are the default\'s', lambda: "rans"),
}
