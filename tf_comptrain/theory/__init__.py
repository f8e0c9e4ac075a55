"""The error-bound law: the error of a stored activation, what it makes of a gradient, and bounds that follow.

Pure NumPy, but for `check`, which holds the law against the gradients of a model.
"""

from tf_comptrain.theory.law import (
    BatchNormError,
    batch_norm_sigma,
    bound_for_sigma,
    momentum_target,
    shared_tolerance,
    smoothed,
    weight_gradient_sigma,
)

__all__ = [
    "BatchNormError",
    "batch_norm_sigma",
    "bound_for_sigma",
    "momentum_target",
    "shared_tolerance",
    "smoothed",
    "weight_gradient_sigma",
]
