"""A model's layers on several devices of one program: stages, their order, and how a layer is divided."""

from tf_comptrain.placement.placing import place, unplace
from tf_comptrain.planner.stages import Stage

__all__ = ["Stage", "place", "unplace"]
