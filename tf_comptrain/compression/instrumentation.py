"""What `compress_model` set up for a model: the handle that callbacks and measurements work with."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.codecs import Codec
from tf_comptrain.compression.instrument import Instrument
from tf_comptrain.compression.report import Report
from tf_comptrain.graph import HeldTensors
from tf_comptrain.storage import Engine, LawSite, Site, codec_obstacle, engine_of_model

_PLAIN = "Model %r trains as plain Keras: %s."
_FIXED_RATE = (
    "Under XLA, where streams have static sizes, tensors of model %r take a fixed number of bits each: codec %r does "
    "not encode them, and they take more memory than with jit_compile=False."
)
_NO_STREAM = (
    "Under XLA, where streams have static sizes, tensors of model %r that codec %r was to encode stay as they are. "
    "Masks, what is rebuilt and what is made by tiles take less than in plain Keras. With jit_compile=False the others "
    "are encoded too."
)


class Instrumentation:
    """Everything `compress_model` set up for a model: the handle that callbacks work with.

    Attributes:
      overridden: Layers whose `call` compress_model has overridden.
      report: What was done.
      wrapped: By layer, the rules of `Compress` wrappers in the model, and of layers that `register_rule` has one for.
      collecting: Scalar bool variable, True on steps that collect gradient statistics; None until
        `collect_statistics` is called.
      pace: [factor, pace, offset] of the learning-rate schedule; None until
        `pace_schedule` is called.
      bound_scale: Factor on all bounds: below 1 where training asked for tighter
        ones.
      held: What is held of the traced steps; None where nothing is.
      is_eager: Whether it was said that the model trains in eager mode.
    """

    def __init__(self, report: Report, wrapped: dict[keras.layers.Layer, Instrument]):
        self.report = report
        self.wrapped = wrapped
        self.collecting: tf.Variable | None = None
        self.pace: tf.Variable | None = None
        self.bound_scale = 1.0
        self.held: HeldTensors | None = None
        self.overridden: list[Any] = []
        self.is_eager = False
        self._said: set[str] = set()

    def note_engine(self, engine: Engine, why_plain: str | None, used: Sequence[Codec]) -> None:
        """Notes what runs the step that is traced, for the report; says once what differs from what was asked for.

        Args:
          engine: What runs it.
          why_plain: Why that is plain Keras; None where it is not.
          used: The codecs that are asked for.
        """
        self.report.note_engine("XLA" if engine.xla else "TensorFlow's executor", why_plain)
        if why_plain is not None:
            self._warn(_PLAIN % (self.report.model, why_plain))
            return
        for codec in used:
            if codec_obstacle(codec, engine) is not None:
                self._warn(_NO_STREAM % (self.report.model, codec.name))
            elif engine.xla and codec.is_entropy_coded:
                self._warn(_FIXED_RATE % (self.report.model, codec.name))

    def _warn(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            logging.warning(sentence)

    def own_sites(self) -> dict[str, Site]:
        """Places of wrappers and of layers with a rule, by "layer/role"."""
        return {site.name: site for instrument in self.wrapped.values() for site in instrument.sites.values()}

    def sites(self) -> dict[str, Site]:
        """Places where tensors are held compressed, by name: those of the traced steps, and `own_sites`."""
        return {**self.own_sites(), **(self.held.sites if self.held else {})}

    def codec_states(self) -> list:
        """The variables that codecs carry from step to step."""
        own = [site.state for site in self.own_sites().values()]
        return own if self.held is None else [self.held.table.variable, *own]

    def statistics(self) -> list:
        """The variables that collecting steps write."""
        table = None if self.held is None else self.held.statistics
        own = [site.statistics for site in self.own_sites().values() if site.statistics is not None]
        return own if table is None else [table.variable, *own]

    def law_sites(self) -> list[LawSite]:
        """Tensors that gradients of weights are made of, in the steps that were traced since `collect_statistics`."""
        own = [law for instrument in self.wrapped.values() for law in instrument.law_sites()]
        return own if self.held is None else [*self.held.law_sites(), *own]

    def variables(self) -> dict[str, Any]:
        """All that a traced step reads beside the model's own variables, by name."""
        others = (self.collecting, self.pace)
        found = [*self.codec_states(), *self.statistics(), *(v for v in others if v is not None)]
        return {f"comptrain_{k}": variable for k, variable in enumerate(found)}

    def reset_bounds(self) -> None:
        """Returns every site to the bound that `compress_model` gave it."""
        self.scale_bounds(1.0)
        for site in self.sites().values():
            site.reset_bound()

    def scale_bounds(self, scale: float) -> None:
        """Sets the factor on all bounds; relative ones are taken as they are now."""
        self.bound_scale = scale
        for site in self.own_sites().values():
            site.scale_bound(scale)
        if self.held is not None:
            self.held.scale_bounds(scale)

    def bytes_out_of_date(self) -> float:
        """What XLA's streams would take more or less if the step were traced with the bounds of now, as a share."""
        size = change = 0.0
        for site in self.sites().values():
            now = site.bits_if_traced_now()
            if now is not None and site.bits is not None:
                stream_bytes = site.read_state().stream_bytes
                size += stream_bytes
                change += stream_bytes * abs(now / site.bits - 1)
        return change / size if size else 0.0

    def bases(self) -> dict[str, float]:
        """The bounds that callbacks have set, without the factor, by name of the site."""
        return {name: site.base for name, site in self.sites().items() if site.base is not None}

    def adopt_bounds(self, scale: float, bases: Mapping[str, float] | None) -> None:
        """Takes over the factor and who has set the bounds, after states were restored (`Site.adopt_bound`)."""
        self.bound_scale = scale
        for site in self.own_sites().values():
            site.adopt_bound(scale, bases)
        if self.held is not None:
            self.held.adopt_bounds(scale, bases)

    def collect_statistics(self, model: keras.Model) -> None:
        """Builds the gradient statistics into the train step (once; drops the compiled functions)."""
        if self.collecting is not None:
            return
        with _keras.strategy_scope(model):
            self.collecting = tf.Variable(False, trainable=False, name="comptrain_collecting")
            if self.held is not None:
                self.held.collect(self.collecting)
            for instrument in self.wrapped.values():
                instrument.collect(self.collecting)
        _keras.around_runs(model, "collecting", functools.partial(_off_when_stopped, self.collecting))
        _keras.forget_traces(model)

    def pace_schedule(self, model: keras.Model) -> tf.Variable:
        """Lets the model's learning-rate schedule follow `pace`, as it was left or from 1, 1, 0 on."""
        if self.pace is None:
            with _keras.strategy_scope(model):
                self.pace = tf.Variable((1.0, 1.0, 0.0), trainable=False, name="comptrain_pace")
        if _keras.override_rate(model.optimizer, functools.partial(_paced, self.pace)):
            self.pace.assign((1.0, 1.0, 0.0))
            _keras.forget_traces(model)
        return self.pace


