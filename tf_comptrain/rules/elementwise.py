"""Layers run again in the backward pass from their compressed inputs: products, normalizations, scales."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.codecs import SUPPORTED_DTYPES
from tf_comptrain.rules.activation import LOSS_READS_LOGITS
from tf_comptrain.rules.base import (
    BITMASK,
    COMPRESS,
    KEEP,
    Context,
    Passive,
    Rule,
    Save,
    is_tensor,
    register_rule,
)
from tf_comptrain.rules.differentiate import from_choice, from_input, from_inputs
from tf_comptrain.storage import worth_holding

NO_REPLAY = "Keras 2 cannot draw its random numbers again"
UNBOUNDED = "its gradient grows without bound, and an error of its input with it"


class FromInput(Rule):
    """The input is held compressed and the layer's own code runs again for its gradient.

    Args:
      kind: What the error of the input does, see storage.DEFAULT_BOUNDS: "linear" where it stays in
        the weight gradient, "norm" or "nonlinear" where it travels upstream.
      recompute: The layer draws random numbers or updates variables.
    """

    def __init__(self, kind: str = "nonlinear", recompute: bool = False):
        self.kind = kind
        self.recompute = recompute

    def saves(self, layer, storage):
        return (Save("input", "input", COMPRESS, kind=self.kind),)

    def call(self, context: Context, x, **kwargs):
        tensors = [v for v in tf.nest.flatten((x, kwargs)) if tf.is_tensor(v)]
        if len(tensors) != 1 or tensors[0] is not x or not worth_holding(x):
            return context.original(x, **kwargs)
        fn = partial(context.original, **kwargs)
        if self.recompute:
            return from_inputs(fn, [x], [context.sites["input"]], context.layer, recompute=True)
        return from_input(fn, x, context.sites["input"], context.layer)


class Unbounded(Rule):
    """Stays plain."""

    storages = (KEEP,)

    def obstacle(self, layer):
        return UNBOUNDED

    def saves(self, layer, storage):
        return (Save("input", "input"),)

    def call(self, context: Context, *args, **kwargs):
        return context.original(*args, **kwargs)


class FromInputs(Rule):
    """As `FromInput`, for a layer or operation of several tensors; small ones are kept.

    Args:
      kind: As in `FromInput`.
      draws: Whether a layer draws random numbers.
    """

    def __init__(self, kind: str = "nonlinear", draws: Callable[[Any], bool] = lambda layer: False):
        self.kind = kind
        self.draws = draws

    def obstacle(self, layer):
        return NO_REPLAY if self.draws(layer) and not _keras.KERAS_3 else None

    def saves(self, layer, storage):
        return tuple(
            Save(f"input{k}", "input", COMPRESS, kind=self.kind, number=k) for k in range(_inputs_of(layer))
        )

    def call(self, context: Context, *args, **kwargs):
        flat = tf.nest.flatten((args, kwargs))
        tensors = [k for k, value in enumerate(flat) if is_tensor(value)]
        sites = {
            k: context.sites.get(f"input{number}") if worth_holding(flat[k]) else None
            for number, k in enumerate(tensors)
            if flat[k].dtype.is_floating  # not masks
        }
        if not any(sites.values()) or kwargs.get("return_attention_scores"):
            return context.original(*args, **kwargs)

        def run(*inputs):
            given = dict(zip(sites, inputs))
            filled = [given.get(k, value) for k, value in enumerate(flat)]
            args_again, kwargs_again = tf.nest.pack_sequence_as((args, kwargs), filled)
            return context.original(*args_again, **kwargs_again)

        layer = context.layer
        inputs = [flat[k] for k in sites]
        return from_inputs(run, inputs, list(sites.values()), layer, recompute=self.draws(layer))


class _Dot(FromInputs):
    def obstacle(self, layer):
        return UNBOUNDED if layer.normalize else None  # over a length, which may be near zero


class Softmax(FromInput):
    """The layer or operation; the function in `activation=` is a rule of activations."""

    def obstacle(self, layer):
        return LOSS_READS_LOGITS if _keras.makes_an_output(layer) else None

    def call(self, context: Context, x, *args, **kwargs):
        y = super().call(context, x, *args, **kwargs)
        _keras.remember_logits(y, x)
        return y


class Extreme(Rule):
    """The largest or smallest of some tensors, elementwise: one bit for each two says which it was.

    Args:
      fn: Of two tensors.
      condition: Of two tensors: where fn takes the first one.
    """

    storages = (BITMASK, KEEP)

    def __init__(self, fn: Callable, condition: Callable):
        self.fn = fn
        self.condition = condition

    def saves(self, layer, storage):
        return (Save("mask", "output", BITMASK, bits=max(_inputs_of(layer) - 1, 1)),)

    def call(self, context: Context, *args, **kwargs):
        tensors = as_tensors(args[0] if len(args) == 1 else args)
        if tensors is None or any(getattr(x, "_keras_mask", None) is not None for x in tensors):
            return context.original(*args, **kwargs)
        return functools.reduce(partial(from_choice, self.fn, self.condition), tensors)


def as_tensors(values: Sequence[Any]) -> list[tf.Tensor] | None:
    """Tensors of one type and rank, and numbers as tensors of that type; None where they differ or have no codec."""
    tensors = [value for value in values if is_tensor(value)]
    if len({(x.dtype, x.shape.rank) for x in tensors}) != 1 or tensors[0].dtype not in SUPPORTED_DTYPES:
        return None
    if not all(is_tensor(value) or isinstance(value, (int, float)) for value in values):
        return None
    return [value if is_tensor(value) else tf.constant(value, tensors[0].dtype) for value in values]


def _inputs_of(layer: keras.layers.Layer) -> int:
    return _keras.input_count(layer) or 2


# Each factor of a product is the other's gradient.
register_rule(keras.layers.Multiply)(FromInputs())
register_rule(keras.layers.Dot)(_Dot())
register_rule(keras.layers.Maximum)(Extreme(tf.maximum, tf.greater_equal))
register_rule(keras.layers.Minimum)(Extreme(tf.minimum, tf.less_equal))
register_rule(keras.layers.Attention, keras.layers.AdditiveAttention)(
    FromInputs(draws=lambda layer: bool(getattr(layer, "dropout", 0.0)))
)
register_rule(
    *(
        getattr(keras.layers, name)
        for name in ("GroupNormalization", "RMSNormalization")
        if hasattr(keras.layers, name)
    )
)(FromInput("norm"))
register_rule(keras.layers.UnitNormalization)(Unbounded())
register_rule(keras.layers.ELU, keras.layers.PReLU)(FromInput("nonlinear"))
register_rule(keras.layers.Softmax)(Softmax())
register_rule(*_keras.application_layers("LayerScale"))(FromInput("linear"))
register_rule(*_keras.application_layers("CustomScaleLayer", "StochasticDepth"))(Passive())
