"""From the error of a stored activation to the error of a gradient, and back to a bound.

Pure NumPy: nothing here imports TensorFlow.

A stored activation x comes back as x_hat = x + e with |e| <= eb. The model of e, for an
error-bounded codec with uniform steps: independent of the data, uniform in [-eb, eb] on every
non-zero element (variance eb^2 / 3), exactly 0 where x is 0. A fraction R of the elements is
non-zero.

The law is local: it compares the gradient from x with the one from x_hat under the same incoming
gradient dy. Errors that dy itself carries from layers above are theirs.

Known weakness: a bound near or above the spread of x leaves few quantization levels, and then e
follows x instead of being independent of it; the measured error departs from the law.
`tf_comptrain.check_error_law` measures by how much.

References:
  Jin et al., COMET: A Novel Memory-Efficient Deep Learning Training Framework by Using
  Error-Bounded Lossy Compression, VLDB 2022.
  Evans and Aamodt, AC-GC: Lossy Activation Compression with Guaranteed Convergence, NeurIPS 2021.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray


def weight_gradient_sigma(
    bound: ArrayLike, nonzero_ratio: ArrayLike, mean_sum_sq: ArrayLike
) -> NDArray[np.float64]:
    """Standard deviation of the weight-gradient error of a convolution or dense layer.

    Each weight gradient is a sum of products x * dy over batch and positions, so that independent
    errors add up:

        sigma = eb * sqrt(R * S / 3),    S = mean over output channels k of sum dy_k^2.

    Scalars or arrays that broadcast against each other (one element per layer, say).

    Args:
      bound: eb, in units of x; >= 0.
      nonzero_ratio: R, non-zero elements / elements of the stored input, in [0, 1].
      mean_sum_sq: S, the sum running over batch and positions, in units of dy^2; >= 0.

    Returns:
      sigma, root mean square over the elements of the weight gradient, in units of x * dy.

    Examples:
      >>> float(weight_gradient_sigma(bound=0.3, nonzero_ratio=0.5, mean_sum_sq=6.0))
      0.3
    """
    return np.asarray(bound) * np.sqrt(np.asarray(nonzero_ratio) * np.asarray(mean_sum_sq) / 3.0)


def bound_for_sigma(
    target_sigma: ArrayLike, nonzero_ratio: ArrayLike, mean_sum_sq: ArrayLike
) -> NDArray[np.float64]:
    """The error bound at which the weight-gradient error has a given standard deviation.

        eb = sqrt(3) * sigma / sqrt(R * S)

    the inverse of `weight_gradient_sigma`.

    Args:
      target_sigma: sigma, in units of x * dy; >= 0.
      nonzero_ratio: R of the stored input, in [0, 1].
      mean_sum_sq: S, mean over output channels of sum dy_k^2; >= 0.

    Returns:
      eb, in units of x; infinite where R * S is 0: no error can reach the gradient there.
    """
    spread = np.sqrt(np.asarray(nonzero_ratio, np.float64) * np.asarray(mean_sum_sq, np.float64) / 3.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(spread > 0, np.asarray(target_sigma) / spread, np.inf)


class BatchNormError(NamedTuple):
    """Standard deviations of the errors in a batch normalization's gradients, per channel.

    Attributes:
      gamma: Of d gamma.
      direct: Of dx, from the error at the element itself, root mean square over the elements.
      shift: Of dx, from the error of mean(dy * x_norm), which all elements share through x_norm;
        root mean square over the elements.
    """

    gamma: NDArray[np.float64]
    direct: NDArray[np.float64]
    shift: NDArray[np.float64]


def batch_norm_sigma(
    bound: ArrayLike,
    sum_sq: ArrayLike,
    mean_dy_norm: ArrayLike,
    sigma: ArrayLike,
    gamma: ArrayLike,
    count: int,
    nonzero_ratio: float = 1.0,
) -> BatchNormError:
    """Gradient errors of a batch normalization whose input is stored, mean and sigma exact.

    With x_norm = (x - mean) / sigma, over the m elements of a channel,

        d gamma = sum dy x_norm
        dx      = (gamma / sigma) (dy - mean(dy) - x_norm mean(dy x_norm))

    and an error e in x makes e / sigma in x_norm, so that per channel

        std(d gamma) = eb sqrt(R sum dy^2 / 3) / sigma
        direct       = (gamma / sigma) |mean(dy x_norm)| eb sqrt(R / 3) / sigma
        shift        = (gamma / sigma) std(d gamma) / m          (x_norm has root mean square 1)

    Unlike a convolution's, this dx error travels on to the layers below.

    Args:
      bound: eb, in units of x: one, or [channels].
      sum_sq: [channels] sum dy^2 over batch and positions.
      mean_dy_norm: [channels] mean(dy x_norm).
      sigma: [channels] standard deviation of x in the batch, epsilon included.
      gamma: [channels] the layer's scale.
      count: m, elements per channel.
      nonzero_ratio: R of x.

    Returns:
      A `BatchNormError` of arrays [channels].
    """
    sigma = np.asarray(sigma, np.float64)
    slope = np.abs(np.asarray(gamma)) / sigma
    error = np.asarray(bound, np.float64) * np.sqrt(nonzero_ratio / 3.0) / sigma
    d_gamma = error * np.sqrt(np.asarray(sum_sq, np.float64))
    return BatchNormError(d_gamma, slope * np.abs(mean_dy_norm) * error, slope * d_gamma / count)


def momentum_target(mean_abs_momentum: float, tolerance: float = 0.01) -> float:
    """COMET's target: sigma = tolerance * mean |M|, with M the accumulated gradient.

        M_t = g_t + mu M_(t-1)

    Optimizers keep it scaled: SGD's slot is -learning_rate * M, Adam's first moment is
    (1 - beta_1) * M. Both have to be brought to M, the scale in which one step's gradient error
    adds to it.

    Args:
      mean_abs_momentum: Mean |M| over the weights of the layer, in units of the gradient.
      tolerance: Error / momentum.
    """
    return tolerance * mean_abs_momentum


def shared_tolerance(
    elements: ArrayLike, tolerance: float, largest: ArrayLike = np.inf
) -> NDArray[np.float64]:
    """How large each gradient's relative error should be for the fewest bytes, at a given size of all together.

    A stream of n non-zero values at the error bound eb takes about n (c - log2 eb) bits, and the relative error e
    of the gradient that is made of it is proportional to eb. The bits of all streams are fewest, with the mean of
    e^2 over the L gradients at tolerance^2, where

        e_i^2 = lambda n_i,    lambda = tolerance^2 L / sum n:

    the last bit of a large tensor buys as little accuracy as that of a small one. What a gradient may
    not spend, since its bound has a limit, the others do.

    Args:
      elements: [L] n, non-zero values of the tensor behind each gradient; > 0.
      tolerance: Root mean square of the relative errors, > 0.
      largest: [L] or one: the largest that each may have.

    Returns:
      [L] e, error / gradient of each.
    """
    elements = np.asarray(elements, np.float64)
    largest = np.broadcast_to(np.asarray(largest, np.float64), elements.shape)
    found = np.zeros_like(elements)
    free = np.ones(elements.shape, bool)
    budget = tolerance**2 * elements.size
    while free.any():
        found[free] = np.sqrt(max(budget, 0.0) * elements[free] / elements[free].sum())
        over = free & (found > largest)
        if not over.any():
            break
        found[over] = largest[over]
        budget -= float(np.square(largest[over]).sum())
        free &= ~over
    return found


def smoothed(previous: float, new: float, smoothing: float) -> float:
    """The weighted geometric mean previous^smoothing * new^(1 - smoothing): bounds live on a log scale.

    Args:
      previous: Bound so far; 0 where there is none yet.
      new: Bound of the latest statistics, > 0.
      smoothing: Weight of the past, in [0, 1).
    """
    if previous <= 0:
        return new
    return float(np.exp(smoothing * np.log(previous) + (1.0 - smoothing) * np.log(new)))
