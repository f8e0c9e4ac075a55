"""Layers run again in the backward pass from their compressed inputs: products, normalizations, scales."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.rules.activation import LOSS_READS_LOGITS
from tf_comptrain.rules.base import COMPRESS, Context, Passive, Rule, Save, register_rule
from tf_comptrain.rules.differentiate import from_input, from_inputs
from tf_comptrain.storage import worth_holding


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


class FromInputs(Rule):
    """As `FromInput`, for a layer that is called on a list of tensors; small ones are kept.

    Args:
      kind: As in `FromInput`.
      draws: Whether a layer draws random numbers.
    """

    def __init__(
        self, kind: str = "nonlinear", draws: Callable[[keras.layers.Layer], bool] = lambda layer: False
    ):
        self.kind = kind
        self.draws = draws

    def saves(self, layer, storage):
        return tuple(
            Save(f"input{k}", "input", COMPRESS, kind=self.kind, number=k) for k in range(_inputs_of(layer))
        )

    def call(self, context: Context, inputs, **kwargs):
        layer = context.layer
        if not isinstance(inputs, (list, tuple)) or any(x.dtype == tf.float64 for x in inputs):
            return context.original(inputs, **kwargs)
        if kwargs.get("return_attention_scores"):
            return context.original(inputs, **kwargs)
        sites = [context.sites.get(f"input{k}") if worth_holding(x) else None for k, x in enumerate(inputs)]

        def run(*tensors):
            return context.original(list(tensors), **kwargs)

        return from_inputs(run, inputs, sites, layer, recompute=self.draws(layer))


class _Softmax(FromInput):
    """The layer; the function is a rule of activations."""

    def obstacle(self, layer):
        return None if _keras.feeds_a_layer(layer) else LOSS_READS_LOGITS


def _inputs_of(layer: keras.layers.Layer) -> int:
    return _keras.input_count(layer) or 2


# Each factor of a product is the other's gradient.
register_rule(keras.layers.Multiply, keras.layers.Dot)(FromInputs())
register_rule(keras.layers.Attention, keras.layers.AdditiveAttention)(
    FromInputs(draws=lambda layer: bool(getattr(layer, "dropout", 0.0)))
)
register_rule(
    *(
        getattr(keras.layers, name)
        for name in ("LayerNormalization", "GroupNormalization", "RMSNormalization", "UnitNormalization")
        if hasattr(keras.layers, name)
    )
)(FromInput("norm"))
register_rule(keras.layers.ELU, keras.layers.PReLU)(FromInput("nonlinear"))
register_rule(keras.layers.Softmax)(_Softmax())
register_rule(*_keras.application_layers("LayerScale"))(FromInput("linear"))
register_rule(*_keras.application_layers("CustomScaleLayer", "StochasticDepth"))(Passive())
