"""Gradients from held tensors: the custom_gradient cores that the layer rules are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras, native
from tf_comptrain.storage import Held, Site, Slot, after, after_weights, attach, derive, fenced, hold

Function = Callable[[tf.Tensor], tf.Tensor]


def from_inputs(
    fn: Callable[..., tf.Tensor],
    inputs: Sequence[tf.Tensor],
    sites: Sequence[Site | None],
    layer: keras.layers.Layer,
    recompute: bool = False,
) -> tf.Tensor:
    """y = fn(*inputs), with the gradient computed by fn itself on the restored inputs.

    In a graph the forward part of that second fn is dead code where the gradient does not use it
    (convolution, matmul) and is pruned, so no gradient is written by hand. The second fn reads the layer's
    variables as the first one found them, draws the same random numbers and updates nothing.

    Args:
      fn: A differentiable function of the inputs, of one result or a list; may read the layer's variables.
      inputs: Tensors that fn takes.
      sites: Where each is held; None: kept as it is.
      layer: Whose dtype policy fn runs under.
      recompute: fn is a block, whose inner layers hold in the second run what they need.

    Returns:
      fn(*inputs).
    """
    first = _keras.FirstRun(layer)

    @_keras.custom_gradient
    def apply(*inputs_and_values):
        inputs, values = inputs_and_values[: len(sites)], inputs_and_values[len(sites) :]
        with _keras.quiet_tape():
            held = [hold(x, site) if site else (fenced(x), None) for x, site in zip(inputs, sites)]
            y = fn(*(through for through, _ in held))
            # Eagerly, what the gradient function names stays alive: not the inputs that are held.
            held = [(None, stream) if stream else (through, None) for through, stream in held]

        def gradient(*dys, variables=None):
            variables = list(variables or ())
            restored = [kept if stream is None else stream.restore(gate=dys[0]) for kept, stream in held]
            tape = tf.GradientTape(persistent=True, watch_accessed_variables=False)
            sources = [*values, *variables]
            with tape, first.again(values, dys[0], block=recompute):
                tape.watch([*restored, *sources])
                y_hat = tf.nest.flatten(fn(*restored))
            dws = tape.gradient(y_hat, sources, output_gradients=list(dys))
            for site in filter(None, sites):
                _collect(site, dys[0], dws)
            waiting, dws = after_weights(dys, dws)
            dxs = tape.gradient(y_hat, restored, output_gradients=waiting)
            grads = [*dxs, *dws[: len(values)]]
            return (grads, dws[len(values) :]) if variables else grads

        return y, gradient

    return apply(*inputs, *first.values)


def from_slices(
    fn: Function, x: tf.Tensor, site: Site | None, layer: keras.layers.Layer, slices: int
) -> tf.Tensor:
    """y = fn(x), where fn is run on one slice of the batch after the other, forward and backward.

    What fn makes on its way then never exists for the whole batch. Each slice's second run draws the
    random numbers of its first.

    Args:
      fn: Treats each sample by itself.
      x: [batch, ...].
      site: Where x is held; None: kept as it is.
      layer: As in `from_inputs`.
      slices: How many, of equal size or one sample apart.

    Returns:
      fn(x).
    """
    first = _keras.FirstRun(layer)

    @_keras.custom_gradient
    def apply(x, *values):
        runs: list[_keras.FirstRun] = []
        parts: list[tf.Tensor] = []
        with _keras.quiet_tape():
            through, held = hold(x, site) if site else (fenced(x), None)
            for part in _split(through, slices):
                runs.append(_keras.FirstRun(layer))
                parts.append(fn(after(part, parts[-1:])))
            y = tf.concat(parts, axis=0)[: tf.shape(x)[0]]
            kept = None if held else through

        def gradient(dy, variables=None):
            variables = list(variables or ())
            x_hat = kept if held is None else held.restore(gate=dy)
            sources = [*values, *variables]
            dxs, dws, done = [], [None] * len(sources), [dy]
            dy_parts = _split_gradient(dy, slices)
            for part, dy_part, run in zip(_split(x_hat, slices), dy_parts, runs):
                part = after(part, done)
                tape = tf.GradientTape(watch_accessed_variables=False)
                with tape, run.again(values, dy, slice_of=first):
                    tape.watch([part, *sources])
                    y_hat = fn(part)
                dx, *more = tape.gradient(y_hat, [part, *sources], output_gradients=dy_part)
                dws = [_add(dw, added) for dw, added in zip(dws, more)]
                dxs.append(dx)
                done = [dw for dw in dws if dw is not None] or [dx]
            dx = tf.concat(dxs, axis=0)[: tf.shape(dy)[0]]
            grads = [dx, *dws[: len(values)]]
            return (grads, dws[len(values) :]) if variables else grads

        return y, gradient

    return apply(x, *first.values)


def _split(x: tf.Tensor, slices: int) -> list[tf.Tensor]:
    """Slices of a batch; one of fewer samples than slices repeats its last: convolutions refuse empty ones."""
    count = tf.shape(x)[0]
    starts_and_sizes = [
        (tf.minimum(start, count - 1), stop - start) for start, stop in _bounds(count, slices)
    ]
    return [x[start : start + size] for start, size in starts_and_sizes]


def _split_gradient(dy: tf.Tensor, slices: int) -> list[tf.Tensor]:
    """The same of a gradient, which is zero for repeated samples."""
    count = tf.shape(dy)[0]
    repeated = tf.maximum(slices - count, 0)
    dy = tf.pad(dy, [[0, repeated]] + [[0, 0]] * (dy.shape.rank - 1))
    return [dy[start:stop] for start, stop in _bounds(count, slices)]


def _bounds(count: tf.Tensor, slices: int) -> list[tuple[tf.Tensor, tf.Tensor]]:
    count = tf.maximum(count, slices)
    return [(count * k // slices, count * (k + 1) // slices) for k in range(slices)]


def _add(a, b):
    return (
        b if a is None else a if b is None else tf.add_n([tf.convert_to_tensor(a), tf.convert_to_tensor(b)])
    )


def from_input(fn: Function, x: tf.Tensor, site: Site, layer: keras.layers.Layer) -> tf.Tensor:
    """`from_inputs` of one tensor."""
    return from_inputs(fn, [x], [site], layer)


def _collect(site: Site, dy: tf.Tensor, dws: list) -> None:
    if site.statistics is not None:
        kernels = [dw for dw in dws if isinstance(dw, tf.Tensor) and dw.shape.rank and dw.shape.rank > 1]
        site.statistics.collect(dy, kernels[0] if kernels else None)


def from_derivative(
    fn: Function, gradient: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], x: tf.Tensor, site: Site
) -> tf.Tensor:
    """y = fn(x) for an elementwise fn: dx = gradient(dy, x)."""

    @_keras.custom_gradient
    def apply(x):
        with _keras.quiet_tape():
            through, held = hold(x, site)
            y = fn(through)
        return y, lambda dy: gradient(dy, held.restore(gate=dy))

    return apply(x)


def from_output(
    fn: Function, derivative: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], x: tf.Tensor, site: Site
) -> tf.Tensor:
    """y = fn(x), where the gradient is a function of y: dx = derivative(dy, y).

    The stream of y also serves the next layer, if that holds its input.
    """
    slot = Slot()

    @_keras.custom_gradient
    def apply(x):
        with _keras.quiet_tape():
            y = fn(x)
            attach(y, slot)
            through, held = hold(y, site)

        def gradient(dy):
            return derivative(dy, held.restore(gate=dy))

        return through, gradient

    y = apply(fenced(x))
    attach(y, slot)
    return y


def from_replay(fn: Function, x: tf.Tensor, layer: keras.layers.Layer) -> tf.Tensor:
    """y = fn(x) for an fn that is a x + b with random a and b: nothing is held.

    The gradient is that of fn at zero, with the random numbers it drew.
    """
    first = _keras.FirstRun(layer)

    @_keras.custom_gradient
    def apply(x):
        with _keras.quiet_tape():
            y = fn(x)

        def gradient(dy):
            zeros = tf.zeros_like(dy)
            tape = tf.GradientTape(watch_accessed_variables=False)
            with tape, first.again(first.values, dy):
                tape.watch(zeros)
                y_hat = fn(zeros)
            return tape.gradient(y_hat, zeros, output_gradients=dy)

        return y, gradient

    return apply(fenced(x))


def from_choice(
    fn: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    condition: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    a: tf.Tensor,
    b: tf.Tensor,
) -> tf.Tensor:
    """y = fn(a, b), elementwise with broadcasting, for an fn that takes a where condition(a, b), else b.

    One exact bit per element of y is held.
    """

    @_keras.custom_gradient
    def apply(a, b):
        ops = native.ops()
        shapes = [(tf.shape(x), x.shape) for x in (a, b)]
        with _keras.quiet_tape():
            y = fn(a, b)
            taken = tf.broadcast_to(condition(a, b), tf.shape(y))
            _, bits = ops.comptrain_bitmask(tf.cast(taken, y.dtype))

        def gradient(dy):
            da = ops.comptrain_bitmask_grad(bits, dy, on=1.0, off=0.0)
            db = ops.comptrain_bitmask_grad(bits, dy, on=0.0, off=1.0)
            return tuple(_summed_to(d, *shape) for d, shape in zip((da, db), shapes))

        return y, gradient

    return apply(fenced(a), fenced(b))


def from_sign(fn: Function, x: tf.Tensor) -> tf.Tensor:
    """y = fn(x) for the absolute value: dy with the sign of x, 0 where x is. Two exact bits per element are held."""

    @_keras.custom_gradient
    def apply(x):
        ops = native.ops()
        with _keras.quiet_tape():
            through, positive = ops.comptrain_bitmask(x)
            _, negative = ops.comptrain_bitmask(-through)
            y = fn(through)

        def gradient(dy):
            up = ops.comptrain_bitmask_grad(positive, dy, on=1.0, off=0.0)
            return up + ops.comptrain_bitmask_grad(negative, dy, on=-1.0, off=0.0)

        return y, gradient

    return apply(fenced(x))


def _summed_to(dy: tf.Tensor, shape: tf.Tensor, static_shape: tf.TensorShape) -> tf.Tensor:
    """The gradient of a tensor of that shape which was broadcast to dy's."""
    axes, _ = tf.raw_ops.BroadcastGradientArgs(s0=shape, s1=tf.shape(dy))
    dx = tf.reshape(tf.reduce_sum(dy, axes), shape)
    dx.set_shape(static_shape)
    return dx


