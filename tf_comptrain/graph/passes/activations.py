"""Activation functions and gradients that are written as formulas, run by kernels that make one pass.

Each operation of a formula reads and writes a whole tensor: a GELU by its tanh has eight of them, and its gradient ten.
They are looked for when all of a step is traced: what makes a tensor of another one element by element, or a gradient
of that and an incoming gradient, is run on sample values. Where a kernel makes the same of these, it stands in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_comptrain import _keras, native
from tf_comptrain.graph.ingredients import constant_of
from tf_comptrain.graph.operations import ADDITION, EXACT, NONLINEAR, SIGN, about
from tf_comptrain.graph.order import in_order, names_of_run
from tf_comptrain.graph.replacements import redirect
from tf_comptrain.graph.tensors import base_of, is_small, readers_of

_KERNELS = ("tanh_gelu", "gelu", "silu")  # of 16 bits the first two make the same
# Gradients of broadcasts have these, whose second inputs are made of shapes.
_OF_BROADCASTS, _SIZES = frozenset(["Reshape", "Sum"]), frozenset(["BroadcastGradientArgs", "Shape"])
_BESIDE = frozenset(["Const", "Shape"])  # of tensors inside they need no values
_MOST = 64  # operations of a formula
_SAMPLES = np.concatenate([np.linspace(-6, 6, 96), (-20, -12, -8, 8, 12, 20)])
# Of the error of a sample, relative to one plus its size. All run as float32, with constants rounded to their own type.
_TOLERANCES = {tf.float32: 2e-5, tf.float16: 1e-3, tf.bfloat16: 6e-3}
_AS_FLOAT32 = {tf.float16: tf.float32, tf.bfloat16: tf.float32}

_known: dict[tuple, str | None] = {}  # kernels by structure, for all loops and steps


class Stretch(NamedTuple):
    """Operations in a row.

    Attributes:
      sources: What they make their last result of: a value; with a gradient behind it, where that is one.
      inside: The operations, each after what it reads.
    """

    sources: tuple[tf.Tensor, ...]
    inside: tuple[tf.Operation, ...]


class Formula(NamedTuple):
    """A stretch that a kernel may stand in for.

    Attributes:
      kernel: Name of the function.
      end: The tensor that it makes.
      stretch: Its operations.
    """

    kernel: str
    end: tf.Tensor
    stretch: Stretch

    @property
    def function(self) -> Callable[..., tf.Tensor]:
        return _function(self.kernel, self.stretch)


def _function(kernel: str, stretch: Stretch) -> Callable[..., tf.Tensor]:
    """The kernel, or that of its gradient."""
    return getattr(native.ops(), f"comptrain_{kernel}{'_grad' if len(stretch.sources) > 1 else ''}")


def run_in_one_pass(
    graph: tf.Graph,
    seeds: Iterable[tf.Tensor],
    returned: Sequence[Any],
    may_round: Callable[[tf.Tensor], bool] = lambda tensor: True,
) -> None:
    """Puts kernels in the place of formulas.

    Args:
      graph: Of a step, or of a loop in it; all of it is traced and rewired.
      seeds: Gradients in it that all others come from.
      returned: What its function returns.
      may_round: Whether a tensor may be made in another way, which rounds otherwise.
    """
    fixed = {tensor.ref() for tensor in returned if tf.is_tensor(tensor)}
    finder = _Finder(_names_from(seeds), lambda t: t.ref() not in fixed and may_round(t))
    operations = graph.get_operations()
    live = names_of_run(operations, filter(tf.is_tensor, returned))
    for op in reversed(operations):  # readers first: they then read what another formula's kernel makes
        if op.name not in live or not op.outputs or is_small(op.outputs[0]):
            continue
        if op.outputs[0].dtype in _TOLERANCES:
            finder.look_at(op)
    for formula in _gone_together(finder.found.values(), live):
        _replace(formula)


def _names_from(seeds: Iterable[tf.Tensor]) -> set[str]:
    """Names of the operations that come from gradients of the targets; what is restored only waits for them."""
    found, waiting = set(), [seed.op for seed in seeds]
    while waiting:
        op = waiting.pop()
        if op.name not in found:
            found.add(op.name)
            readers = (reader for tensor in op.outputs for reader in tensor.consumers())
            waiting += [reader for reader in readers if reader.type != "Comptrain>Decompress"]
    return found


def _gone_together(found: Iterable[Formula], live: Collection[str]) -> list[Formula]:
    """The formulas whose operations nothing needs any more where all of them are replaced."""
    formulas = list(found)
    while True:
        gone = {op.name for formula in formulas for op in formula.stretch.inside}
        last = [formula for formula in formulas if _is_gone(formula.stretch.inside, gone, live)]
        if len(last) == len(formulas):
            return formulas
        formulas = last


def _is_gone(inside: Sequence[tf.Operation], gone: Collection[str], live: Collection[str]) -> bool:
    """Whether operations, but for the last one, are live for the sake of those named `gone` alone."""
    needed = (
        later
        for op in inside[:-1]
        for later in (*op.outputs[0].consumers(), *_keras.operations_waiting_for(op))
        if later.type not in _BESIDE and later.name in live
    )
    return all(later.name in gone for later in needed)


def _replace(formula: Formula) -> None:
    end, (sources, inside) = formula.end, formula.stretch
    names = {op.name for op in inside}
    waits = [before for op in inside for before in op.control_inputs if before.name not in names]
    with _keras.stop_recording(), tf.device(end.op.device), tf.control_dependencies(waits):
        made = formula.function(*sources)
    made.set_shape(end.shape)
    redirect(readers_of(end), made)
    _keras.wait_instead(end.op, made.op)
    for op in inside[:-1]:
        sizes = [reader for reader in readers_of(op.outputs[0]) if reader[0].type == "Shape"]
        redirect(sizes, sources[0])


class _Finder:
    """Looks for formulas.

    Args:
      gradients: Names of the operations that gradients come from.
      may_change: Whether a tensor may be another one, nearly alike.

    Attributes:
      found: By name of the tensor that it makes.
    """

    def __init__(self, gradients: Collection[str], may_change: Callable[[tf.Tensor], bool]):
        self.found: dict[str, Formula] = {}
        self._gradients, self._may_change = gradients, may_change
        self._ends_none: set[str] = set()  # names of tensors that no formula makes

    def look_at(self, op: tf.Operation) -> None:
        """Looks for formulas that an operation is in."""
        gradient = _softmax_gradient(op)
        if gradient is not None and self._may_change(gradient.end):
            self.found[gradient.end.name] = gradient
        elif _is_curved(op):
            self._look_from(op)

    def _look_from(self, op: tf.Operation) -> None:
        """Looks for the ends of formulas behind one of their operations."""
        behind, waiting = {op.name: op}, [op]
        while waiting and len(behind) < _MOST:
            for reader in waiting.pop(0).outputs[0].consumers():
                if reader.name not in behind and _is_elementwise(reader):
                    behind[reader.name] = reader
                    waiting.append(reader)
        last = sorted(
            (op for op in behind.values() if about(op.type).kind == ADDITION or about(op.type).broadcasts),
            key=lambda op: op.type != "AddN",  # with which most gradients end
        )
        for is_gradient in (False, True):  # both may be made of what the operation makes
            ends = (op.outputs[0] for op in last if (op.name in self._gradients) == is_gradient)
            any(self._ends_a_formula(end) for end in ends)

    def _ends_a_formula(self, end: tf.Tensor) -> bool:
        """Whether a formula makes a tensor; it is noted then."""
        if end.name in self.found:
            return True
        if end.name in self._ends_none or not self._may_change(end):
            return False
        for stretch in _stretches(end, self._gradients):
            kernel = self._kernel_of(end, stretch)
            if kernel is not None and self._may_change(base_of(stretch.sources[0])):
                self.found[end.name] = Formula(kernel, end, stretch)
                return True
        self._ends_none.add(end.name)
        return False

    def _kernel_of(self, end: tf.Tensor, stretch: Stretch) -> str | None:
        """The name of a kernel that makes the same."""
        if not any(map(_is_curved, stretch.inside)):
            return None
        key = _structure(stretch)
        if key not in _known:
            _known[key] = _compared(end, stretch)
        return _known[key]


def _stretches(end: tf.Tensor, gradients: Collection[str]) -> Iterator[Stretch]:
    """What a tensor may be made of, nearest first: of one other of its shape, or of one and a gradient.

    Args:
      end: The tensor.
      gradients: Names of the operations that gradients come from.
    """
    order = _before(end)[::-1]
    values = [op for op in order if op.name not in gradients]
    if end.op.name not in gradients:
        yield from _argument_of(end, {end.ref(): end}, [], values)
        return
    read: dict[Any, tf.Tensor] = {end.ref(): end}
    inside: list[tf.Operation] = []
    for op in (op for op in order if op.name in gradients):
        _put_before(read, op, inside)
        entering = [t for t in read.values() if t.op.name in gradients]
        if len(entering) == 1 and _are_alike(entering[0], end):
            rest = {key: tensor for key, tensor in read.items() if tensor is not entering[0]}
            for (x,), operations in _argument_of(end, rest, inside, values):
                yield Stretch((x, *entering), operations)


def _argument_of(
    end: tf.Tensor,
    read: Mapping[Any, tf.Tensor],
    inside: Sequence[tf.Operation],
    values: Iterable[tf.Operation],
) -> Iterator[Stretch]:
    """Stretches with one value that all of some tensors are made of.

    Args:
      end: What the stretches make.
      read: The tensors, by reference.
      inside: Operations between these and `end`, the last one first.
      values: Operations that they come from, likewise.
    """
    read, inside = dict(read), list(inside)
    for op in (None, *values):
        if op is not None and not _put_before(read, op, inside):
            continue
        if inside and len(read) == 1 and all(_are_alike(tensor, end) for tensor in read.values()):
            yield Stretch(tuple(read.values()), tuple(reversed(inside)))


def _put_before(read: dict[Any, tf.Tensor], op: tf.Operation, inside: list[tf.Operation]) -> bool:
    """Puts what an operation reads in the place of what it makes; whether that was read."""
    if read.pop(op.outputs[0].ref(), None) is None:
        return False
    read.update((tensor.ref(), tensor) for tensor in _operands(op))
    inside.append(op)
    return True


def _before(end: tf.Tensor) -> list[tf.Operation]:
    """Elementwise operations that a tensor comes from, each after what it reads; the nearest of them."""
    near, waiting = {end.op.name: end.op}, [end.op]
    while waiting and len(near) < _MOST:
        for operand in _operands(waiting.pop(0)):
            if operand.op.name not in near and _is_elementwise(operand.op):
                near[operand.op.name] = operand.op
                waiting.append(operand.op)
    return in_order(near.values())


def _softmax_gradient(op: tf.Operation) -> Formula | None:
    """The formula that ends with an operation as TensorFlow's gradient of a softmax does: (dy - sum(dy y)) y."""
    if op.type != "Mul" or op.inputs[0].op.type != "Sub":
        return None
    difference, y = op.inputs
    dy, total = difference.op.inputs
    if total.op.type != "Sum" or not total.op.get_attr("keep_dims") or not _are_alike(dy, y):
        return None
    product, axes = total.op.inputs
    if product.op.type != "Mul" or {t.ref() for t in product.op.inputs} != {dy.ref(), y.ref()}:
        return None
    if np.ravel(tf.get_static_value(axes)).tolist() not in ([-1], [y.shape.rank - 1]):
        return None
    return Formula("softmax", op.outputs[0], Stretch((y, dy), (product.op, total.op, difference.op, op)))


