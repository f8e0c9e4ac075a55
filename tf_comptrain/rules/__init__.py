"""What each Keras layer needs saved, and how its gradient is computed from it."""

from tf_comptrain.rules import (  # noqa: F401 (they register)
    activation,
    attention,
    elementwise,
    linear,
    normalization,
    operations,
    passive,
    pooling,
)
from tf_comptrain.rules.base import METHODS, Context, Passive, Rule, Save, find_rule, register_rule
from tf_comptrain.rules.differentiate import from_inputs
from tf_comptrain.rules.elementwise import FromInput

__all__ = [
    "METHODS",
    "Context",
    "FromInput",
    "Passive",
    "Rule",
    "Save",
    "find_rule",
    "from_inputs",
    "register_rule",
]
