"""Fences under XLA: of what a loop makes, and not of copies of that in another order of dimensions."""

from __future__ import annotations

import tensorflow as tf

from tf_comptrain import _keras, native
from tf_comptrain.graph.operations import EVERY_AXIS, about
from tf_comptrain.graph.replacements import redirect
from tf_comptrain.graph.tensors import behind_views, readers_of

_FENCE = "Comptrain>Fence"
_ENCODER, _DECODER = "Comptrain>Compress", "Comptrain>Decompress"


def fence_sources(graph: tf.Graph) -> None:
    """Lets fences and decoders wait for what was transposed: XLA copies whatever they read into memory.

    What comes through a fence is transposed behind it, where XLA can do so as it is read. In the place of what an
    encoder passes through its stream is waited for, where the values themselves are not wanted.
    """
    for op in graph.get_operations():
        if op.type == _FENCE:
            read = [bool(output.consumers()) for output in op.outputs]
            sources = [_source(tensor) if one else _sign(tensor) for tensor, one in zip(op.inputs, read)]
        elif op.type == _DECODER:
            sources = [_source(tensor) for tensor in op.inputs]
        else:
            continue
        if all(source is tensor for source, tensor in zip(sources, op.inputs)):
            continue
        with tf.device(op.device):
            if op.type == _DECODER:
                redirect(readers_of(op.outputs[0]), _keras.run_again(op, sources, "late")[0])
                continue
            through = native.ops().comptrain_fence(sources)
            for old, tensor, source, new in zip(op.outputs, op.inputs, sources, through):
                if readers := readers_of(old):
                    redirect(readers, moved_again(tensor, source, new))


def read_behind_fences(graph: tf.Graph) -> None:
    """Lets elementwise operations read behind a fence what others read behind one.

    XLA writes what an operation makes in the place of what it reads last. Of a kernel it asks whether it reads a tensor
    value by value, and not how it reads the same memory behind a fence.
    """
    behind: dict[int, tf.Tensor] = {}  # by id
    for op in graph.get_operations():
        if op.type == _FENCE:
            read = (tensor for tensor, output in zip(op.inputs, op.outputs) if output.consumers())
            behind.update((id(source), source) for source in map(behind_views, read))
    for tensor in behind.values():
        readers = [place for place in readers_of(tensor) if place[0].type != _FENCE]
        if about(tensor.op.type).is_free or not any(_is_by_value(op) for op, _ in readers):
            continue
        with tf.device(tensor.op.device):
            redirect(readers, native.ops().comptrain_fence([tensor])[0])


def _is_by_value(op: tf.Operation) -> bool:
    row = about(op.type)
    return row.rows == EVERY_AXIS or row.is_view


def _source(tensor: tf.Tensor) -> tf.Tensor:
    """What a tensor is a transposition of, by as many moves as there are; the tensor where it is none."""
    found, moved = tensor, tensor
    while about(moved.op.type).is_move and moved.op.type != "Identity":
        is_turn = moved.op.type == "Transpose"
        moved = moved.op.inputs[0]
        found = moved if is_turn else found
    return found


def _sign(tensor: tf.Tensor) -> tf.Tensor:
    """What is there when a tensor is, and is in memory anyway."""
    found = _source(tensor)
    while about(found.op.type).is_view and found.op.type != "Identity":
        found = found.op.inputs[0]
    if found.op.type == _ENCODER and found.value_index == 0:
        return found.op.outputs[1]
    return _source(tensor)


def moved_again(tensor: tf.Tensor, source: tf.Tensor, through: tf.Tensor) -> tf.Tensor:
    """The moves from a source to a tensor, made of what came through a fence."""
    if tensor is source:
        return through
    before, *how = tensor.op.inputs
    return _keras.run_again(tensor.op, [moved_again(before, source, through), *how], "late")[0]
