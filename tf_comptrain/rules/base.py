"""What a rule is: which tensors a layer's gradient needs, and how the layer runs when only those are held."""

from __future__ import annotations

import abc
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.storage import BITMASK, COMPRESS, FUSED, KEEP, NOTHING, RECOMPUTE, Site, fenced


class Save(NamedTuple):
    """One tensor that a layer's gradient needs.

    Attributes:
      role: What it is to the layer: "input", "output", "mask", "index", "pre-activation".
      of: Which tensor it is or is derived from: an "input" or the "output" of the layer, what is "before" its
        activation function and has the output's shape, or one "inside" it, of another shape.
      storage: How it is held: COMPRESS, BITMASK or FUSED.
      kind: For COMPRESS: "linear", "norm" or "nonlinear", see storage.DEFAULT_BOUNDS.
      bits: For BITMASK: bits per element of `of`.
      from_stream: The bits come free from a stream of the output, where a consumer makes one.
      number: Which of several inputs.
    """

    role: str
    of: str
    storage: str = COMPRESS
    kind: str = "linear"
    bits: float = 1.0
    from_stream: bool = False
    number: int = 0


class Context:
    """What a rule's `call` gets: the layer, its original call and the places it may hold tensors in.

    Gradient functions may name it: it keeps no layer alive.
    """

    def __init__(self, layer: keras.layers.Layer, storage: str, sites: dict[str, Site], method: str = "call"):
        self._layer = weakref.ref(layer)
        self.storage = storage
        self.sites = sites
        self.method = method

    @property
    def layer(self) -> Any:
        return self._layer()

    def original(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's own code."""
        return _keras.class_call(self.layer, self.method)(self.layer, *args, **kwargs)


class Rule(abc.ABC):
    """How one kind of layer trains with its saved tensors held in another form.

    Subclasses define `saves` and `call`; both follow from the same attributes of the layer, so that
    the report, the prediction and the run agree.
    """

    # Storages a user may ask for, the first is the default.
    storages: tuple[str, ...] = (COMPRESS, KEEP)
    # What is overridden; where it is not `call`, the layer's inner layers have rules of their own.
    method = "call"
    # Cheap and elementwise in one tensor: its output can be rebuilt from a held input.
    elementwise = False
    # Inner layers that run inside what is overridden.
    covers: tuple[type, ...] = ()

    def obstacle(self, layer: keras.layers.Layer) -> str | None:
        """Why this layer, as configured, has to stay plain; None when it need not."""
        return None

    @abc.abstractmethod
    def saves(self, layer: keras.layers.Layer, storage: str) -> tuple[Save, ...]:
        """The tensors held for the layer's gradient."""

    @abc.abstractmethod
    def call(self, context: Context, *args: Any, **kwargs: Any) -> Any:
        """Computes the layer in training, holding what `saves` names."""


class Passive(Rule):
    """The gradient needs no tensor's values: shapes at most. Only the fence is added."""

    storages = (NOTHING, KEEP)

    def saves(self, layer, storage):
        return ()

    def call(self, context, *args, **kwargs):
        args, kwargs = tf.nest.map_structure(lambda t: fenced(t) if is_tensor(t) else t, (args, kwargs))
        return context.original(*args, **kwargs)


def is_tensor(x: Any) -> bool:
    """Whether an argument of a call is a tensor; variables are none."""
    return tf.is_tensor(x) and not isinstance(x, _keras.VARIABLES)


_RULES: dict[type, Rule] = {}
METHODS = ("call", "_compute_attention")  # what rules override


RuleOrClass = TypeVar("RuleOrClass", bound="Rule | type[Rule]")


def register_rule(*layer_classes: type) -> Callable[[RuleOrClass], RuleOrClass]:
    """Registers a rule for layer or operation classes, and for those of their subclasses that inherit `call`.

    Decorates a subclass of `Rule`, or takes a rule that is made already. A rule registered later for
    the same class replaces the one before; models that are compressed keep theirs.

    Args:
      *layer_classes: Subclasses of keras.layers.Layer, or of keras.Operation: what a functional graph
        is made of beside layers.

    Returns:
      The decorator; it gives back what it got.

    Raises:
      TypeError: Something else than such classes, or than a rule.

    Example:
      >>> class Shift(keras.layers.Layer):                    # x + b: its gradient reads no tensor
      ...     ...
      >>> ct.register_rule(Shift)(ct.rules.Passive())
      >>> class Gate(keras.layers.Layer):                     # x sigmoid(x w): runs again from its input
      ...     ...
      >>> ct.register_rule(Gate)(ct.rules.FromInput())
      >>> @ct.register_rule(Warp)                             # anything else
      ... class WarpRule(ct.rules.Rule):
      ...     def saves(self, layer, storage): ...
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
    """The rule of the nearest registered class; None if the layer overrides what that instruments."""
    for layer_class in type(layer).__mro__:
        if layer_class in _RULES:
            rule = _RULES[layer_class]
            inherited = getattr(type(layer), rule.method) is getattr(layer_class, rule.method)
            return rule if inherited else None
    return None


__all__ = [
    "BITMASK", "COMPRESS", "FUSED", "KEEP", "NOTHING", "RECOMPUTE",
    "METHODS", "Context", "Passive", "Rule", "Save", "find_rule", "is_tensor", "register_rule",
]  # fmt: skip
