"""Holds what crosses from the forward to the backward pass, found in the traced step: any model, any layer."""

from tf_comptrain.graph.crossings import SMALL, Crossing, name_of
from tf_comptrain.graph.held_tensors import HeldTensors, dithered, made_by
from tf_comptrain.graph.law_error import LawError, LawNumbers
from tf_comptrain.graph.states import StateTable, unnumbered
from tf_comptrain.graph.tensors import USUAL_BATCH
from tf_comptrain.graph.updates import after_gradient

__all__ = [
    "SMALL",
    "USUAL_BATCH",
    "Crossing",
    "HeldTensors",
    "LawError",
    "LawNumbers",
    "StateTable",
    "after_gradient",
    "dithered",
    "made_by",
    "name_of",
    "unnumbered",
]
