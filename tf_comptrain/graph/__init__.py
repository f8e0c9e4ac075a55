"""Holds what crosses from the forward to the backward pass, found in the traced step: any model, any layer."""

from tf_comptrain.graph.cut import base_of
from tf_comptrain.graph.held import HeldTensors
from tf_comptrain.graph.rewire import Crossing
from tf_comptrain.graph.states import StateTable, unnumbered

__all__ = ["Crossing", "HeldTensors", "StateTable", "base_of", "unnumbered"]