def from_mask(
    fn: Function,
    x: tf.Tensor,
    lower: float = 0.0,
    upper: float = float("inf"),
    off: float = 0.0,
) -> tf.Tensor:
    """y = fn(x) for an elementwise fn of slope 1 where lower < x < upper and slope `off` elsewhere.

    One exact bit per element is held. For plain ReLU, where a consumer holds y as a stream that
    carries its zero mask, that stream serves and the bits are dropped at once.
    """
    is_relu = lower == 0.0 and upper == float("inf") and off == 0.0
    slot = Slot(wants_mask=is_relu)
    whole = x  # as its producer made it, with what is known of it

    @_keras.custom_gradient
    def apply(x):
        ops = native.ops()
        with _keras.quiet_tape():
            through, bits = ops.comptrain_bitmask(x, lower=lower, upper=upper)
            y = fn(through)
            # The exact bits keep exact zeros in a rebuilt ReLU output.
            exact = partial(ops.comptrain_bitmask_grad, bits) if is_relu else fn
            slot.rebuilt = derive(whole, exact)

        def gradient(dy):
            stream: Held | None = slot.mask()
            if stream is not None:
                return stream.mask_gradient(dy)
            return ops.comptrain_bitmask_grad(bits, dy, on=1.0, off=off)

        return y, gradient

    y = apply(fenced(x))
    attach(y, slot)
    return y
