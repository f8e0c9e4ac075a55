"""A model's layers on several devices of one program: stages, their order, and how a layer is divided."""

from tf_comptrain.placement.placing import place, unplace

__all__ = ["place", "unplace"]
