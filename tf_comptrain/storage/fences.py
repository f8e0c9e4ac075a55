"""Waiting for gradients, where no stream does it: input gradients for weight gradients, a second run for its gradient.

What a stream waits with is the gate of `Held.restore` (held.py). docs/design.md has all three fences.

TensorFlow's executor runs whatever has its inputs; what waits has to be in the graph as data.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_comptrain import native


def gated(
    kept: Sequence[tf.Tensor], dys: Sequence[tf.Tensor], xla: bool
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Tensors that are held as they are, once the first of dys is there; and dys, of which these must be used then.

    What is made of the tensors for the backward pass would exist from the forward pass on otherwise, and be to
    TensorFlow's optimizer what that has made.
    """
    if not xla:
        return [after(x, dys[:1]) for x in kept], list(dys)
    places = [i for i, x in enumerate(kept) if x.dtype.is_floating]
    if not places:
        return list(kept), list(dys)
    gate, *fenced = native.ops().comptrain_fence([dys[0], *(kept[i] for i in places)])
    late = dict(zip(places, fenced))
    return [late.get(i, x) for i, x in enumerate(kept)], [gate, *dys[1:]]


def after(dy: tf.Tensor, dws: Sequence[tf.Tensor | None]) -> tf.Tensor:
    """dy for the input gradient, once the weight gradients `dws` are computed.

    The restored input is freed then, before the input gradient is allocated. Without this the chain
    of input gradients runs ahead, and restored tensors pile up behind the weight gradients.
    """
    waits = [dw for dw in dws if isinstance(dw, tf.Tensor)]
    if not waits or tf.executing_eagerly():
        return dy
    with tf.control_dependencies(waits):
        return tf.identity(dy)


def after_weights(
    dys: Sequence[tf.Tensor], dws: Sequence[tf.Tensor | None], xla: bool
) -> tuple[list[tf.Tensor], list[tf.Tensor | None]]:
    """As `after` for each of dys; and the weight gradients, which must be used in place of `dws`.

    XLA knows no control dependencies: there all tensors among them pass through one op.
    """
    if not xla:
        return [after(dy, dws) for dy in dys], list(dws)
    places = [i for i, dw in enumerate(dws) if isinstance(dw, tf.Tensor)]
    if not places:
        return list(dys), list(dws)
    fenced = native.ops().comptrain_fence([*dys, *(dws[i] for i in places)])
    first, waited = fenced[: len(dys)], dict(zip(places, fenced[len(dys) :]))
    return first, [waited.get(i, dw) for i, dw in enumerate(dws)]
