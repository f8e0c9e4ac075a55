"""Equal forms of gradient operations that let less be held.

Sums of gradients over samples are made within the product that makes them, and before they are added to each other.
A sign is two comparisons.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tf_comptrain import _keras
from tf_comptrain.graph.ingredients import WEIGHTS, Ingredients, constant_of
from tf_comptrain.graph.replacements import redirect
from tf_comptrain.graph.tensors import plain_bytes, readers_of
from tf_comptrain.graph.tiles.letters import letters_of
from tf_comptrain.graph.tiles.sizes import KnownSizes

_LEAST_BYTES = 1 << 16
_TIMES_SMALLER = 2  # that a sum is at least


def sum_in_products(backward: _keras.BackwardPass) -> _keras.BackwardPass:
    """Puts one product in the place of many of matrices and the sum of these over samples; the pass with these.

    The gradient of a matrix that all samples are multiplied with, as by `tf.matmul`, is made for each of them first.
    The order of the additions changes, and with it the rounding.

    Args:
      backward: A pass that is not rewired yet.
    """
    returned = {id(tensor) for tensor in backward.gradients}
    instead, sizes = dict(backward.instead), KnownSizes()
    for op in backward.operations():
        if op.type == "Sum" and op.inputs[0].op.type.startswith("BatchMatMul"):
            found = _sum_in_product(op, returned, sizes)
            instead |= {op.inputs[0].op.name: (), op.name: found} if found else {}
    return backward._replace(instead=instead)


def _sum_in_product(total: tf.Operation, returned: set[int], sizes: KnownSizes) -> tuple[tf.Operation, ...]:
    """What was put in the place of a sum, the product last; () where that stays."""
    product = total.inputs[0].op
    whole, small = plain_bytes(product.outputs[0]), plain_bytes(total.outputs[0])
    is_free = returned.isdisjoint([id(product.outputs[0]), id(total.outputs[0])])
    is_free = is_free and len(readers_of(product.outputs[0])) == 1 and not total.get_attr("keep_dims")
    if not is_free or whole < max(_LEAST_BYTES, _TIMES_SMALLER * small):
        return ()
    terms, axes = letters_of(product), sizes.axes(total.inputs[1])
    if not (terms and axes) or max(axes) > len(terms[-1]) - 3 or min(axes) < 0:
        return ()
    first, second, made = terms
    summed = {made[axis] for axis in axes}
    if not summed <= set(first) & set(second):
        return ()
    left = "".join(letter for letter in made if letter not in summed)
    with _keras.stop_recording(), tf.device(total.device), tf.name_scope(product.name + "/summed/"):
        made_by = _product(list(product.inputs), first, second, left)
    redirect(readers_of(total.outputs[0]), made_by[-1].outputs[0])
    _read_nothing(product)
    return made_by


def _product(factors: list[tf.Tensor], first: str, second: str, made: str) -> tuple[tf.Operation, ...]:
    """The product of tensors with these letters: of matrices where it is, which on a CPU is several times as fast."""
    rows, columns = first[-1], second[-1]
    if first[:-1] == second[:-1] and made == rows + columns:
        flat = [_as_matrix(factor) for factor in factors]
        made_by = tf.raw_ops.MatMul(a=flat[0], b=flat[1], transpose_a=True).op
        return (*(each.op for each in flat), made_by)
    return (tf.raw_ops.Einsum(inputs=factors, equation=f"{first},{second}->{made}").op,)


def _as_matrix(factor: tf.Tensor) -> tf.Tensor:
    columns = factor.shape[-1]
    if columns is None:
        return tf.reshape(factor, [-1, tf.shape(factor)[-1]])
    shapes = _keras.kept_with(factor.graph, _as_matrix, dict)
    if columns not in shapes:
        shapes[columns] = tf.constant([-1, columns])
    return tf.raw_ops.Reshape(tensor=factor, shape=shapes[columns])


def sum_early(backward: _keras.BackwardPass) -> _keras.BackwardPass:
    """Swaps a sum over axes with the addition before it, where that has no other reader; the pass with these.

    The gradient of what several layers read, such as the relative positions of an attention, is added up over the
    layers and then over the samples. So the gradients of all those layers would wait for the last one. The order of
    the additions changes, and with it the rounding.

    Args:
      backward: A pass that is not rewired yet.
    """
    returned = {id(tensor) for tensor in backward.gradients}
    instead = dict(backward.instead)
    for op in backward.operations():
        if op.type != "AddN" or len(op.inputs) < 2 or id(op.outputs[0]) in returned:
            continue
        readers = readers_of(op.outputs[0])
        if len(readers) != 1 or readers[0][0].type != "Sum" or readers[0][1] != 0:
            continue
        total = readers[0][0]
        whole, small = plain_bytes(op.outputs[0]), plain_bytes(total.outputs[0])
        if id(total.outputs[0]) not in returned and whole >= max(_LEAST_BYTES, _TIMES_SMALLER * small):
            instead |= {op.name: (), total.name: _swapped(op, total)}
    return backward._replace(instead=instead)


def _swapped(addition: tf.Operation, total: tf.Operation) -> tuple[tf.Operation, ...]:
    with _keras.stop_recording(), tf.device(total.device):
        parts = [_keras.run_again(total, [part, total.inputs[1]], "early")[0] for part in addition.inputs]
        added = tf.raw_ops.AddN(inputs=parts)
    redirect(readers_of(total.outputs[0]), added)
    _read_nothing(addition)
    return (*(part.op for part in parts), added.op)


def make_rows_of_identity(backward: _keras.BackwardPass) -> _keras.BackwardPass:
    """Puts one-hot rows in the place of large identity matrices, as labels of an in-batch softmax are; the pass then.

    Their rows can be made one by one.

    Args:
      backward: A pass that is not rewired yet.
    """
    instead = dict(backward.instead)
    for op in backward.graph.get_operations()[: backward.start]:
        if not _is_identity(op) or plain_bytes(op.outputs[0]) < _LEAST_BYTES:
            continue
        whole = op.outputs[0]
        with _keras.stop_recording(), tf.device(op.device), tf.name_scope(op.name + "/rows/"):
            sizes = tf.shape(op.inputs[0])  # of the diagonal, or of zeros
            rows = tf.one_hot(tf.range(sizes[0]), sizes[-1], dtype=whole.dtype)
            rows.set_shape(whole.shape)
        redirect(readers_of(whole), rows)
        instead[op.name] = (rows.op,)
    return backward._replace(instead=instead)


def _is_identity(op: tf.Operation) -> bool:
    if op.type == "MatrixDiagV3":
        ones, place, *sizes, elsewhere = op.inputs
        is_square = [constant_of(size) for size in sizes] == [-1, -1]
        is_plain = is_square and constant_of(elsewhere) == 0
    elif op.type == "MatrixSetDiagV3":
        zeros, ones, place = op.inputs
        is_plain = _is_filled_with(zeros, 0)
    else:
        return False
    return is_plain and op.outputs[0].shape.rank == 2 and constant_of(place) == 0 and _is_filled_with(ones, 1)


def _is_filled_with(tensor: tf.Tensor, value: float) -> bool:
    found = tf.get_static_value(tensor.op.inputs[1] if tensor.op.type == "Fill" else tensor)
    return found is not None and bool(np.all(found == value))


def resize_by_products(backward: _keras.BackwardPass) -> _keras.BackwardPass:
    """Puts products with two matrices in the place of bilinear resizings and their gradients; the pass with these.

    XLA makes several times as many values as an image has, for either. The order of the additions changes, and with it
    the rounding.

    Args:
      backward: A pass that is not rewired yet.
    """
    instead = dict(backward.instead)
    for op in backward.graph.get_operations()[: backward.stop]:
        if op.type not in ("ResizeBilinear", "ResizeBilinearGrad") or not op.outputs[0].consumers():
            continue
        ends = op.inputs[0], op.outputs[0]
        whole, resized = ends if op.type == "ResizeBilinear" else ends[::-1]
        sizes = (*whole.shape[1:3], *resized.shape[1:3]) if whole.shape.rank == 4 else (None,)
        if None not in sizes:
            instead[op.name] = _resized(op, whole, resized)
    return backward._replace(instead=instead)


def _resized(op: tf.Operation, whole: tf.Tensor, resized: tf.Tensor) -> tuple[tf.Operation, ...]:
    """What was put in the place of a resizing or of its gradient."""
    is_gradient, read, made = op.type == "ResizeBilinearGrad", op.inputs[0], op.outputs[0]
    with _keras.stop_recording(), tf.device(op.device), tf.name_scope(op.name + "/products/"):
        rows, columns = (
            tf.constant(_interpolation(op, *sizes)) for sizes in zip(whole.shape[1:3], resized.shape[1:3])
        )
        first, second = (
            ("ph,bpwc->bhwc", "qw,bhqc->bhwc") if is_gradient else ("ph,bhwc->bpwc", "qw,bpwc->bpqc")
        )
        values = tf.cast(read, tf.float32)
        halfway = tf.raw_ops.Einsum(inputs=[rows, values], equation=first)
        found = tf.raw_ops.Einsum(inputs=[columns, halfway], equation=second)
        cast = tf.cast(found, made.dtype)
        cast.set_shape(made.shape)
    redirect(readers_of(made), cast)
    # What reads it after the gradient, as metrics do.
    _keras.at_end_of_trace(op.graph, lambda returned: redirect(readers_of(made), cast))
    made_by = {each.op.name: each.op for each in (values, halfway, found, cast) if each is not read}
    return tuple(made_by.values())


def _interpolation(op: tf.Operation, size: int, resized: int) -> np.ndarray:
    """[resized, size] Weights of the neighbours of each place, as the operation has them."""
    places = np.arange(resized, dtype=np.float32)
    if op.get_attr("align_corners") and resized > 1:
        places *= np.float32((size - 1) / (resized - 1))
    elif op.get_attr("half_pixel_centers"):
        places = (places + np.float32(0.5)) * np.float32(size / resized) - np.float32(0.5)
    else:
        places *= np.float32(size / resized)
    below = np.floor(places)
    weights = np.zeros((resized, size), np.float32)
    for neighbours, share in ((below, 1 - (places - below)), (np.ceil(places), places - below)):
        np.add.at(weights, (np.arange(resized), np.clip(neighbours, 0, size - 1).astype(int)), share)
    return weights


def compare_signs(backward: _keras.BackwardPass) -> _keras.BackwardPass:
    """Puts (x > 0) - (x < 0) in the place of each sign but those of weights; the pass with these.

    A comparison is held as a bit for each value, without an error. The sign of NaN becomes 0.

    Args:
      backward: A pass that is not rewired yet.
    """
    instead, ingredients = dict(backward.instead), Ingredients()
    for op in backward.operations():
        is_sign = op.type == "Sign" and op.inputs[0].dtype.is_floating
        if is_sign and ingredients.of(op.inputs[0]) not in (0, WEIGHTS):
            instead[op.name] = _compared(op)
    return backward._replace(instead=instead)


def _compared(sign: tf.Operation) -> tuple[tf.Operation, ...]:
    x = sign.inputs[0]
    with _keras.stop_recording(), tf.device(sign.device), tf.name_scope(sign.name + "/compared/"):
        zero = tf.zeros([], x.dtype)
        compared = x > zero, x < zero
        above, below = (tf.cast(each, x.dtype) for each in compared)
        negative = -below  # a difference of what was computed is not made again, but held
        found = above + negative
    redirect(readers_of(sign.outputs[0]), found)
    _read_nothing(sign)
    return tuple(each.op for each in (*compared, above, below, negative, found))


def _read_nothing(op: tf.Operation) -> None:
    """Lets what is never read read nothing itself: XLA compiles it, too."""
    dtype, rank = op.outputs[0].dtype, op.outputs[0].shape.rank or 0
    nothing, key = _keras.kept_with(op.graph, _read_nothing, dict), (dtype, rank, op.device)
    if key not in nothing:
        with _keras.stop_recording(), tf.device(op.device), tf.name_scope(f"{op.name}/unread/"):
            one = tf.zeros([1] * rank, dtype)
            nothing[key] = tf.raw_ops.PlaceholderWithDefault(input=one, shape=tf.TensorShape(None))
    for index in range(len(op.inputs)):
        _keras.set_input(op, index, nothing[key])