def _off_when_stopped(collecting: tf.Variable, train_function: Callable, iterator: Any) -> Any:
    """Runs steps; where they are interrupted, as by Ctrl-C, those of later trainings collect nothing."""
    try:
        return train_function(iterator)
    except BaseException:
        collecting.assign(False)
        raise


def _paced(pace: tf.Variable, schedule: Callable, steps: tf.Tensor) -> tf.Tensor:
    """factor * schedule(offset + pace * steps)."""
    factor, per_step, offset = tf.unstack(tf.convert_to_tensor(pace))
    rate = schedule(offset + per_step * tf.cast(steps, tf.float32))
    return tf.cast(factor, tf.float32) * tf.cast(rate, tf.float32)


# model -> Instrumentation: by compress_model, or of models that have wrappers alone.
compressed_models: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_wrapped: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def instrumentation(model: keras.Model) -> Instrumentation:
    """The handle of a model that `compress_model` instrumented, or that has `Compress` wrappers.

    Raises:
      ValueError: Neither.
    """
    found = compressed_models.get(model) or _wrapped.get(model)
    if found is None:
        wrapped = wrapped_instruments(model)
        if not wrapped:
            raise ValueError(
                f"Model {model.name!r} is not compressed: call tf_comptrain.compress_model(model) first."
            )
        found = Instrumentation(Report(model.name, (), obstacle_of(model)), wrapped)
        _wrapped[model] = found
    return found


def is_compressed(model: keras.Model) -> bool:
    """Whether `instrumentation` has something to return."""
    return model in compressed_models or model in _wrapped or bool(wrapped_instruments(model))


def wrapped_instruments(model: keras.Model) -> dict[keras.layers.Layer, Instrument]:
    calls = {layer: vars(layer).get("call") for layer in _keras.sublayers(model)}
    return {
        layer: call
        for layer, call in calls.items()
        if isinstance(call, Instrument) and not call.rule.substitutes
    }


def obstacle_of(model: keras.Model) -> str | None:
    """Why the whole model will train as plain Keras; None when it will not."""
    return engine_of_model(_keras.jit_compile(model)).why_plain
