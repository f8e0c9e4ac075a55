"""Layers whose training call is another than Keras': rules of the user's, and substitutes of the same result."""

from tf_comptrain.rules import substitutes  # noqa: F401 (they register)
from tf_comptrain.rules.base import Context, FromInput, Passive, Rule, Save, find_rule, register_rule
from tf_comptrain.rules.differentiate import from_inputs

__all__ = [
    "Context",
    "FromInput",
    "Passive",
    "Rule",
    "Save",
    "find_rule",
    "from_inputs",
    "register_rule",
]
