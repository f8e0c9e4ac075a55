"""What each Keras layer needs saved, and how its gradient is computed from it."""

from tf_comptrain.rules import activation, linear, normalization, passive, pooling  # noqa: F401 (they register)
from tf_comptrain.rules.base import Context, Passive, Rule, Save, find_rule, register_rule

__all__ = ["Context", "Passive", "Rule", "Save", "find_rule", "register_rule"]
