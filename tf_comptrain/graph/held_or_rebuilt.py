"""Which tensors to hold: the cheapest set from which cheap operations rebuild all that the backward pass reads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_comptrain.graph.gradient_operations import GradientRead
from tf_comptrain.graph.ingredients import INDICES, Ingredients, exact_inputs, is_free
from tf_comptrain.graph.operations import (
    ADDITION,
    BLANK,
    CONVOLUTIONAL,
    MATRIX_PRODUCT,
    NO_ERROR,
    RANDOM,
    REDUCTION,
    SUMMATION,
    about,
)
from tf_comptrain.graph.tensors import (
    base_of,
    element_count,
    is_broadcast,
    is_last,
    is_moved,
    is_small,
    plain_bytes,
)

_GRANULE = 64  # bytes, in which costs are counted
_LARGEST = 2**29
NORMALIZATION = "FusedBatchNormV3"
DROPOUT = "Comptrain>Dropout"
AFFINE = "Comptrain>LayerNormAffine"
# Each operation that has to run again makes a tensor this much dearer to rebuild from.
_PER_OPERATION = 1.08
_FARTHEST = 40
# Operations in a row that run again, which are 16 at most in an attention. A loop that was unrolled has one row for
# all of its turns: each reader would run the turns before it.
_LONGEST = 20
_MOST_HELD = 6  # large tensors that one is made again of: each reader would decode them
_LARGEST_MASK = 4 << 20  # bytes
_TIMES_WIDER = 2
# Values for one: the sum is held where they would be made again of smaller tensors.
_MOST_SUMMED = 16
_FLATTENED = 2  # times as dear is what says less than its argument
_TILED = 16  # times as dear is what runs by tiles: held, it would have to be whole


class Choice(NamedTuple):
    """What is held between the passes, of all that the backward pass reads.

    Attributes:
      saved: By reference: tensors that are held, in one form or another.
      exact: By reference: those of them that no error may reach.
      is_free: Whether a tensor is there anyway: a weight, a constant, the batch, or made in the backward pass.
      made_of: What a tensor is made of: bits of `ingredients`.
    """

    saved: set
    exact: set
    is_free: Callable[[tf.Tensor], bool]
    made_of: Callable[[tf.Tensor], int]


def operands(tensor: tf.Tensor) -> list[tf.Tensor]:
    """What a tensor can be made of again: the inputs of its operation; of a normalization its statistics as well, of a
    dropout its bits instead of the random numbers."""
    if tensor.op.type == NORMALIZATION and tensor.value_index == 0:
        return [*list(tensor.op.inputs)[:3], tensor.op.outputs[1], tensor.op.outputs[2]]
    if tensor.op.type == DROPOUT and tensor.value_index == 0:
        return [tensor.op.inputs[0], tensor.op.outputs[1]]
    return list(tensor.op.inputs)


def choose(
    reads: Iterable[GradientRead],
    kept: Iterable[tf.Tensor],
    held_bytes: Callable[[tf.Tensor], int],
    made_late: Callable[[tf.Operation], bool],
    renormalizes: Callable[[tf.Operation], bool] = lambda op: False,
    whole: Iterable[tf.Tensor] = (),
    verbatim: Callable[[tf.Tensor], bool] = lambda tensor: False,
    signs: Iterable[tf.Tensor] = (),
    tiled: Collection[str] = (),
    exact: Iterable[tf.Tensor] = (),
    keeps_masks: bool = False,
    reruns_wide: bool = False,
) -> Choice:
    """The cheapest set of tensors to hold: a minimum cut between what can only be held and what is read.

    Args:
      reads: What the backward pass reads.
      kept: Tensors that are held as they are in any case.
      held_bytes: What a tensor takes where it is held.
      made_late: Whether an operation is one of the backward pass. What a second run of a forward part makes there
        (rebuild) crosses nothing.
      renormalizes: Whether what a normalization makes may be rebuilt from its input and its statistics.
      whole: Tensors that are held themselves, and not rebuilt: what reads them reads a stream.
      verbatim: Whether a tensor has to come back bit for bit: no arithmetic makes it again.
      signs: Tensors whose signs are read too: a stream of such a tensor has them, one of a view of it does not.
      tiled: Names of operations that run again by tiles: what they make would be whole for being held.
      exact: Tensors that are held as they are where they are needed.
      keeps_masks: Masks that are made of indices alone are there anyway: TensorFlow makes what many layers have in
        common once, but not what each makes again.
      reruns_wide: Convolutions and products with weights run again where they make several times what they read.

    Returns:
      A `Choice`.

    Reference:
      The partitioner of PyTorch's functorch cuts its joint graph in the same way.
    """
    cut = _Cut(held_bytes, made_late, renormalizes, whole, verbatim, signs, tiled, keeps_masks, reruns_wide)
    cut.require_exact(exact)
    return cut.solve(list(reads), list(kept))


class _Cut:
    """The network of the flow: a tensor is an edge whose capacity is what it costs to hold it."""

    def __init__(
        self,
        held_bytes: Callable[[tf.Tensor], int],
        made_late: Callable[[tf.Operation], bool],
        renormalizes: Callable[[tf.Operation], bool],
        whole: Iterable[tf.Tensor],
        verbatim: Callable[[tf.Tensor], bool],
        signs: Iterable[tf.Tensor],
        tiled: Collection[str],
        keeps_masks: bool,
        reruns_wide: bool,
    ):
        self._verbatim, self._tiled, self._keeps_masks = verbatim, tiled, keeps_masks
        self._reruns_wide = reruns_wide
        self._signs = {tensor.ref() for tensor in signs}
        self._whole = {tensor.ref() for tensor in whole}
        self._held_bytes = held_bytes
        self._made_late = made_late
        self._renormalizes = renormalizes
        # By ids of tensors, which their graph keeps.
        self._numbers: dict[int, int] = {}
        self._distances: dict[int, int] = {}
        self._free: dict[int, bool] = {}
        self._tensors: list[tf.Tensor] = []
        self._capacities: dict[tuple[int, int], int] = {}
        self._exact: set = set()
        self._exact_at_first: frozenset = frozenset()  # in any case
        self._ingredients = Ingredients(tiled)

    def require_exact(self, tensors: Iterable[tf.Tensor]) -> None:
        """No error may reach these, nor what they are views of."""
        for tensor in map(base_of, tensors):
            self._require_exact(tensor)
            while about(tensor.op.type).is_view:
                tensor = base_of(tensor.op.inputs[0])
                self._require_exact(tensor)

    def solve(self, reads: list[GradientRead], kept: list[tf.Tensor]) -> Choice:
        source, sink = 0, 1
        self.require_exact((*kept, *(read.tensor for read in reads if read.need in NO_ERROR)))
        self._exact_at_first = frozenset(self._exact)
        wanted = [base_of(tensor) for tensor in (*(read.tensor for read in reads), *kept)]
        for tensor in wanted:
            self._capacities[self._node(tensor) + 1, sink] = _LARGEST
        for tensor in self._reached(wanted):
            node = self._node(tensor)
            self._capacities[node, node + 1] = _LARGEST if self._runs_late(tensor) else self._cost(tensor)
            if self._is_free(tensor) or not self.may_rebuild(tensor):
                self._capacities[source, node] = _LARGEST
            else:
                for operand in operands(tensor):
                    self._capacities[self._node(base_of(operand)) + 1, node] = _LARGEST
        saved = self._shortened(self._minimum(source, sink), wanted)
        return Choice(saved, self._exact, self._is_free, self._ingredients.of)

    def _reached(self, wanted: list[tf.Tensor]) -> list[tf.Tensor]:
        """What is wanted and what that may be made of, nearest first; notes distances, and what has to be exact."""
        waiting = [(tensor, 0) for tensor in wanted]
        order: list[tf.Tensor] = []
        while waiting:  # breadth first, so that distances are shortest
            later = []
            for tensor, distance in waiting:
                if id(tensor) in self._distances:
                    continue
                self._distances[id(tensor)] = distance
                order.append(tensor)
                if self.may_rebuild(tensor):
                    for index, operand in enumerate(tensor.op.inputs):
                        if index in exact_inputs(tensor.op):
                            self._require_exact(base_of(operand))
                    before = [base_of(operand) for operand in operands(tensor)]
                    if self._hides_signs(tensor):
                        waiting += [(operand, distance) for operand in before]
                    else:
                        later += [(operand, distance + 1) for operand in before]
            waiting = later
        return order

    def _shortened(self, saved: set, wanted: list[tf.Tensor]) -> set:
        """What is held where little runs again for one tensor: no more than `_LONGEST` operations in a row, of no more
        than `_MOST_HELD` held tensors."""
        rows: dict[int, int] = {}  # by id: how many operations in a row make a tensor again
        sources: dict[int, frozenset] = {}  # and references of what held tensors they make it of
        waiting = list(wanted)
        while waiting:
            tensor = waiting[-1]
            before = self._made_again_of(tensor, saved)
            unknown = [operand for operand in before if id(operand) not in rows]
            if unknown and id(tensor) not in rows:
                waiting += unknown
                continue
            row = 1 + max((rows[id(operand)] for operand in before), default=-1)
            of = frozenset().union(*(sources[id(operand)] for operand in before))
            if self._is_too_long(tensor, row, of):
                saved = saved | {tensor.ref()}
            if tensor.ref() in saved:
                row, of = 0, frozenset() if is_small(tensor) else frozenset([tensor.ref()])
            rows[id(tensor)], sources[id(tensor)] = row, of
            waiting.pop()
        return self._needed(saved, wanted)

    def _is_too_long(self, tensor: tf.Tensor, row: int, of: frozenset) -> bool:
        """Whether a tensor is held instead of being made again by so many operations in a row of held ones."""
        if self._runs_late(tensor):
            return False
        if row > _LONGEST:
            return True
        is_whole = tensor.ref() in self._exact or tensor.op.name in self._tiled
        if is_whole or len(of) <= _MOST_HELD:
            return False
        return self._held_bytes(tensor) <= max(self._held_bytes(t.deref()) for t in of)

    def _needed(self, saved: set, wanted: list[tf.Tensor]) -> set:
        """Those of held tensors that something is made again of."""
        reached, waiting = set(), list(wanted)
        while waiting:
            tensor = waiting.pop()
            if tensor.ref() not in reached:
                reached.add(tensor.ref())
                waiting += self._made_again_of(tensor, saved)
        return saved & reached

    def _made_again_of(self, tensor: tf.Tensor, saved: set) -> list[tf.Tensor]:
        """What the backward pass makes a tensor of; nothing where it is there."""
        if tensor.ref() in saved or self._is_free(tensor):
            return []
        return [base_of(operand) for operand in operands(tensor)]

    def may_rebuild(self, tensor: tf.Tensor) -> bool:
        """Whether the backward pass may make the tensor again, from what is made again or held."""
        if tensor.ref() in self._whole:
            return False
        if tensor.ref() in self._exact and not (
            self._ingredients.is_exact_by_nature(tensor) or self._is_of_exact(tensor)
        ):
            return False
        if self._is_free(tensor) or not self._is_cheap(tensor) or not tensor.op.inputs:
            return False
        # What a gradient makes of it runs in the backward pass in any case.
        is_again = not self._has_same_bits(tensor.op) and not self._made_late(tensor.op)
        if is_again and tensor.dtype.is_floating and self._verbatim(tensor):
            return False
        steep = exact_inputs(tensor.op)
        return all(
            self._can_be_exact(base_of(tensor.op.inputs[i])) for i in steep if i < len(tensor.op.inputs)
        )

    def _has_same_bits(self, op: tf.Operation) -> bool:
        """Whether what is made again has the bits of before: values are moved, or a kernel of ours runs again."""
        if op.type == DROPOUT:
            return op.outputs[0].dtype == tf.float32  # others the kernel that stands in rounds otherwise
        return about(op.type).is_verbatim or op.type == AFFINE

    def _is_of_exact(self, tensor: tf.Tensor) -> bool:
        """Whether it is a view of what is exact."""
        return about(tensor.op.type).is_view and base_of(tensor.op.inputs[0]).ref() in self._exact

    def _runs_late(self, tensor: tf.Tensor) -> bool:
        """Whether the backward pass makes a tensor by itself, of what is held then: as a formula of the argument."""
        is_late = self._made_late(tensor.op) and not self._is_free(tensor)
        return is_late and not self._ingredients.is_exact_by_nature(tensor) and self.may_rebuild(tensor)

    def _is_cheap(self, tensor: tf.Tensor) -> bool:
        op, row = tensor.op, about(tensor.op.type)
        if op.type == DROPOUT or op.name in self._tiled and row.kind == RANDOM:  # that draws the same numbers
            return tensor.value_index == 0
        if op.type == NORMALIZATION:
            return tensor.value_index == 0 and self._renormalizes(op)
        # Sums of residual blocks would be rebuilt each from the one before, and live until the first of them is read.
        if row.kind == ADDITION and any(self._is_renormalized(base_of(term)) for term in op.inputs):
            return False
        if self._reruns_wide and row.kind in (CONVOLUTIONAL, MATRIX_PRODUCT) and self._is_wide(op):
            return True
        if row.kind == MATRIX_PRODUCT:  # the scores of an attention are larger than queries and keys together
            if op.name in self._tiled:
                return True
            size = sum(element_count(factor) for factor in op.inputs)
            return element_count(tensor) > size and self._joins_activations(op)
        if row.cancels and all(self._ingredients.has_errors(base_of(term)) for term in op.inputs):
            return not all(element_count(term) == element_count(tensor) for term in op.inputs)
        if row.kind in (SUMMATION, REDUCTION) and op.name not in self._tiled:
            is_much = element_count(op.inputs[0]) >= _MOST_SUMMED * element_count(tensor)
            return bool(row.again) and not (
                is_much and is_broadcast(op.inputs[0]) and is_last(tensor, self._made_late)
            )
        return bool(row.again)

    def _is_wide(self, op: tf.Operation) -> bool:
        """Whether a product with weights makes several times as many values as it reads of activations."""
        read = [tensor for tensor in op.inputs if self._ingredients.has_activations(base_of(tensor))]
        return len(read) == 1 and element_count(op.outputs[0]) >= _TIMES_WIDER * element_count(read[0])

    def _is_renormalized(self, tensor: tf.Tensor) -> bool:
        return tensor.op.type == NORMALIZATION and self._is_cheap(tensor)

    def _joins_activations(self, op: tf.Operation) -> bool:
        return all(self._ingredients.has_activations(base_of(operand)) for operand in op.inputs)

    def _can_be_exact(self, tensor: tf.Tensor) -> bool:
        """Small tensors are held as they are, the batch is there; what is of indices and constants has no error."""
        is_there = is_small(tensor) or is_free(tensor) or tensor.ref() in self._exact_at_first
        return is_there or self._ingredients.is_exact_by_nature(tensor)

    def _is_free(self, tensor: tf.Tensor) -> bool:
        found = self._free.get(id(tensor))
        if found is None:
            row = about(tensor.op.type)
            late = self._made_late(tensor.op) and (row.kind == BLANK or not row.again)
            # What is made of nothing TensorFlow computes once for all steps.
            found = late or is_free(tensor) or self._ingredients.of(tensor) == 0 or self._is_kept_mask(tensor)
            self._free[id(tensor)] = found
        return found

    def _is_kept_mask(self, tensor: tf.Tensor) -> bool:
        """Whether a tensor is a mask that is read as the forward pass made it."""
        is_mask = self._keeps_masks and tensor.dtype == tf.bool and tensor.op.name not in self._tiled
        is_made = is_mask and not self._made_late(tensor.op) and self._ingredients.of(tensor) == INDICES
        return is_made and plain_bytes(tensor) <= _LARGEST_MASK

    def _require_exact(self, tensor: tf.Tensor) -> None:
        if not self._is_free(tensor):
            self._exact.add(tensor.ref())

    def _node(self, tensor: tf.Tensor) -> int:
        if id(tensor) not in self._numbers:
            self._numbers[id(tensor)] = 2 * len(self._tensors) + 2
            self._tensors.append(tensor)
        return self._numbers[id(tensor)]

    def _cost(self, tensor: tf.Tensor) -> int:
        if self._is_free(tensor):
            return 0
        if self._ingredients.is_exact_by_nature(tensor):
            self._exact.add(tensor.ref())
        as_it_is = tensor.ref() in self._exact and tensor.dtype != tf.bool
        size = plain_bytes(tensor) if as_it_is else self._held_bytes(tensor)
        if tensor.op.name in self._tiled and tensor.dtype.is_floating:
            size *= _TILED
        if about(tensor.op.type).flattens and not as_it_is:
            size *= _FLATTENED
        if self._hides_signs(tensor):
            size += element_count(tensor) // 8
        distance = min(self._distances[id(tensor)], _FARTHEST)
        # One more for each operation also where a tensor costs nothing: it is not rebuilt for nothing.
        return 1 + distance + min(int(size / _GRANULE * _PER_OPERATION**distance), _LARGEST - _FARTHEST - 1)

    def _hides_signs(self, tensor: tf.Tensor) -> bool:
        """Whether it is a view of a tensor whose signs are read, which its stream says nothing of."""
        while tensor.ref() not in self._signs and is_moved(tensor):
            tensor = base_of(tensor.op.inputs[0])
            if tensor.ref() in self._signs:
                return True
        return False

    def _minimum(self, source: int, sink: int) -> set:
        from scipy.sparse import csr_matrix  # not before a step is traced: importing it takes a while
        from scipy.sparse.csgraph import breadth_first_order, maximum_flow

        count = 2 * len(self._tensors) + 2
        edges = list(self._capacities)
        capacities = np.array([self._capacities[edge] for edge in edges], np.int32)
        rows, columns = np.array(edges).T if edges else (np.zeros(0, int), np.zeros(0, int))
        network = csr_matrix((capacities, (rows, columns)), shape=(count, count))
        residual = network - maximum_flow(network, source, sink).flow
        residual.data = np.maximum(residual.data, 0)
        residual.eliminate_zeros()
        reached = set(breadth_first_order(residual, source, return_predecessors=False).tolist())
        return {
            tensor.ref()
            for tensor in self._tensors
            if not self._is_free(tensor)
            and self._numbers[id(tensor)] in reached
            and self._numbers[id(tensor)] + 1 not in reached
        }
