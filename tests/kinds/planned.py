"""What XLA plans for a kind of training."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf
from kind import FromKeras, Kind
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.memory.analysis import MemoryAnalysis, analysis_of


def analysis(make: Callable[[], Kind], codec: str | None) -> MemoryAnalysis:
    """Of the kind's step, compressed with a codec or plain, compiled by XLA and not run."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    kind = make()
    batch = [tf.constant(part) for part in kind.batches[0]]
    if codec is not None:
        for model in kind.models:
            ct.compress_model(model, codec=codec)
    if isinstance(getattr(kind.step, "__self__", None), FromKeras):
        kind.models[0].jit_compile = True
        return ct.memory.memory_analysis(kind.models[0], *batch)

    def traced(*batch: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        loss, gradients = kind.step(*batch)
        return loss, [tf.convert_to_tensor(g) for g in gradients if g is not None]

    step = tf.function(traced, autograph=False, jit_compile=True)
    return analysis_of(step.experimental_get_compiler_ir(*batch)(stage="hlo_serialized"))
