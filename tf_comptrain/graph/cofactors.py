"""Where an error would meet a factor that is not bounded by the scale of the tensors.

An error of a factor of a gradient is an error of the product, in proportion to what it is multiplied with. y / |y|
over few channels multiplies with 1 / |y|, which is largest where y is smallest: the error then has no bound, while
y itself cancels it. The chain of gradient operations between two products with weights is one such formula. If any
of its factors has no bound, all that it reads stays exact.

What bounds a divisor is its structure. A mean of many squares is small only where the whole vector is: layer, group
and RMS normalization and lengths of wide vectors go on being compressed, lengths over two channels do not.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np
import tensorflow as tf

from tf_comptrain.graph import operations
from tf_comptrain.graph.gradient_operations import GradientOperations, GradientRead
from tf_comptrain.graph.ingredients import Ingredients, constant_of
from tf_comptrain.graph.operations import about
from tf_comptrain.graph.tensors import base_of, element_count

# Values whose mean of squares is near zero only with all of them: of 16 normal ones it is below a quarter of its mean
# once in a thousand times, of two in 4.
_MANY = 16
_MANY_RECTIFIED = 256  # of which a few may be all that are not zero
# Activations are of the order of one: a divisor that is never smaller is as good as a constant.
_LEAST_DIVISOR = 0.5
_DEPTH = 16  # operations up to which a least value is looked for


def with_exact_reads(gradients: GradientOperations) -> list[GradientRead]:
    """What the gradient operations read, where what stands in a formula without bound may bear no error.

    Args:
      gradients: Those of a backward pass.

    Returns:
      Its `reads` in order, some with the need UNBOUNDED.
    """
    cofactors = _Cofactors(gradients)
    steep = {
        read.op.name: read.op
        for read in gradients.reads
        if not cofactors.ends_formula(read.op) and cofactors.has_no_bound(read)
    }
    for op in gradients.operations:
        if (row := about(op.type)).has_no_bound or row.is_logarithmic:
            steep[op.name] = op
    if not steep:
        return gradients.reads
    met = cofactors.formulas_of(list(steep.values()))
    bears = (operations.LINEAR, operations.CONVOLUTION, operations.NORM, operations.NONLINEAR)
    return [
        read._replace(need=operations.UNBOUNDED) if read.op.name in met and read.need in bears else read
        for read in gradients.reads
    ]


class _Cofactors:
    def __init__(self, gradients: GradientOperations):
        self._gradients = gradients
        self._ingredients = Ingredients()
        self._unbounded: dict[Any, bool] = {}
        self._reads: dict[str, list[GradientRead]] = {}
        for read in gradients.reads:
            self._reads.setdefault(read.op.name, []).append(read)

    def has_no_bound(self, read: GradientRead) -> bool:
        """Whether a gradient operation multiplies with what is not bounded by the scale of the tensors."""
        tensor = base_of(read.tensor)
        if not (tensor.dtype.is_floating or tensor.dtype.is_complex):
            return False
        if about(read.op.type).near_zero == read.number:
            return not self._stays_off_zero(tensor)
        return read.need in (operations.LINEAR, operations.UNBOUNDED) and self._is_unbounded(tensor)

    def formulas_of(self, steep: list[tf.Operation]) -> set[str]:
        """Names of the given operations and of all before and after them, up to products with weights."""
        found: set[str] = set()
        for beside in (self._after, self._before):
            waiting, seen = list(steep), {op.name for op in steep}
            while waiting:
                new = [
                    op for op in beside(waiting.pop()) if op.name not in seen and not self.ends_formula(op)
                ]
                seen.update(op.name for op in new)
                waiting += new
            found |= seen
        return found

    def _after(self, op: tf.Operation) -> list[tf.Operation]:
        return [reader for made in op.outputs for reader in self._gradients.readers_of(made)]

    def _before(self, op: tf.Operation) -> list[tf.Operation]:
        return [tensor.op for tensor in op.inputs if self._gradients.is_gradient(tensor)]

    def ends_formula(self, op: tf.Operation) -> bool:
        """Whether a gradient is spread over all channels, or ends in a weight's."""
        if operations.NORM in about(op.type).reads.values():
            return True
        if not about(op.type).is_product:
            return False
        reads = self._reads.get(op.name, [])
        activations = any(self._ingredients.has_activations(base_of(read.tensor)) for read in reads)
        return not activations or self._gradients.ends(op)

    def _is_unbounded(self, tensor: tf.Tensor) -> bool:
        waiting = [base_of(tensor)]
        while waiting:
            current = waiting[-1]
            if current.ref() in self._unbounded:
                waiting.pop()
                continue
            known = self._at_once(current)
            if known is None:
                behind = [base_of(operand) for operand in current.op.inputs]
                unknown = [operand for operand in behind if operand.ref() not in self._unbounded]
                if unknown:
                    waiting += unknown
                    continue
                known = any(self._unbounded[operand.ref()] for operand in behind)
            self._unbounded[current.ref()] = known
        return self._unbounded[base_of(tensor).ref()]

    def _at_once(self, tensor: tf.Tensor) -> bool | None:
        """Whether a tensor is unbounded by its operation alone; None: it is if an input of that is."""
        op, row = tensor.op, about(tensor.op.type)
        if not self._ingredients.has_activations(tensor):
            return False
        if row.has_no_bound:
            return True
        argument = row.near_zero
        if argument is not None and _is_reciprocal(op) and not self._stays_off_zero(op.inputs[argument]):
            return True
        if row.kind == operations.MATRIX_PRODUCT:
            of_activations = all(self._ingredients.has_activations(base_of(each)) for each in op.inputs)
            return None if of_activations else False
        return None if row.again else False

    def _stays_off_zero(self, tensor: tf.Tensor) -> bool:
        """Whether a divisor is bounded from below, by a constant or by the scale of what it is made of."""
        tensor = base_of(tensor)
        if not self._ingredients.has_activations(tensor) or self._least(tensor) >= _LEAST_DIVISOR:
            return True
        if not tensor.op.inputs:  # the batch
            return False
        op, (first, *others) = tensor.op, tensor.op.inputs
        kind = about(op.type).kind
        if _has_values_of_first(op) or op.type in ("Sqrt", "Square", "Neg"):
            return self._stays_off_zero(first)
        if op.type == "RealDiv" and not self._ingredients.has_activations(base_of(first)):
            return True  # small where activations are large: what is divided by it is multiplied with these
        if op.type in ("Mul", "Pow", "RealDiv"):
            return self._keeps_off_zero(op) and self._stays_off_zero(first)
        if kind == operations.ADDITION:
            return min(map(self._least, op.inputs)) >= 0 and any(map(self._is_large, op.inputs))
        if op.type == "Maximum":
            return any(map(self._is_large, op.inputs))
        if _is_variance(op):
            return self._stays_off_zero(first)
        if op.type in ("Select", "SelectV2"):
            return all(map(self._stays_off_zero, others))
        return (kind == operations.SUMMATION or op.type == "Max") and self._is_of_many(op)

    def _keeps_off_zero(self, op: tf.Operation) -> bool:
        """Whether the second factor, divisor or exponent leaves the first off zero."""
        second = base_of(op.inputs[1])
        if op.type == "Pow":
            return (constant_of(second) or 0.0) > 0
        if not self._ingredients.has_activations(second):
            return True
        return op.type == "Mul" and self._stays_off_zero(second)

    def _is_large(self, term: tf.Tensor) -> bool:
        """Whether a tensor of activations stays off zero."""
        return self._ingredients.has_activations(base_of(term)) and self._stays_off_zero(term)

    def _is_of_many(self, op: tf.Operation) -> bool:
        """Whether a reduction is of many squares, of the largest probabilities or exponentials, or counts."""
        terms = _behind(op.inputs[0])
        if terms.dtype == tf.bool:
            return True
        if terms.op.type == "Exp":
            shifted = base_of(terms.op.inputs[0]).op
            return shifted.type == "Sub" and _is_largest(shifted.inputs[1])
        if terms.op.type == "TopKV2":  # of n probabilities the largest is at least 1 / n
            return _behind(terms.op.inputs[0]).op.type == "Softmax"
        if about(terms.op.type).kind == operations.SUMMATION:
            return self._stays_off_zero(terms)
        is_length = terms.op.type == "Abs" or is_square(terms.op)
        squares = is_length or terms.op.type == "SquaredDifference"
        many = _MANY_RECTIFIED if is_length and _is_rectified(terms.op.inputs[0]) else _MANY
        return squares and element_count(op.inputs[0]) >= many * element_count(op.outputs[0])

    def _least(self, tensor: tf.Tensor, depth: int = _DEPTH) -> float:
        """The least value that a tensor may have, whatever the activations are; -inf where that is not seen."""
        tensor = base_of(tensor)
        op = tensor.op
        if not self._ingredients.has_activations(tensor):
            return _least_constant(tensor)
        row = about(op.type)
        if row.least is not None or is_square(op) or _is_variance(op):
            return row.least or 0.0
        is_summed = row.kind == operations.SUMMATION
        if not depth:
            return -math.inf
        if _has_values_of_first(op) or is_summed or op.type in ("Max", "Min"):
            return _least_made(op, [self._least(op.inputs[0], depth - 1)])
        has_factors = row.broadcasts and row.gradient
        if not (row.kind == operations.ADDITION or has_factors or op.type in ("Maximum", "Pow")):
            return -math.inf
        return _least_made(op, [self._least(each, depth - 1) for each in op.inputs])