def _is_curved(op: tf.Operation) -> bool:
    """Whether a formula may be looked for around an operation: each has one that is no arithmetic."""
    row = about(op.type)
    return row.is_elementwise and (NONLINEAR in (row.gradient or {}).values() or row.is_logarithmic)


def _is_elementwise(op: tf.Operation) -> bool:
    row = about(op.type)
    if op.type in _OF_BROADCASTS:
        return op.inputs[1].op.type in _SIZES
    # What compares values may do so beyond all samples.
    compares = not {SIGN, EXACT}.isdisjoint((*(row.gradient or {}).values(), *row.reads.values()))
    is_known = (row.is_elementwise or row.is_alias) and not compares
    return is_known and len(op.outputs) == 1 and not op.type.startswith("Comptrain>")


def _operands(op: tf.Operation) -> list[tf.Tensor]:
    """The tensors that an operation reads, but for numbers that are known and for sizes."""
    return [t for t in op.inputs if t.dtype.is_floating and constant_of(t) is None]


def _are_alike(tensor: tf.Tensor, other: tf.Tensor) -> bool:
    """Whether two tensors have one type and one shape, as far as the graph says it."""
    has_rank = tensor.shape.rank is not None and tensor.shape.rank == other.shape.rank
    return tensor.dtype == other.dtype and has_rank and tensor.shape.is_compatible_with(other.shape)


