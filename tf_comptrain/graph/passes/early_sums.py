"""Sums of gradients over samples: of each addend by itself, before they are added to each other."""

from __future__ import annotations

import tensorflow as tf

from tf_comptrain import _keras
from tf_comptrain.graph.passes.step import TracedStep
from tf_comptrain.graph.replacements import redirect
from tf_comptrain.graph.tensors import plain_bytes, readers_of

_LEAST_BYTES = 1 << 16
_TIMES_SMALLER = 2  # that a sum is at least


def sum_early(step: TracedStep) -> None:
    """Swaps a sum over axes with the addition before it, where that has no other reader.

    The gradient of what several layers read, such as the relative positions of an attention, is added up over the
    layers and then over the samples. So the gradients of all those layers wait for the last one. The order of the
    additions changes, and with it the rounding.

    Args:
      step: The step, rewired.
    """
    returned = {id(tensor) for tensor in step.backward.gradients}
    for op in step.backward.operations():
        if op.type != "AddN" or len(op.inputs) < 2 or id(op.outputs[0]) in returned:
            continue
        readers = readers_of(op.outputs[0])
        if len(readers) != 1 or readers[0][0].type != "Sum" or readers[0][1] != 0:
            continue
        total = readers[0][0]
        whole, small = plain_bytes(op.outputs[0]), plain_bytes(total.outputs[0])
        is_free = id(total.outputs[0]) not in returned and not {op.name, total.name} & step.at_once
        if is_free and whole >= max(_LEAST_BYTES, _TIMES_SMALLER * small):
            _swap(op, total)


def _swap(addition: tf.Operation, total: tf.Operation) -> None:
    with tf.device(total.device):
        parts = [_keras.run_again(total, [part, total.inputs[1]], "early")[0] for part in addition.inputs]
        with tf.control_dependencies([*addition.control_inputs, *total.control_inputs]):
            added = tf.raw_ops.AddN(inputs=parts)
    redirect(readers_of(total.outputs[0]), added)
    for old in (addition, total):
        _keras.wait_instead(old, added.op)
