"""The wrapper that holds nothing of a block but its input, and runs the block again for its gradient."""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras, arguments, codecs, native
from tf_comptrain.codecs import ErrorBound
from tf_comptrain.compression.wrapper import Wrapper, say_once
from tf_comptrain.rules.differentiate import from_inputs, from_slices
from tf_comptrain.storage import (
    COMPRESS,
    KEEP,
    Engine,
    Site,
    codec_obstacle,
    engine_of_call,
    state_unknown_to_keras,
    worth_holding,
)


@keras.utils.register_keras_serializable(package="tf_comptrain")
class Recompute(Wrapper):
    """Rebuilds a block's activations in the backward pass instead of holding them.

    Works inside `fit` on the TensorFlow backend, with BatchNormalization (its statistics are updated
    once, by the forward pass) and Dropout (the second run draws the same mask), and beside `compress_model`, which
    leaves what the second run makes as it is.

    Args:
      layer: A layer or a model of one input tensor; with `slices`, of one output tensor too.
      storage: How the block's input is held: "keep" or "compress".
      codec: For "compress": the stream format.
      error_bound: For "compress": as in `compress_model`; None: 0.02 sigma, since the error travels
        through the whole block.
      slices: Runs the block on so many slices of the batch, one after the other, forward and backward:
        its tensors never exist for the whole batch. For the first blocks of a network, whose few
        tensors would be its peak. The block must treat each sample by itself.
      **kwargs: Of keras.layers.Layer.

    Call arguments:
      inputs: One tensor.

    Raises:
      TypeError: `layer` is not a layer.
      ValueError: A bad storage, codec, bound or number of slices; a layer that is wrapped already;
        slices of a block with BatchNormalization, whose statistics are those of the whole batch.

    Examples:
      >>> block = keras.Sequential([layers.Conv2D(64, 3), layers.BatchNormalization(), layers.ReLU()])
      >>> y = ct.Recompute(block)(x)

    Reference:
      Chen et al., Training deep nets with sublinear memory cost (2016).
    """

    def __init__(
        self,
        layer: keras.layers.Layer,
        storage: str = KEEP,
        codec: str = "plane",
        error_bound: float | ErrorBound | None = None,
        slices: int = 1,
        **kwargs: Any,
    ):
        if not isinstance(layer, keras.layers.Layer):
            raise TypeError(f"`layer` must be a keras.layers.Layer. Received: {layer!r}.")
        if isinstance(layer, Recompute):
            raise ValueError(f"`layer` is a Recompute wrapper already. Received: {layer.name!r}.")
        if storage not in (KEEP, COMPRESS):
            raise ValueError(f"`storage` must be 'keep' or 'compress'. Received: {storage!r}.")
        self._storage = storage
        self._slices = arguments.whole("slices", slices)
        self._codec_name = codecs.get(codec).name
        self._bound = None if error_bound is None else ErrorBound.parse(error_bound)
        native.ops()
        _keras.note_tapes()
        super().__init__(layer, **kwargs)
        self._check_slices()
        site = None
        if storage == COMPRESS:
            site = Site(f"{self.name}/input", codecs.get(codec), self._bound, "nonlinear")
        self.__dict__["_site"] = site  # past Keras' tracking: its variable is no weight

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        self._check_slices()
        engine = engine_of_call()
        if engine.why_plain or _keras.branch_inside_tape() or state_unknown_to_keras(self.layer):
            return self.layer(inputs)
        if not tf.is_tensor(inputs):
            raise ValueError(
                f"tf_comptrain.Recompute takes one tensor; {self.name!r} was called on {type(inputs).__name__}."
            )

        block, mask = weakref.ref(self.layer), _keras.mask_of(inputs)
        masks: list[Any] = []  # of what each run returns

        def run(x: tf.Tensor) -> Any:
            layer: Any = block()
            if mask is not None:
                _keras.set_mask(x, mask)
            with _keras.plain_scope():  # both runs compute alike
                y = layer(x)
            masks.append([_keras.mask_of(part) for part in tf.nest.flatten(y)])
            return y

        site = self._site_of(inputs, engine)
        if self._slices == 1:
            y = from_inputs(run, [inputs], [site], self.layer)
            for part, its in zip(tf.nest.flatten(y), masks[0]):
                _keras.set_mask(part, its)
            return y
        if mask is not None:
            raise ValueError(
                f"`slices` must be 1 for a block whose input has a mask. Received: {self._slices}, and {self.name!r} "
                "was called on a masked tensor."
            )
        return from_slices(run, inputs, site, self.layer, self._slices)

    def _site_of(self, inputs: tf.Tensor, engine: Engine) -> Site | None:
        """Where the input is held; None: as it is."""
        site: Site | None = self.__dict__["_site"]
        if site is None or not worth_holding(inputs):
            return None
        say_once(self.layer.name, site.codec, engine)
        return None if codec_obstacle(site.codec, engine) else site

    def _check_slices(self) -> None:
        """At the call again, since a layer may make its inner ones only then."""
        if self._slices == 1:
            return
        for part in (self.layer, *_keras.sublayers(self.layer)):
            if isinstance(part, keras.layers.BatchNormalization) and part.trainable:
                raise ValueError(
                    f"`slices` must be 1 for a block with trainable BatchNormalization ({part.name!r}): its "
                    f"statistics are those of the whole batch. Received: {self._slices}."
                )

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        bound = None if self._bound is None else list(self._bound)
        own = {"storage": self._storage, "codec": self._codec_name, "error_bound": bound}
        return {**config, **own, "slices": self._slices}
