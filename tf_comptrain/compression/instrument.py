"""Overrides of a layer's `call`: by a rule, and to say how the user wants its tensors held."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras, native
from tf_comptrain.codecs import Codec, ErrorBound
from tf_comptrain.graph import HeldTensors, made_by
from tf_comptrain.rules import Context, Rule
from tf_comptrain.storage import (
    Engine,
    Holding,
    LawSite,
    Site,
    codec_obstacle,
    engine_of_call,
    state_unknown_to_keras,
)

_FAILED = (
    "This was raised in layer %r (%s), whose saved tensors tf_comptrain holds compressed. If plain Keras runs it, "
    'tf_comptrain.compress_model(model, storage={%r: "keep"}) leaves it as plain Keras has it.'
)


class Instrument:
    """A layer's override of `call`: the rule in a training step, plain Keras everywhere else.

    Args:
      layer: The layer, or operation of a functional graph.
      path: Its name in messages, and the first part of its sites' names.
      rule: Its rule.
      codec: How tensors are encoded.
      bound: None for the default of each tensor's kind.

    Attributes:
      sites: Where it holds tensors, by the roles of the rule's `saves`.
    """

    compresses = True

    def __init__(self, layer: Any, path: str, rule: Rule, codec: Codec, bound: ErrorBound | None):
        native.ops()
        self.path = path
        self.rule = rule
        self.codec = codec
        self.sites = {
            save.role: Site(f"{path}/{save.role}", codec, bound, save.kind) for save in rule.saves(layer)
        }
        self._layer = weakref.ref(layer)
        is_layer = isinstance(layer, keras.layers.Layer)  # operations get all by position
        self.parameters = _keras.call_parameters(layer) if is_layer else []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        layer: Any = self._layer()
        context = Context(layer, self.sites, engine_of_call())
        why_plain = self._why_plain(layer, context.engine, args, kwargs)
        self._say(context.engine, why_plain)
        if why_plain is not None:
            return context.original(*args, **kwargs)
        try:
            positional, named = _arranged(self.parameters, args, kwargs)
            return self.rule.call(context, *positional, **named)
        except Exception as error:
            if "tf_comptrain" not in str(error):
                _keras.add_to_message(error, _FAILED % (self.path, type(layer).__name__, self.path))
            raise

    def variables(self) -> dict[str, Any]:
        """What its sites carry from step to step, by name."""
        found = [v for site in self.sites.values() for v in (site.state, site.statistics, site.collecting)]
        return {f"comptrain_{k}": v for k, v in enumerate(found) if v is not None}

    def collect(self, enabled: tf.Variable) -> None:
        """From the next trace on, steps collect what the error-bound law needs wherever `enabled` is True."""
        if self.rule.product(self._layer()) is not None:
            for site in self.sites.values():
                site.collect(enabled)

    def law_sites(self) -> list[LawSite]:
        """The held tensor that the gradient of the layer's weight is made of, once `collect` was called."""
        product = self.rule.product(self._layer())
        return [
            LawSite(f"{site.name} -> {getattr(product.weight, 'path', product.weight.name)}", site, product.share,
                    product.weight, site.statistics)
            for site in self.sites.values()
            if product is not None and site.statistics is not None
        ]  # fmt: skip

    def _say(self, engine: Engine, why_plain: str | None) -> None:
        """Says what differs from what was asked for; of a model's layers `Instrumentation.note_engine` says it."""
        del engine, why_plain  # Keras 2 converts what a layer calls, and stumbles over a body of nothing

    def _why_plain(self, layer: Any, engine: Engine, args: tuple, kwargs: dict[str, Any]) -> str | None:
        reason = engine.why_plain or _undense((args, kwargs))
        if reason is not None:
            return reason
        if self.rule.substitutes:
            return "in eager mode" if engine.eager and not self.rule.needs_bits else None
        if not getattr(layer, "trainable_weights", None) and not _keras.watched((args, kwargs)):
            return "no gradient reaches it"
        return (
            codec_obstacle(self.codec, engine) or _keras.branch_inside_tape() or state_unknown_to_keras(layer)
        )


def _undense(values: Any) -> str | None:
    """What among `values` is a tensor, but sparse, ragged or a variable: no rule is for it. None: nothing."""
    kinds = {type(value) for value in tf.nest.flatten(values) if tf.is_tensor(value)}
    other = next((kind for kind in kinds if not issubclass(kind, tf.Tensor)), None)
    return None if other is None else f"called on a {other.__name__}"


def _arranged(
    parameters: Sequence[inspect.Parameter], args: tuple, kwargs: dict[str, Any]
) -> tuple[Sequence[Any], dict[str, Any]]:
    """The arguments of a call as rules take them: the first and those without a default by position, others by name.

    As they are where they do not fit the parameters (the layer's own code says so then), or there are none.
    """
    plain_kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    named = [p for p in parameters if p.kind in plain_kinds]
    if len(args) > len(named):
        return args, kwargs
    given = {**dict(zip((p.name for p in named), args)), **kwargs}
    if len(given) < len(args) + len(kwargs):
        return args, kwargs
    positional: list[Any] = []
    for parameter in named:
        if parameter.name not in given or (positional and parameter.default is not parameter.empty):
            break
        positional.append(given.pop(parameter.name))
    return positional, given


class Chosen:
    """Override of `call` of a layer that has a storage of the user's choice: says which tensors have it.

    Args:
      layer: The layer or operation.
      holding: Of what it makes and reads.
      held: What holds tensors.
      call: What is called; None: the layer's own code.
    """

    compresses = True

    def __init__(self, layer: Any, holding: Holding, held: HeldTensors, call: Instrument | None = None):
        self._layer = weakref.ref(layer)
        self._holding = holding
        self._held = weakref.ref(held)
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        layer: Any = self._layer()
        held = self._held()
        call = self._call or functools.partial(_keras.class_call(layer), layer)
        if tf.executing_eagerly() or held is None:
            return call(*args, **kwargs)
        graph = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        result = call(*args, **kwargs)
        held.wishes.say(graph, graph.get_operations()[before:], self._holding)
        read = [tensor for tensor in tf.nest.flatten((args, kwargs)) if tf.is_symbolic_tensor(tensor)]
        held.wishes.say(
            graph, [op for tensor in read for op in made_by(tensor, self._holding)], self._holding
        )
        return result
