"""Holds what crosses from the forward to the backward pass, found in the traced step: any model, any layer."""

from tf_comptrain.graph.crossings import SMALL, Crossing
from tf_comptrain.graph.held.data_sizes import sizes_obstacle
from tf_comptrain.graph.held.law_error import LawError, LawNumbers
from tf_comptrain.graph.held.states import StateTable
from tf_comptrain.graph.held.wishes import Wishes, microbatch_scope
from tf_comptrain.graph.held_tensors import HeldTensors, made_by
from tf_comptrain.graph.tensors import USUAL_BATCH
from tf_comptrain.graph.tiles.loop import TILES_SCOPE
from tf_comptrain.graph.updates import after_gradient, in_place

__all__ = [
    "SMALL",
    "TILES_SCOPE",
    "USUAL_BATCH",
    "Crossing",
    "HeldTensors",
    "LawError",
    "LawNumbers",
    "StateTable",
    "Wishes",
    "after_gradient",
    "in_place",
    "made_by",
    "microbatch_scope",
    "sizes_obstacle",
]
