"""What each Keras layer needs saved, and how its gradient is computed from it."""

from tf_comptrain.rules import (  # noqa: F401 (they register)
    activation,
    attention,
    elementwise,
    linear,
    normalization,
    passive,
    pooling,
)
from tf_comptrain.rules.base import METHODS, Context, Passive, Rule, Save, find_rule, register_rule

__all__ = ["METHODS", "Context", "Passive", "Rule", "Save", "find_rule", "register_rule"]