def _structure(stretch: Stretch) -> tuple:
    """What stretches have in common that make the same."""
    made = (op.outputs[0] for op in stretch.inside)
    numbers = {tensor.ref(): number for number, tensor in enumerate((*stretch.sources, *made))}
    rank = stretch.sources[0].shape.rank
    return rank, *(
        (op.type, op.outputs[0].dtype, *(numbers.get(t.ref(), str(constant_of(t))) for t in op.inputs))
        for op in stretch.inside
    )


def _compared(end: tf.Tensor, stretch: Stretch) -> str | None:
    """The name of a kernel that makes the same of sample values."""
    points = _SAMPLES.reshape([1] * (end.shape.rank - 1) + [-1])
    with tf.init_scope():
        values = [tf.cast(each, tf.float32) for each in (points, np.cos(7 * points))[: len(stretch.sources)]]
        made = _run(values, stretch)
        if made is None:
            return None
        for kernel in _KERNELS:
            expected = _function(kernel, stretch)(*values)
            error = tf.abs(made - expected) / (1 + tf.abs(expected))
            if float(tf.reduce_max(error)) <= _TOLERANCES[end.dtype]:
                return kernel
    return None


def _run(values: Sequence[tf.Tensor], stretch: Stretch) -> tf.Tensor | None:
    """What operations make of values; None where they read something else."""
    known: dict[Any, Any] = {tensor.ref(): value for tensor, value in zip(stretch.sources, values)}

    def value_of(tensor: tf.Tensor) -> Any:
        if tensor.ref() in known:
            return known[tensor.ref()]
        constant = constant_of(tensor)
        if constant is not None:
            return constant if tensor.dtype.is_floating else int(constant)
        op = tensor.op
        if op.type == "Shape" and op.inputs[0].shape.rank is not None:
            return np.shape(values[0])[len(values[0].shape) - op.inputs[0].shape.rank :]
        if op.type == "BroadcastGradientArgs":
            return _keras.run_eagerly(op, [value_of(operand) for operand in op.inputs])[tensor.value_index]
        raise LookupError(tensor.name)

    made = None
    try:
        for op in stretch.inside:
            made = _keras.run_eagerly(op, [value_of(operand) for operand in op.inputs], _AS_FLOAT32)[0]
            known[op.outputs[0].ref()] = made
    except (LookupError, tf.errors.OpError):
        return None
    return made
