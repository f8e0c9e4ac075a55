"""Values that are picked of rows, one of each, as the logits of labels are by `tf.gather`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import tensorflow as tf

from tf_comptrain import _keras
from tf_comptrain.graph.ingredients import constant_of
from tf_comptrain.graph.replacements import redirect
from tf_comptrain.graph.tensors import plain_bytes, readers_of
from tf_comptrain.graph.tiles.limits import TileSizes

GATHER, SLICE = "GatherV2", "StridedSlice"
_SCATTER, _SLICE_GRADIENT = "UnsortedSegmentSum", "StridedSliceGrad"
_ADDITIONS = ("Add", "AddV2")


def picks_of_rows(op: tf.Operation) -> int | None:
    """How many leading dimensions are rows, where an operation picks values along the one other dimension."""
    if op.type != GATHER or None in (op.inputs[0].shape.rank, op.inputs[1].shape.rank):
        return None
    rows, axis = op.get_attr("batch_dims"), constant_of(op.inputs[2])
    rank = op.inputs[0].shape.rank
    picks = rows > 0 and rank == rows + 1 and axis is not None and int(axis) % rank == rows
    return rows if picks else None


def drops_last(op: tf.Operation, whole: tf.Tensor) -> bool:
    """Whether a slice, or the gradient of one, only drops the last dimension, of size 1, as `x[..., 0]` does.

    Args:
      op: The slice, or its gradient.
      whole: What is sliced, or the gradient of that.
    """
    if not whole.shape.rank or whole.shape[-1] != 1:
        return False
    begin, steps = (tf.get_static_value(operand) for operand in (op.inputs[1], op.inputs[3]))
    if begin is None or steps is None or op.get_attr("new_axis_mask"):
        return False
    others = len(begin) - 1  # what is said of the dimensions before
    masks = [op.get_attr(name) for name in ("ellipsis_mask", "begin_mask", "end_mask", "shrink_axis_mask")]
    ellipsis, *from_to, shrunk = masks
    if shrunk != 1 << others:
        return False
    if ellipsis:
        return (ellipsis, others) == (1, 1)
    is_all = all(mask & (1 << others) - 1 == (1 << others) - 1 for mask in from_to)
    return is_all and others == whole.shape.rank - 1 and bool((steps[:-1] == 1).all())


def choose_in_rows(backward: _keras.BackwardPass, sizes: TileSizes) -> _keras.BackwardPass:
    """Puts gradients that are chosen row by row in the place of those that are scattered; the pass with these.

    TensorFlow scatters the gradient of picked values into all rows at once, which no tile of rows can do. Zeros
    elsewhere are exact, and so is what was picked. A dimension of size 1 that was dropped comes back as by a reshape.

    Args:
      backward: A pass that is not rewired yet.
      sizes: From where on a gradient that is scattered is chosen; smaller ones stay.
    """
    returned = {id(gradient) for gradient in backward.gradients}
    instead = dict(backward.instead)
    for op in backward.operations():
        if op.type == _SCATTER and (gather := _gather_of(op)) is not None:
            whole = gather.inputs[0]
            is_large = plain_bytes(whole) >= sizes.of(whole.dtype).least_bytes
            instead |= _chosen(op, gather, returned) if is_large else {}
        elif (
            op.type == _SLICE_GRADIENT and id(op.outputs[0]) not in returned and drops_last(op, op.outputs[0])
        ):
            instead[op.name] = (_reshaped(op),)
    return backward._replace(instead=instead)


def _reshaped(op: tf.Operation) -> tf.Operation:
    shape, *_, incoming = op.inputs
    with _keras.stop_recording(), tf.device(op.device), tf.name_scope(op.name + "/reshaped/"):
        found = tf.reshape(incoming, shape)
        found.set_shape(op.outputs[0].shape)
        nothing = _blank(incoming)
    redirect(readers_of(op.outputs[0]), found)
    _keras.set_input(op, len(op.inputs) - 1, nothing)
    return found.op


def _blank(tensor: tf.Tensor) -> tf.Tensor:
    """What an operation that is not run any more reads for a tensor: XLA compiles it all the same."""
    return tf.zeros(tf.shape(tensor), tensor.dtype)


def _gather_of(scatter: tf.Operation) -> tf.Operation | None:
    """The operation that picked one value of each row, whose gradient is scattered; None where it is another."""
    places = scatter.inputs[1]
    if places.op.type != "Reshape":
        return None
    places = places.op.inputs[0]
    while places.op.type in _ADDITIONS and not _picking(places):
        places = places.op.inputs[0]  # where each row begins was added
    found = _picking(places)
    alike = {tuple(op.inputs[0].shape) for op in found}
    if len(alike) != 1 or found[0].inputs[0].shape[-1] is None:
        return None
    more = places.shape.rank - found[0].get_attr("batch_dims")
    return found[0] if more == 0 or more == 1 and places.shape[-1] == 1 else None


def _picking(places: tf.Tensor) -> list[tf.Operation]:
    """What picks values of rows there; nothing where something else does whose gradient is scattered too."""
    readers = [op for op, number in readers_of(places) if number == 1 and op.type == GATHER]
    scattered = [op for op in readers if op.get_attr("batch_dims") or constant_of(op.inputs[2]) != 0]
    return [] if any(picks_of_rows(op) is None for op in scattered) else scattered


def _chosen(
    scatter: tf.Operation, gather: tf.Operation, returned: Collection[int]
) -> dict[str, tuple[tf.Operation, ...]]:
    """By name of each operation of a scattered gradient: what is in its place; {} where it is made in another way."""
    before = _chain(scatter, lambda op: op.inputs[0].op, ("Reshape", "Transpose", "Reshape"))
    after = _chain(scatter, _only_reader, ("Reshape", "Transpose"))
    if not (before and after) or id(after[-1].outputs[0]) in returned:
        return {}
    picked, places = before[-1].inputs[0], gather.inputs[1]
    of_each = picks_of_rows(gather) == places.shape.rank
    with _keras.stop_recording(), tf.device(scatter.device), tf.name_scope(scatter.name + "/chosen/"):
        if of_each:
            picked = tf.expand_dims(picked, -1)
        else:
            places = tf.squeeze(places, -1)
        at = tf.one_hot(places, gather.inputs[0].shape[-1], True, False, dtype=tf.bool)
        found = tf.where(at, picked, tf.zeros([], picked.dtype))
        nothing = _blank(before[-1].inputs[0])
    redirect(readers_of(after[-1].outputs[0]), found)
    _keras.set_input(before[-1], 0, nothing)
    made = (*([picked.op] if of_each else [places.op]), at.op, found.op)
    return {op.name: () for op in (*before, scatter, *after)} | {after[-1].name: made}


def _chain(
    op: tf.Operation, step: Callable[[tf.Operation], tf.Operation | None], types: Sequence[str]
) -> list[tf.Operation]:
    """Operations of these types, one after the other; [] where they are others."""
    found = [op]
    for each in types:
        following = step(found[-1])
        if following is None or following.type != each:
            return []
        found.append(following)
    return found[1:]


def _only_reader(op: tf.Operation) -> tf.Operation | None:
    readers = readers_of(op.outputs[0])
    return readers[0][0] if len(readers) == 1 else None
