"""Gradients of means and sums without a tensor of equal values: what adds them up broadcasts them itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf

from tf_comptrain import _keras, native
from tf_comptrain.graph.operations import about
from tf_comptrain.graph.replacements import redirect
from tf_comptrain.graph.tensors import plain_bytes, readers_of

_GATES = {"Comptrain>Decompress": 2}  # inputs that are only waited for
_LEAST_BYTES = 1 << 16
_MOST_ADDED = 8  # up to which AddN adds its inputs in turn


def narrow_broadcasts(backward: _keras.BackwardPass, at_once: frozenset[str] = frozenset()) -> None:
    """Puts additions that broadcast in the place of sums that read repeated values, in the same order.

    TensorFlow makes the gradient of a mean by repeating the small tensor to the size of what was averaged, and scales
    and adds up that: a batch normalization's gradient has four such tensors at once. Only what ends in a sum with a
    tensor of the full size is changed, so that shapes cannot differ whatever the sizes are. The bits are the same but
    where TensorFlow's optimizer gives an operand another name or form before it sorts a sum, and where oneDNN adds up
    four tensors or more.

    Args:
      backward: The pass, rewired, on TensorFlow's executor.
      at_once: Names of operations that run by tiles.
    """
    operations = [op for op in backward.graph.get_operations()[backward.start :] if op.name not in at_once]
    returned = {id(tensor) for tensor in backward.gradients}
    kept: set[str] = set()
    while True:
        reached = _reach(operations, kept)
        wide = _wide(reached, returned)
        if not wide:
            break
        kept |= wide
    if reached:
        _replace([op for op in operations if op.name in reached or _reads(op, reached)], reached)


def _reach(operations: Iterable[tf.Operation], kept: set[str]) -> dict[str, tf.Operation]:
    """What repeats, and what is made of that value by value, by name and in order; but for `kept`."""
    reached: dict[str, tf.Operation] = {}
    for op in operations:
        reads = _reads(op, reached)
        through = about(op.type).broadcasts and reads or _adds(op) and len(reads) == len(op.inputs)
        if op.name not in kept and (through or _repeats(op)):
            reached[op.name] = op
    return reached


def _repeats(op: tf.Operation) -> bool:
    """Whether a large tensor is what broadcasting makes of a small one."""
    if op.type not in ("BroadcastTo", "Tile") or not op.outputs[0].dtype.is_floating:
        return False
    if plain_bytes(op.outputs[0]) < _LEAST_BYTES:
        return False
    small, large = op.inputs[0].shape, op.outputs[0].shape
    return op.type == "BroadcastTo" or (
        small.is_fully_defined() and all(size in (1, of_large) for size, of_large in zip(small, large))
    )


def _reads(op: tf.Operation, reached: Mapping[str, tf.Operation]) -> list[int]:
    """At which of its inputs an operation reads what was reached."""
    return [index for index, tensor in enumerate(op.inputs) if tensor.op.name in reached]


def _wide(reached: Mapping[str, tf.Operation], returned: set[int]) -> set[str]:
    """What has a reader that does not broadcast."""
    found: set[str] = set()
    for op in reversed(list(reached.values())):
        readers = op.outputs[0].consumers()
        fine = (
            reader.name in reached and reader.name not in found
            or _adds(reader) and len(_reads(reader, reached)) < len(reader.inputs)
            or _reads(reader, reached) == [_GATES.get(reader.type)]
            for reader in readers
        )  # fmt: skip
        if id(op.outputs[0]) in returned or not all(fine):
            found.add(op.name)
    return found


def _adds(op: tf.Operation) -> bool:
    return op.type == "AddN" and len(op.inputs) <= _MOST_ADDED


def _replace(operations: Iterable[tf.Operation], reached: Mapping[str, tf.Operation]) -> None:
    """Makes what was reached and the sums anew, in order, of the small tensors."""
    narrow: dict[str, tf.Tensor] = {}
    for op in operations:
        inputs = [narrow.get(tensor.op.name, tensor) for tensor in op.inputs]
        if op.type in _GATES:
            index = _GATES[op.type]
            with tf.device(
                op.device
            ):  # A graph refuses an input of another shape, but none of an unknown one.
                gate = tf.raw_ops.PlaceholderWithDefault(input=inputs[index], shape=tf.TensorShape(None))
            _keras.set_input(op, index, gate)
            continue
        with tf.device(op.device), tf.control_dependencies(op.control_inputs):
            if _repeats(op):
                tensor = tf.identity(inputs[0]) if op.control_inputs else inputs[0]
            elif _adds(op):
                tensor = _sum(inputs, [tensor.name for tensor in op.inputs])
            else:
                tensor = _keras.run_again(op, inputs, "narrow", shaped=False)[0]
        if op.name in reached:
            narrow[op.name] = tensor
        else:
            redirect(readers_of(op.outputs[0]), tensor)
        _keras.wait_instead(op, tensor.op)


def _sum(inputs: Sequence[tf.Tensor], names: Sequence[str]) -> tf.Tensor:
    """In the order of AddN; TensorFlow's optimizer would make one AddN again of those of the full size.

    Args:
      inputs: What is added up.
      names: Of the tensors that AddN adds up, by which TensorFlow's optimizer sorts them.
    """
    options = tf.config.optimizer.get_experimental_options()
    if options.get("arithmetic_optimization", True) and not options.get("disable_meta_optimizer", False):
        of_nodes = [name.removesuffix(":0") for name in names]
        inputs = [inputs[index] for index in sorted(range(len(inputs)), key=of_nodes.__getitem__)]
    total, *others = inputs
    for other in others[:-1]:
        total = native.ops().comptrain_fence([tf.raw_ops.AddV2(x=total, y=other)])[0]
    return tf.raw_ops.AddV2(x=total, y=others[-1])
