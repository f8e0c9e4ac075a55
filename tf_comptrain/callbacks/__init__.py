"""Keras callbacks: bounds and batch size that steer themselves, and a memory log."""

from tf_comptrain.callbacks.adaptive_error_bound import AdaptiveErrorBound

__all__ = ["AdaptiveErrorBound"]
