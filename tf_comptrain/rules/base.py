"""What a rule is: which tensors a layer's gradient needs, and how the layer runs when only those are held."""

from __future__ import annotations

import abc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.rules.differentiate import from_inputs
from tf_comptrain.storage import Engine, Site, worth_holding


class Save(NamedTuple):
    """One tensor that a layer's gradient needs, held as a stream.

    Attributes:
      role: What it is to the layer: "input", "pre-activation".
      kind: What an error of it does, see storage.DEFAULT_BOUNDS: "linear" where it stays in the gradient of a
        weight, "convolution" likewise of a convolution's, "norm" or "nonlinear" where it travels upstream.
    """

    role: str
    kind: str = "linear"


class Product(NamedTuple):
    """The gradient of a weight that is a product of dy and a held tensor: what the error-bound law speaks of.

    Attributes:
      weight: The variable.
      share: Sum of dy^2 behind one element of the gradient / sum of all dy^2.
    """

    weight: Any
    share: float


class Context:
    """What a rule's `call` gets: the layer, its original call and the places it may hold tensors in.

    Gradient functions may name it: it keeps no layer alive.

    Attributes:
      sites: By the roles of the rule's `saves`.
      engine: What runs the call.
    """

    def __init__(self, layer: keras.layers.Layer, sites: dict[str, Site], engine: Engine):
        self._layer = weakref.ref(layer)
        self.sites = sites
        self.engine = engine

    @property
    def layer(self) -> Any:
        return self._layer()

    def original(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's own code."""
        return _keras.class_call(self.layer)(self.layer, *args, **kwargs)


class Rule(abc.ABC):
    """How one kind of layer runs in training, in place of its own code.

    What a rule holds is left alone by the traced step; what it leaves to TensorFlow's gradients that holds.
    """

    # Holds no streams, and computes what the layer computes: see the module of that name. Its gradient may read
    # bits alone, which are worth it in eager mode too.
    substitutes = False
    needs_bits = False

    def obstacle(self, layer: keras.layers.Layer) -> str | None:
        """Why this layer, as configured, has to stay plain; None when it need not."""
        return None

    def saves(self, layer: keras.layers.Layer) -> tuple[Save, ...]:
        """The tensors held for the layer's gradient."""
        return ()

    def product(self, layer: keras.layers.Layer) -> Product | None:
        """The weight whose gradient is a product of dy and the one tensor that is held; None where there is none."""
        return None

    @abc.abstractmethod
    def call(self, context: Context, *args: Any, **kwargs: Any) -> Any:
        """Computes the layer in training, holding what `saves` names."""


class Passive(Rule):
    """The layer's own code: its gradient needs no tensor's values, or the traced step holds them."""

    def call(self, context: Context, *args: Any, **kwargs: Any) -> Any:
        return context.original(*args, **kwargs)


class FromInput(Rule):
    """The input is held as a stream and the layer's own code runs again for its gradient.

    Args:
      kind: What the error of the input does, as in `Save`.
    """

    def __init__(self, kind: str = "nonlinear"):
        self.kind = kind

    def saves(self, layer: keras.layers.Layer) -> tuple[Save, ...]:
        return (Save("input", self.kind),)

    def call(self, context: Context, x: tf.Tensor, **kwargs: Any) -> Any:
        tensors = [v for v in tf.nest.flatten((x, kwargs)) if tf.is_tensor(v)]
        if len(tensors) != 1 or tensors[0] is not x or not worth_holding(x):
            return context.original(x, **kwargs)
        return from_inputs(partial(context.original, **kwargs), [x], [context.sites["input"]], context.layer)


_RULES: dict[type, Rule] = {}

RuleOrClass = TypeVar("RuleOrClass", bound="Rule | type[Rule]")


def register_rule(*layer_classes: type) -> Callable[[RuleOrClass], RuleOrClass]:
    """Registers a rule for layer or operation classes, and for those of their subclasses that inherit `call`.

    Nobody needs one: what a layer without a rule saves is found in the traced step. A rule is for who knows
    better, and works in eager mode too. Decorates a subclass of `Rule`, or takes a rule that is made already. A rule
    registered later for the same class replaces the one before; models that are compressed keep theirs.

    Args:
      *layer_classes: Subclasses of keras.layers.Layer, or of keras.Operation: what a functional graph
        is made of beside layers.

    Returns:
      The decorator; it gives back what it got.

    Raises:
      TypeError: Something else than such classes, or than a rule.

    Examples:
      >>> class Gate(keras.layers.Layer):                     # x sigmoid(x w): runs again from its input
      ...     ...
      >>> ct.register_rule(Gate)(ct.rules.FromInput())
      >>> @ct.register_rule(Warp)                             # anything else
      ... class WarpRule(ct.rules.Rule):
      ...     def saves(self, layer): ...
      ...     def call(self, context, x, **kwargs): ...
    """
    for layer_class in layer_classes:
        if not (isinstance(layer_class, type) and issubclass(layer_class, _keras.OPERATION)):
            raise TypeError(
                "`register_rule` takes subclasses of keras.layers.Layer or keras.Operation. Received: "
                f"{layer_class!r} (of type {type(layer_class).__name__})."
            )

    def register(rule: RuleOrClass) -> RuleOrClass:
        made = rule() if isinstance(rule, type) else rule
        if not isinstance(made, Rule):
            raise TypeError(
                f"A rule must be a tf_comptrain.rules.Rule or a subclass of it. Received: {rule!r}."
            )
        for layer_class in layer_classes:
            _RULES[layer_class] = made
        return rule

    return register


def find_rule(layer: keras.layers.Layer) -> Rule | None:
    """The rule of the nearest registered class; None if there is none or the layer overrides `call`."""
    for layer_class in type(layer).__mro__:
        if layer_class in _RULES:
            inherited = getattr(type(layer), "call", None) is getattr(layer_class, "call", None)
            return _RULES[layer_class] if inherited else None
    return None
