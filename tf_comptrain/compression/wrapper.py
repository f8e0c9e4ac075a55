"""The layer wrapper, for models built by hand, and what it shares with `Recompute`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from absl import logging
from tensorflow import keras

from tf_comptrain import _keras, codecs
from tf_comptrain.codecs import Codec, ErrorBound
from tf_comptrain.compression.instrument import Instrument
from tf_comptrain.rules import Context, FromInput, Rule, find_rule
from tf_comptrain.rules.linear import LINEAR_LAYERS, InputAndMask, MaskOfReLU, is_relu
from tf_comptrain.storage import Engine, codec_obstacle

_PLAIN = "What Compress and Recompute wrappers hold, of layer %r and others, stays as it is: %s."
_FIXED_RATE = (
    "Under XLA, where streams have static sizes, Compress and Recompute wrappers, of layer %r and others, take a fixed "
    "number of bits a value: codec %r does not encode them, and they take more memory than with jit_compile=False."
)


class _OneInput(FromInput):
    """Any layer of one tensor."""

    def call(self, context: Context, x: tf.Tensor, **kwargs: Any) -> Any:
        if not tf.is_tensor(x) or any(tf.is_tensor(v) for v in tf.nest.flatten(kwargs)):
            raise ValueError(
                f"tf_comptrain.Compress holds the one input tensor of a layer it has no rule for; layer "
                f"{context.layer.name!r} ({type(context.layer).__name__}) was called with more than one."
            )
        return super().call(context, x, **kwargs)


def _rule(layer: keras.layers.Layer) -> Rule:
    """A rule of the user's, or bits where they are enough, or else the input as a stream."""
    registered = find_rule(layer)
    if registered is not None and (not registered.substitutes or registered.needs_bits):
        return registered
    if is_relu(layer):
        return MaskOfReLU()
    return InputAndMask() if isinstance(layer, LINEAR_LAYERS) else _OneInput()


class Wrapper(keras.layers.Wrapper):
    """A layer that computes what another one does, with an error bound among its arguments."""

    def __init__(self, layer: keras.layers.Layer, **kwargs: Any):
        super().__init__(layer, **kwargs)
        self.supports_masking = True

    def compute_mask(self, inputs: Any, mask: Any = None) -> None:
        """None: the layer has said it of what it returns."""

    def build(self, input_shape: Any = None) -> None:
        if type(self.layer).build is not keras.layers.Layer.build:  # else it makes its weights when called
            super().build(input_shape)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return self.layer.compute_output_shape(input_shape)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        # Keras 3. The call makes the weights of a layer without a `build`, and says what a layer without a
        # compute_output_shape of its own returns.
        of_call = keras.Operation.compute_output_spec(self, *args, **kwargs)
        if type(self.layer).compute_output_shape is keras.layers.Layer.compute_output_shape:
            return of_call
        return super().compute_output_spec(*args, **kwargs)

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        config = dict(config)
        bound = config.get("error_bound")
        if isinstance(bound, (list, tuple)):
            config["error_bound"] = ErrorBound(*bound)
        layer = keras.layers.deserialize(config.pop("layer"), custom_objects=custom_objects)
        return cls(layer, **config)


_said: set[str] = set()  # codecs


def say_once(path: str, codec: Codec, engine: Engine) -> None:
    """Warns that wrappers' inputs do not take a codec's form; a wrapper is in no model that could speak for it.

    Args:
      path: The first layer's.
      codec: What was asked for. Each is spoken of once in a process.
      engine: What runs the step.
    """
    obstacle = codec_obstacle(codec, engine)
    sentence = None
    if obstacle is not None:
        sentence = _PLAIN % (path, obstacle)
    elif engine.xla and codec.is_entropy_coded:
        sentence = _FIXED_RATE % (path, codec.name)
    if sentence is not None and codec.name not in _said:
        _said.add(codec.name)
        logging.warning(sentence)


class _Alone(Instrument):
    """Of a wrapper."""

    def _say(self, engine: Engine, why_plain: str | None) -> None:
        if self.sites and why_plain in (None, codec_obstacle(self.codec, engine)):
            say_once(self.path, self.codec, engine)


@keras.utils.register_keras_serializable(package="tf_comptrain")
class Compress(Wrapper):
    """Holds the saved activations of one layer compressed while it trains.

    For models built by hand, saved with the wrapper in their file, in eager mode as well as in traced steps, and beside
    `compress_model`, which needs none. Convolutions and dense layers are held by their input, and a ReLU by a bit an
    element; dropout and max pooling by bits alone. Any other layer is held by its input and runs again in the backward
    pass, with the weights, statistics and random numbers of its first run.

    Args:
      layer: The layer to wrap.
      codec: Stream format: "plane", "rans", "zvc" or "auto".
      error_bound: None: relative to the running standard deviation, as in `compress_model`. A
        number: absolute. An `ErrorBound`: as it says.
      **kwargs: Of keras.layers.Layer.

    Call arguments:
      Those of the wrapped layer. Outside training it runs as plain Keras.

    Raises:
      TypeError: `layer` is not a layer.
      ValueError: `layer` is wrapped or instrumented already, or a bad codec or bound.

    Examples:
      >>> model = keras.Sequential([ct.Compress(keras.layers.Conv2D(64, 3, activation="relu"))])
    """

    handles_storage = True  # compress_model leaves such layers alone

    def __init__(
        self,
        layer: keras.layers.Layer,
        codec: str = "plane",
        error_bound: float | ErrorBound | None = None,
        **kwargs: Any,
    ):
        if not isinstance(layer, keras.layers.Layer):
            raise TypeError(f"`layer` must be a keras.layers.Layer. Received: {layer!r}.")
        if isinstance(layer, Compress):
            raise ValueError(f"`layer` is a Compress wrapper already. Received: {layer.name!r}.")
        if _keras.has_own_call(layer):
            raise ValueError(
                f"Layer {layer.name!r} is instrumented already: it was passed to Compress or to "
                "compress_model before. Wrap each layer once."
            )
        self._codec_name = codecs.get(codec).name
        self._bound = None if error_bound is None else ErrorBound.parse(error_bound)
        super().__init__(layer, **kwargs)
        rule = _rule(layer)
        if rule.obstacle(layer) is None:
            _keras.note_tapes()
            instrument = _Alone(layer, layer.name, rule, codecs.get(codec), self._bound)
            _keras.set_call(layer, instrument)
            _keras.save_along(self, instrument.variables)

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return self.layer(inputs, *args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config["codec"] = self._codec_name
        config["error_bound"] = None if self._bound is None else list(self._bound)
        return config
