"""Fences under XLA: of what a loop makes, and not of copies of that in another order of dimensions."""

from __future__ import annotations

import tensorflow as tf

from tf_comptrain import _keras, native
from tf_comptrain.graph.operations import about
from tf_comptrain.graph.replacements import redirect
from tf_comptrain.graph.tensors import readers_of

_FENCE = "Comptrain>Fence"
_DECODER = "Comptrain>Decompress"


def fence_sources(graph: tf.Graph) -> None:
    """Lets fences and decoders wait for what was transposed: XLA copies whatever they read into memory.

    What comes through a fence is transposed behind it, where XLA can do so as it is read.
    """
    for op in graph.get_operations():
        if op.type not in (_FENCE, _DECODER):
            continue
        sources = [_source(tensor) for tensor in op.inputs]
        if all(source is tensor for source, tensor in zip(sources, op.inputs)):
            continue
        with tf.device(op.device):
            if op.type == _DECODER:
                made = _keras.run_again(op, sources, "late")
            else:
                through = native.ops().comptrain_fence(sources)
                made = [_moved_again(*each) for each in zip(op.inputs, sources, through)]
        for old, new in zip(op.outputs, made):
            redirect(readers_of(old), new)


def _source(tensor: tf.Tensor) -> tf.Tensor:
    """What a tensor is a transposition of, by as many moves as there are; the tensor where it is none."""
    found, moved = tensor, tensor
    while about(moved.op.type).is_move and moved.op.type != "Identity":
        is_turn = moved.op.type == "Transpose"
        moved = moved.op.inputs[0]
        found = moved if is_turn else found
    return found


def _moved_again(tensor: tf.Tensor, source: tf.Tensor, through: tf.Tensor) -> tf.Tensor:
    """The moves from a source to a tensor, made of what came through a fence."""
    if tensor is source:
        return through
    before, *how = tensor.op.inputs
    return _keras.run_again(tensor.op, [_moved_again(before, source, through), *how], "late")[0]
