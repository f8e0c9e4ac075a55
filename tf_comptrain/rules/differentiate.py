"""Gradients from held tensors: the custom_gradient cores that rules and wrappers are made of."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras, native
from tf_comptrain.rules.second_run import FirstRun
from tf_comptrain.storage import Site, after, after_weights, gated, hold

Function = Callable[[tf.Tensor], tf.Tensor]


@contextlib.contextmanager
def _losses_refused(layer: Any) -> Iterator[None]:
    """Around the first run: eagerly the tape records nothing of it, so that a loss it adds would have no gradient."""
    before = _keras.losses_of_calls(layer) if tf.executing_eagerly() else 0
    yield
    if tf.executing_eagerly() and _keras.losses_of_calls(layer) > before:
        raise ValueError(
            "In eager mode a layer in tf_comptrain.Compress or Recompute, or with a rule, must not add a loss in its "
            f"call. Received layer {layer.name!r}, which does (add_loss, activity_regularizer): put the step under "
            "tf.function, leave run_eagerly out of model.compile, or leave the layer as it is."
        )


def from_inputs(
    fn: Callable[..., tf.Tensor],
    inputs: Sequence[tf.Tensor],
    sites: Sequence[Site | None],
    layer: keras.layers.Layer,
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

    Returns:
      fn(*inputs).
    """
    first, xla = FirstRun(layer), _keras.under_xla()

    @_keras.custom_gradient
    def apply(*inputs_and_values: Any) -> Any:
        inputs, values = inputs_and_values[: len(sites)], inputs_and_values[len(sites) :]
        with _keras.quiet_tape():
            held = [hold(x, site, xla) if site else (x, None) for x, site in zip(inputs, sites)]
            y = fn(*(through for through, _ in held))
            # Eagerly, what the gradient function names stays alive: not the inputs that are held.
            held = [(None, stream) if stream else (through, None) for through, stream in held]

        def gradient(*dys: tf.Tensor, variables: Any = None) -> Any:
            variables = list(variables or ())
            dys_then = _after_reading(values, dys, xla)
            kept, late = gated([x for x, stream in held if stream is None], dys_then, xla)
            gate, as_it_is = late[0], iter(kept)
            restored = [next(as_it_is) if stream is None else stream.restore(gate) for _, stream in held]
            tape = tf.GradientTape(persistent=True, watch_accessed_variables=False)
            sources = [*values, *variables]
            with tape, first.again(values, gate):
                tape.watch([*restored, *sources])
                y_hat = tf.nest.flatten(fn(*restored))
            dws = tape.gradient(y_hat, sources, output_gradients=late)
            for site in filter(None, sites):
                _collect(site, restored[0], late[0], dws)
            waiting, dws = after_weights(late, dws, xla)
            dxs = tape.gradient(y_hat, restored, output_gradients=waiting)
            grads = [*dxs, *dws[: len(values)]]
            return (grads, dws[len(values) :]) if variables else grads

        return y, gradient

    with _losses_refused(layer):
        return apply(*inputs, *first.values)


def _after_reading(values: Sequence[tf.Tensor], dys: Sequence[tf.Tensor], xla: bool) -> Sequence[tf.Tensor]:
    """dys once the weights' values are read, so that an update, which is made of dys, comes after that.

    TensorFlow's optimizer drops the edge of control from a read to the update: there is a way by the IdentityN of
    tf.custom_gradient, which it then takes apart.
    """
    if xla or not values or tf.executing_eagerly():
        return dys
    return native.ops().comptrain_fence([*dys, *values])[: len(dys)]


def _collect(site: Site, x: tf.Tensor, dy: tf.Tensor, dws: Sequence[tf.Tensor]) -> None:
    """Writes what the error-bound law reads of the gradient of a site's weight, where that is asked for."""
    kernels = [dw for dw in dws if dw is not None and len(dw.shape) > 1]
    if site.statistics is None or len(kernels) != 1:
        return
    before, stats = tf.convert_to_tensor(site.statistics), native.ops().comptrain_gradient_stats
    of_dy = stats(tf.reshape(dy, (-1, 1)), site.collecting, before[:3])
    of_dw = stats(kernels[0], site.collecting, before[3:6])
    site.statistics.assign(tf.concat([of_dy, of_dw, [tf.cast(tf.size(x), tf.float32)]], 0))


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
    first, xla = FirstRun(layer), _keras.under_xla()

    @_keras.custom_gradient
    def apply(x: tf.Tensor, *values: Any) -> Any:
        runs: list[FirstRun] = []
        parts: list[tf.Tensor] = []
        with _keras.quiet_tape():
            through, held = hold(x, site, xla) if site else (x, None)
            for part in _split(through, slices):
                runs.append(FirstRun(layer))
                parts.append(fn(after(part, parts[-1:])))
            y = tf.concat(parts, axis=0)[: tf.shape(x)[0]]
            kept = None if held else through

        def gradient(dy: tf.Tensor, variables: Any = None) -> Any:
            variables = list(variables or ())
            (dy,) = _after_reading(values, [dy], xla)
            x_hat = kept if held is None else held.restore(gate=dy)
            sources = [*values, *variables]
            dxs, dws, done = [], [None] * len(sources), [dy]
            dy_parts = _split_gradient(dy, slices)
            for part, dy_part, run in zip(_split(x_hat, slices), dy_parts, runs):
                part = after(part, done)
                tape = tf.GradientTape(watch_accessed_variables=False)
                with tape:
                    tape.watch([part, *sources])
                    with run.again(values, dy, slice_of=first):
                        y_hat = fn(part)
                dx, *more = tape.gradient(y_hat, [part, *sources], output_gradients=dy_part)
                dws = [_add(dw, added) for dw, added in zip(dws, more)]
                dxs.append(dx)
                done = [dw for dw in dws if dw is not None] or [dx]
            dx = tf.concat(dxs, axis=0)[: tf.shape(dy)[0]]
            grads = [dx, *dws[: len(values)]]
            return (grads, dws[len(values) :]) if variables else grads

        return y, gradient

    with _losses_refused(layer):
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


def _add(a: Any, b: Any) -> Any:
    return (
        b if a is None else a if b is None else tf.add_n([tf.convert_to_tensor(a), tf.convert_to_tensor(b)])
    )


def from_mask(fn: Function, x: tf.Tensor) -> tf.Tensor:
    """y = fn(x) for a ReLU: one exact bit per element is held."""

    @_keras.custom_gradient
    def apply(x: tf.Tensor) -> Any:
        with _keras.quiet_tape():
            through, bits = native.ops().comptrain_bitmask(x)
            y = fn(through)
        return y, lambda dy: native.ops().comptrain_bitmask_grad(bits, dy)

    return apply(x)
