"""Which tensors are held, and which are made again: the default rule; and what an error of the held ones does."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

from tf_comptrain.graph.errors import Errors, Made
from tf_comptrain.graph.held.streams_of_step import StreamsOfStep
from tf_comptrain.graph.held_or_rebuilt import Choice, choose
from tf_comptrain.graph.kernels import (
    NORMALIZATION_GRADIENT,
    KernelGradient,
    affine_behind,
    kernel_gradients,
    stored_behind,
)
from tf_comptrain.graph.operations import NORM
from tf_comptrain.graph.passes.needs import Needs
from tf_comptrain.graph.passes.step import TracedStep

# A need beside those of `operations`: of an operation that takes no incoming gradient, as those of a second run of a
# forward part.
AGAIN = "again"


class HeldSet(NamedTuple):
    """What is held, before it is said how.

    Attributes:
      choice: The cheapest set of tensors.
      kernels: By reference of a held tensor: the gradients of weights that read it, and not something made of it.
      errors: What an error of a held tensor does.
    """

    choice: Choice
    kernels: Mapping[Any, tuple[KernelGradient, ...]]
    errors: Errors

    def ends(self, reference: Any) -> bool:
        """Whether an error of a held tensor ends in the gradients of weights, which answer for a normalization too."""
        kernels = self.kernels.get(reference, ())
        of_norm = any(
            kernel.op.type == NORMALIZATION_GRADIENT or kernel.affine is not None for kernel in kernels
        )
        return self.errors.travelling(reference) <= ({NORM} if of_norm else set())


def choose_held(step: TracedStep, needs: Needs, streams: StreamsOfStep) -> HeldSet:
    """Runs the default rule over what a step needs.

    Args:
      step: The step.
      needs: What its backward pass reads.
      streams: Says what a tensor will take, and what may be rebuilt.
    """
    choice = choose(
        needs.values,
        [factor.tensor for factor in needs.factors],
        streams.held_bytes,
        step.is_late,
        streams.renormalizes,
        whole=needs.whole,
        verbatim=streams.is_exact,
        signs=[reference.deref() for reference in needs.masked],
        tiled=step.again,
        exact=itertools.chain.from_iterable(step.exact.values()),
        keeps_masks=not step.backward.xla,
        reruns_wide=streams.is_lossless,
    )
    kernels = _kernels(step, choice)
    ends = {(kernel.op.name, kernel.stored) for found in kernels.values() for kernel in found}
    made = [Made(r.tensor, r.need, r.op.type, (r.op.name, r.number) in ends) for r in needs.values]
    again = [Made(tensor, AGAIN, op.type, False) for op, tensor in needs.factors]
    return HeldSet(choice, kernels, Errors(made + again, choice))


def _kernels(step: TracedStep, choice: Choice) -> dict[Any, tuple[KernelGradient, ...]]:
    found: dict[Any, tuple[KernelGradient, ...]] = {}
    # Of a gradient that another gradient is taken of, more is made than an update of weights.
    for kernel in [] if step.backward.recorded else kernel_gradients(step.backward, step.gradients):
        read = kernel.op.inputs[kernel.stored]
        affine = affine_behind(read, choice.saved)
        stored = stored_behind(read if affine is None else affine.inputs[0], choice.saved)
        if stored is not None:
            found[stored.ref()] = (*found.get(stored.ref(), ()), kernel._replace(affine=affine))
    return found
