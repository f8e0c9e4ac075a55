"""What a step collects for the error-bound law, or checks of it, of the gradients of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_comptrain import _keras, native
from tf_comptrain.codecs import SUPPORTED_DTYPES
from tf_comptrain.graph.held.law_error import LawError, law_error
from tf_comptrain.graph.held.states import StateTable, TableInStep
from tf_comptrain.graph.kernels import KernelGradient, Use
from tf_comptrain.storage import STATISTICS, Held, LawSite, Site


class LawStatistics:
    """The statistics of a model's traced steps.

    Attributes:
      collecting: As `collect` was given it; None before.
      table: A row for each `LawSite`; None until `collect`.
      errors: What steps that are traced are to compute for a check; None where there is none.
      laws: By site: the gradients of weights that are made of its tensor.
    """

    def __init__(self) -> None:
        self.collecting: tf.Variable | None = None
        self.table: StateTable | None = None
        self.errors: list[LawError] | None = None
        self.laws: dict[str, list[LawSite]] = {}

    @property
    def are_asked_for(self) -> bool:
        """Whether steps collect or check what the error-bound law reads."""
        return self.table is not None or self.errors is not None

    def collect(self, enabled: tf.Variable) -> None:
        """From the next trace on, steps collect what the error-bound law needs wherever `enabled` is True."""
        self.collecting = enabled
        self.table = StateTable("comptrain_gradient_statistics", STATISTICS)

    def law_sites(self) -> list[LawSite]:
        """Tensors that gradients of weights are made of, in the steps that were traced since `collect`."""
        return [
            law if law.weight.trainable else law._replace(weight=None)
            for laws in self.laws.values()
            for law in laws
        ]


class StatisticsOfStep:
    """What one traced step adds to the statistics of its model.

    Args:
      of_model: Those.
      states: Of the step's sites.
      xla: Whether XLA compiles the step.
    """

    def __init__(self, of_model: LawStatistics, states: TableInStep, xla: bool):
        self._of_model = of_model
        self._table = None if of_model.table is None else TableInStep(of_model.table)
        self._states = states
        self._xla = xla
        self._laws: dict[str, list[LawSite]] = {}  # by site
        self._alone: dict[str, bool] = {}  # by site: whether nothing else reads it

    def collect(self, backward: _keras.BackwardPass, uses: Sequence[Use], weights: Mapping[int, Any]) -> None:
        """Adds the statistics of the gradients of weights that are made of held tensors.

        Args:
          backward: The pass, rewired.
          uses: What it makes of streams.
          weights: The model's variables by the ids of their handles.
        """
        if self._table is None and self._of_model.errors is None:
            return
        for stream, kernels, alone in uses:
            if not isinstance(stream, Held):
                continue
            laws = []
            for kernel in kernels:
                weight = weights.get(id(getattr(backward.sources[kernel.source], "handle", None)))
                if weight is None or _has_no_statistics(kernel):
                    continue
                name = f"{stream.site.name} -> {getattr(weight, 'path', weight.name)}"
                self._check(name, stream.site, kernel)
                laws += self._law(name, stream, weight, kernel)
            if (
                self._of_model.errors is None
            ):  # a step that is checked collects nothing: other steps' laws stay
                self._set_laws(stream.site.name, laws, alone and len(laws) == len(kernels))

    def write(self) -> None:
        """Assigns what is new."""
        if self._table is not None:
            self._table.write()

    def _set_laws(self, site: str, laws: list[LawSite], alone: bool) -> None:
        """Of all gradients of the step."""
        self._alone[site] = self._alone.get(site, True) and alone
        of_all = {law.name: law for law in (*self._laws.get(site, ()), *laws)}
        self._laws[site] = [law._replace(alone=self._alone[site]) for law in of_all.values()]
        self._of_model.laws[site] = self._laws[site]

    def _check(self, name: str, site: Site, kernel: KernelGradient) -> None:
        """Adds what the law is held against, where that is asked for."""
        if self._of_model.errors is not None:
            error = law_error(name, kernel, self._states.now(site.state.index), site.is_by_channel)
            self._of_model.errors += [] if error is None else [error]

    def _law(self, name: str, stream: Held, weight: Any, kernel: KernelGradient) -> list[LawSite]:
        """The law's place of a gradient, of which the step collects the statistics; nothing where it does not."""
        table = self._table
        if table is None or self._of_model.errors is not None or table.table.is_full_for(name):
            return []
        collecting, dw = self._of_model.collecting, kernel.gradient
        row, stats = table.table.row(name), native.ops().comptrain_gradient_stats
        reader = kernel.moved or kernel.op
        with tf.device(kernel.op.device):
            before = table.read(row.index)
            dy = self._scaled(kernel, stream.site)
            # As one channel, for `share` says how much of the sum over all an element of dw meets.
            of_dy = stats(tf.reshape(dy, (-1, 1)), collecting, before[:3])
            of_dw = stats(dw, collecting, before[3:6])
            elements = tf.reduce_prod(tf.cast(stream.shape, tf.float32), keepdims=True)
            table.set(row.index, tf.concat([of_dy, of_dw, elements], 0))
        if not self._xla:  # else dy would stay until somebody has time to look at it
            _keras.wait_for(reader, [of_dy.op])
        return [LawSite(name, stream.site, kernel.share, weight, row)]

    def _scaled(self, kernel: KernelGradient, site: Site) -> tf.Tensor:
        """dy as an error of the tensor meets it; in steps that do not collect nothing of it."""
        dy, growth = kernel.op.inputs[kernel.incoming], kernel.growth
        scale = kernel.scale if growth is None else growth
        if scale is None:
            return dy
        if (
            growth is None and site.is_by_channel
        ):  # the bound grows with the deviation that a channel is divided by
            scale = tf.math.rsqrt(tf.reduce_mean(tf.square(1 / scale)))
        factor = tf.cast(scale, dy.dtype)
        return tf.cond(self._of_model.collecting, lambda: dy * factor, lambda: dy[:0])


def _has_no_statistics(kernel: KernelGradient) -> bool:
    """Whether a gradient, or what it is made of, has a type that the statistics do not take."""
    types = {kernel.op.inputs[kernel.incoming].dtype, kernel.gradient.dtype}
    return not types <= set(SUPPORTED_DTYPES)
