"""A `tf.function` that a traced step calls: as part of the step's own graph.

Private: `autograph_util`, `ag_ctx`, `record` (TensorFlow 2.21, 2.15).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.eager import record
from tensorflow.python.eager.polymorphic_function import autograph_util

from tf_comptrain._keras.graphs import under_xla


def inline_functions(is_wanted: Callable[[], bool]) -> None:
    """Lets a `tf.function` that a tape records write into the graph that calls it, once for the process.

    As a function of its own it would hand all that its gradient reads to the step as results, out of reach.
    TensorFlow inlines it too, when it runs the step.

    `is_wanted`: called each time; False leaves the function as it is.

    Private: `Function._jit_compile`, `Function._autograph`, `Function._experimental_autograph_options`
      (TensorFlow 2.21, 2.15).
    """
    kind = type(tf.function(lambda: None))
    original = kind.__call__
    if hasattr(original, "is_inlined"):
        return

    @functools.wraps(original)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        if tf.executing_eagerly() or not record.could_possibly_record() or not is_wanted():
            return original(self, *args, **options)
        is_compiled_apart = self._jit_compile and not under_xla()
        if type(self) is not kind or is_compiled_apart or self.input_signature is not None:
            return original(self, *args, **options)
        body, status = self.python_function, ag_ctx.Status.DISABLED
        if self._autograph:
            body = autograph_util.py_func_from_autograph(body, self._experimental_autograph_options)
            status = ag_ctx.Status.ENABLED
        args, options = tf.nest.map_structure(_as_argument, (args, options))
        with ag_ctx.ControlStatusCtx(status=status, options=self._experimental_autograph_options):
            return tf.nest.map_structure(_as_result, body(*args, **options))

    inlining: Any = tf.autograph.experimental.do_not_convert(call)
    inlining.is_inlined = True
    kind.__call__ = inlining


def _as_argument(value: Any) -> Any:
    """What the body of a `tf.function` is called with: no tensor of the caller's, with its mask and shape."""
    if isinstance(value, np.ndarray):
        return tf.convert_to_tensor(value)
    return tf.identity(value) if isinstance(value, tf.Tensor) else value


def _as_result(value: Any) -> Any:
    """What a `tf.function` returns."""
    is_composite = isinstance(value, (tf.TensorArray, tf.__internal__.CompositeTensor))
    if value is None or is_composite and not isinstance(value, tf.Variable):
        return value
    return tf.identity(tf.convert_to_tensor(value))