def _least_constant(tensor: tf.Tensor) -> float:
    value = tf.get_static_value(tensor)
    return -math.inf if value is None or not np.size(value) else float(np.min(value))


def _least_made(op: tf.Operation, least_of: list[float]) -> float:
    """The least value that a monotone operation makes of inputs with these."""
    if len(least_of) == 1 and op.type != "Sum":
        return least_of[0]
    if op.type == "Pow":
        power = constant_of(op.inputs[1]) or 0.0
        return -math.inf if power % 2 != 1 else math.copysign(abs(least_of[0]) ** power, least_of[0])
    if op.type == "Maximum":
        return max(least_of)
    if about(op.type).kind == operations.ADDITION:
        return sum(least_of)
    return 0.0 if min(least_of) >= 0 else -math.inf


def _behind(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor whose values these are, in whatever shape and type."""
    while _has_values_of_first((tensor := base_of(tensor)).op):
        tensor = tensor.op.inputs[0]
    return tensor


def _has_values_of_first(op: tf.Operation) -> bool:
    """Whether what an operation makes has no other values than its first input."""
    row = about(op.type)
    return row.is_move or row.kind in (operations.PART, operations.REPEAT) or op.type == "Cast"


def _is_rectified(tensor: tf.Tensor) -> bool:
    """Whether values are zero where what they are made of is negative."""
    op = _behind(tensor).op
    row = about(op.type)
    return row.limits is not None and row.least == 0 or op.type == "Maximum"


def _is_reciprocal(op: tf.Operation) -> bool:
    exponent = constant_of(op.inputs[1]) if op.type == "Pow" else None
    return exponent is None or exponent < 0


def is_square(op: tf.Operation, powers: Collection[float] = (2.0, 4.0)) -> bool:
    """Whether an operation makes squares of one tensor, or other even powers."""
    if op.type == "Mul":
        return base_of(op.inputs[0]) is base_of(op.inputs[1])
    return op.type == "Square" or op.type == "Pow" and constant_of(op.inputs[1]) in powers


def _is_variance(op: tf.Operation) -> bool:
    """Whether a difference is one of the mean of squares and the square of the mean."""
    if op.type != "Sub" or not is_square(base_of(op.inputs[1]).op):
        return False
    mean = _behind(op.inputs[0])
    return about(mean.op.type).kind == operations.SUMMATION and is_square(_behind(mean.op.inputs[0]).op)


def _is_largest(tensor: tf.Tensor) -> bool:
    tensor = _behind(tensor)
    while tensor.op.type in ("Select", "SelectV2"):  # TensorFlow's log-sum-exp leaves out what is infinite
        tensor = _behind(tensor.op.inputs[1])
    return tensor.op.type == "Max"
