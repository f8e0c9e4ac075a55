"""Attention from its compressed queries, keys and values: the probabilities are never held."""

from __future__ import annotations

from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.rules.base import COMPRESS, Context, Rule, Save, register_rule
from tf_comptrain.rules.differentiate import from_inputs
from tf_comptrain.rules.elementwise import NO_REPLAY
from tf_comptrain.storage import worth_holding

_ROLES = ("query", "key", "value")


class _Attention(Rule):
    """Scores, softmax, dropout and the weighted sum are run again in the backward pass.

    The projections around them are dense layers with rules of their own.
    """

    method = "_compute_attention"
    covers = (keras.layers.Softmax, keras.layers.Dropout)

    def obstacle(self, layer):
        return NO_REPLAY if _dropout(layer) and not _keras.KERAS_3 else None

    def saves(self, layer, storage):
        return tuple(Save(role, "inside", COMPRESS, kind="nonlinear") for role in _ROLES)

    def call(self, context: Context, query, key, value, *args, **kwargs):
        wants_scores = kwargs.get("return_attention_scores", len(args) > 2 and args[2])
        if wants_scores or not all(worth_holding(x) for x in (query, key, value)):
            return context.original(query, key, value, *args, **kwargs)

        def attend(query, key, value):
            with _keras.plain_scope():
                return context.original(query, key, value, *args, **kwargs)[0]

        sites = [context.sites[role] for role in _ROLES]
        layer = context.layer
        y = from_inputs(attend, [query, key, value], sites, layer, recompute=_dropout(layer))
        return y, None


def _dropout(layer: keras.layers.Layer) -> bool:
    return bool(getattr(layer, "dropout", None) or getattr(layer, "_dropout", 0.0))


_LAYERS = [
    layer_class
    for name in ("MultiHeadAttention", "GroupQueryAttention")
    if (layer_class := getattr(keras.layers, name, None)) is not None
    and hasattr(layer_class, "_compute_attention")
]
register_rule(*_LAYERS)(_Attention())
