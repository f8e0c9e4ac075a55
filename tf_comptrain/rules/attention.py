"""Attention from its compressed queries, keys and values: the probabilities are never held."""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.rules.base import BITMASK, COMPRESS, Context, Rule, Save, register_rule
from tf_comptrain.rules.differentiate import from_inputs
from tf_comptrain.rules.passive import drop, dropped, drops
from tf_comptrain.storage import worth_holding

_ROLES = ("query", "key", "value")


class _WithHeldDropout:
    """An attention layer for one call: its dropout draws a mask when first asked, and the same is used again.

    The layer is not kept alive.
    """

    def __init__(self, layer: keras.layers.Layer):
        self._reference = weakref.ref(layer)
        self._bits: tf.Tensor | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reference(), name)

    def _dropout_layer(self, scores: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        attention: Any = self._reference()
        layer = attention._dropout_layer
        if self._bits is not None:
            return dropped(layer.rate, scores, self._bits)
        training = _keras.training() if training is None else training
        if not training or not drops(layer, scores.dtype):
            return layer(scores, training=training)
        y, self._bits = drop(layer, scores)
        return y


class _Attention(Rule):
    """Scores, softmax and the weighted sum are run again in the backward pass, with the mask of dropout.

    The projections around them are dense layers with rules of their own.
    """

    method = "_compute_attention"
    covers = (keras.layers.Softmax, keras.layers.Dropout)

    def saves(self, layer, storage):
        mask = (Save("mask", "inside", BITMASK),) if _dropout(layer) else ()
        return (*(Save(role, "inside", COMPRESS, kind="nonlinear") for role in _ROLES), *mask)

    def call(self, context: Context, query, key, value, *args, **kwargs):
        wants_scores = kwargs.get("return_attention_scores", len(args) > 2 and args[2])
        if wants_scores or not all(worth_holding(x) for x in (query, key, value)):
            return context.original(query, key, value, *args, **kwargs)
        layer = context.layer
        compute = _keras.class_call(layer, self.method)
        seen = _WithHeldDropout(layer)

        def attend(query, key, value):
            with _keras.plain_scope():
                return compute(seen, query, key, value, *args, **kwargs)[0]

        sites = [context.sites[role] for role in _ROLES]
        return from_inputs(attend, [query, key, value], sites, layer), None


def _dropout(layer: keras.layers.Layer) -> bool:
    return bool(getattr(layer, "dropout", None) or getattr(layer, "_dropout", 0.0))


_LAYERS = [
    layer_class
    for name in ("MultiHeadAttention", "GroupQueryAttention")
    if (layer_class := getattr(keras.layers, name, None)) is not None
    and hasattr(layer_class, "_compute_attention")
]
register_rule(*_LAYERS)(_Attention())
