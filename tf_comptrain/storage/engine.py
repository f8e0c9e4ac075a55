"""Why a call, a step or a model stays plain Keras; and what runs it: the executor, XLA, no graph, and which device."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.codecs import Codec
from tf_comptrain.storage import gpu_check

_COMPRESS_OP = "Comptrain>Compress"
_MEASURED = "measured as plain Keras"
_NOT_TRAINING = "not a training call"
_VECTORIZED = "in tf.vectorized_map, which has no rule for the ops of this library"
_TWO_TAPES = "under two tapes, which may take a gradient of a gradient: the traced step holds what crosses"


class Engine(NamedTuple):
    """What runs a call or a step, as found once for the whole of it.

    Attributes:
      xla: Whether XLA compiles the graph being built.
      eager: Whether there is no graph: operations run as they are called.
      device: "CPU" or "GPU": where TensorFlow places operations. None where that was not asked for.
      why_plain: Why the call or the step has to be left as plain Keras has it; None when it need not.
    """

    xla: bool
    eager: bool
    device: str | None
    why_plain: str | None = None

    @property
    def is_for_gpu(self) -> bool:
        """Whether a GPU runs the operations, or is to run what XLA makes here."""
        return self.device == "GPU" or os.environ.get("TF_COMPTRAIN_XLA_TARGET") == "GPU"

    @property
    def is_cpu_executor(self) -> bool:
        """Whether TensorFlow's executor, or eager mode, runs the operations on a CPU."""
        return not self.xla and self.device == "CPU"


def engine_of_call() -> Engine:
    """For a layer that is called now."""
    return _engine(_keras.under_xla(), _why_call_plain())


def engine_of_step(backward: _keras.BackwardPass) -> Engine:
    """For a step whose gradient a tape takes now."""
    return _engine(backward.xla, _why_step_plain())


def engine_of_model(xla: bool) -> Engine:
    """For the training of a model, from outside of it.

    Args:
      xla: Whether XLA will compile the train step.
    """
    return _engine(xla, None)


def keep_layouts(engine: Engine) -> None:
    """Has TensorFlow's executor leave tensors on a GPU channels last, as the codecs read them.

    Its optimizer turns float32 networks round for convolutions, and turns tensors back for every operation that it does
    not know: two more passes over each that is held. What the user has set of this option stays.
    """
    option = "layout_optimizer"
    if (
        engine.device == "GPU"
        and not engine.xla
        and option not in tf.config.optimizer.get_experimental_options()
    ):
        tf.config.optimizer.set_experimental_options({option: False})


def codec_obstacle(codec: Codec, engine: Engine) -> str | None:
    """Why an engine cannot run a codec; None where it can."""
    if not engine.xla or codec.under_xla:
        return None
    return f"XLA knows all sizes, and what codec {codec.name!r} writes has one that values decide"


def state_unknown_to_keras(layer: Any) -> str | None:
    """What a layer holds that a second run of it in the backward pass would change again. None: nothing. Keras 3.

    Keras' variables and seeds are as they were in the first run, and are not updated.
    """
    if not _keras.KERAS_3 or not isinstance(layer, keras.layers.Layer):
        return None
    kinds = (tf.Variable, tf.random.Generator)
    found = (
        value for value in _keras.attributes(layer, *_keras.sublayers(layer)) if isinstance(value, kinds)
    )
    first = next(found, None)
    return None if first is None else f"holds a {type(first).__name__}, of which Keras does not know"


def _engine(xla: bool, why_plain: str | None) -> Engine:
    if why_plain is not None:  # no need to start TensorFlow's devices
        return Engine(xla, tf.executing_eagerly(), None, why_plain)
    engine = Engine(xla, tf.executing_eagerly(), "GPU" if gpu_check.on_gpu() else "CPU")
    return engine._replace(why_plain=_obstacle(engine))


def _why_call_plain() -> str | None:
    if _keras.in_plain_scope():
        return _MEASURED
    if _keras.in_shape_inference():
        return "shape inference"
    if _keras.in_vectorized_map():
        return _VECTORIZED
    if not _in_step():
        return _NOT_TRAINING
    return _TWO_TAPES if len(_keras.graphs_of_tapes()) > 1 else None


def _in_step() -> bool:
    """Whether a gradient of the calls now will be wanted.

    Keras' word for it does not last: after a layer that was called with `training=False`, or whose
    default it is, it tells the next ones False too. Hence the scope around a train step.
    """
    told, scope = _keras.training(), bool(_keras.scope_says())
    return bool(told) or scope and (told is None or _keras.recording())


def _why_step_plain() -> str | None:
    if _keras.in_plain_scope():
        return _MEASURED
    if _keras.scope_says() is False:
        return _NOT_TRAINING
    return _VECTORIZED if _keras.in_vectorized_map() else None


def _obstacle(engine: Engine) -> str | None:
    """What about the device or the compilation keeps the codec ops from running; None if nothing."""
    if engine.is_cpu_executor:
        return None
    kernels = f"XLA_{engine.device}_JIT" if engine.xla else engine.device
    if kernels not in _keras.kernel_devices(_COMPRESS_OP):
        if engine.xla:
            return (
                "compiled with XLA (jit_compile=True), for which this op library has no lowering (none before "
                "TensorFlow 2.20): compile it with jit_compile=False"
            )
        return "on a GPU, for which this op library has no kernels (built without CUDA)"
    problem = gpu_check.problem(engine.xla) if engine.device == "GPU" else None
    return None if problem is None else f"on a GPU, where the kernels failed their check ({problem})"
