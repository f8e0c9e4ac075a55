"""Holds what crosses from the forward to the backward pass, found in the traced step: any model, any layer."""

from tf_comptrain.graph.cut import base_of
from tf_comptrain.graph.held import HeldTensors, StateRow
from tf_comptrain.graph.rewire import Crossing

__all__ = ["Crossing", "HeldTensors", "StateRow", "base_of"]
