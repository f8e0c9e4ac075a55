"""A plan for a step that XLA compiles: steps are compiled, and what its compiler plans for them is read; none runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.compression.choice import parts_of_model
from tf_comptrain.compression.instrumentation import compressed_models
from tf_comptrain.compression.model import compress_model, restore_model
from tf_comptrain.graph.held_or_rebuilt import NORMALIZATION
from tf_comptrain.graph.operations import about
from tf_comptrain.memory.analysis import MemoryAnalysis, analysis_of
from tf_comptrain.memory.batches import batch_of
from tf_comptrain.model_planning.crossing_tensors import BITS, CrossingTensor, held_tensors, storage_of
from tf_comptrain.model_planning.kept_search import CompiledStep, KeepableTensor, KeptSearch
from tf_comptrain.model_planning.model_plan import ModelPlan, fewest_parts, fingerprint
from tf_comptrain.model_planning.smaller_tiles import runs_by_smaller_tiles
from tf_comptrain.planner import PlanRow, Progress
from tf_comptrain.storage import KEEP

_TRIES = 5  # steps that are compiled, besides those that keep nothing and everything
_GROUP = 32  # values that have a scale of one byte
_MARGIN = 0.02  # of what is taken to be proportional to the batch


class LoweredStep(NamedTuple):
    """A step of a compressed model, as XLA's compiler takes it.

    Attributes:
      program: An HloModuleProto.
      graph: It was lowered from.
      held: The tensors that cross into its backward pass as a stream or bits, by name.
    """

    program: bytes
    graph: tf.Graph
    held: dict[str, CrossingTensor]


class CompiledEnds(NamedTuple):
    """What steps take that keep everything as it is, and nothing.

    Attributes:
      kept: Everything.
      held: Everything as a stream or bits; None where it was not compiled, for the other fits.
      batch: Samples.
      gradient_bytes: Of the gradients of all weights.
      has_wide_products: Whether smaller tiles would make another step.
    """

    kept: MemoryAnalysis
    held: MemoryAnalysis | None
    batch: int
    gradient_bytes: int
    has_wide_products: bool = False

    def parts(self, limit: int) -> tuple[int, int] | None:
        """Into how many microbatches the batch is to be divided for a limit, and the bytes of each; None: no number.

        Keras' optimizers hold the sum of gradients meanwhile, and the step that adds to it two copies. Temporary
        memory is taken to be proportional to the batch, but for these and a copy of the streams' states.
        """
        if self.held is None:
            return None
        states = max(self.held.argument_bytes - self.kept.argument_bytes, 0)
        temporary = max(self.held.temporary_bytes - self.gradient_bytes - states, 0)
        fixed = self.held.argument_bytes + self.held.output_bytes + 3 * self.gradient_bytes + states
        return fewest_parts(self.batch, fixed, temporary * (1 + _MARGIN), limit)


def plan_compiled(
    model: keras.Model,
    batch: int,
    limit: int,
    streams: dict[str, Any],
    progress: Callable[[Progress], None] | None = None,
    smaller_tiles: int = 1,
) -> tuple[ModelPlan, CompiledEnds]:
    """The plan for a limit; the model is left as it was.

    A KeyboardInterrupt after both ends are known ends the search with the best plan so far.

    Args:
      model: One that XLA compiles.
      batch: Samples of a step.
      limit: Bytes: temporary memory, arguments and outputs together.
      streams: How tensors are encoded, as arguments of `compress_model`.
      progress: Is told of each step that was compiled.
      smaller_tiles: As in `planner.Plan`.

    Returns:
      (The plan, what the steps at both ends take).

    Raises:
      ValueError: The model trains as plain Keras.
    """
    told = _Told(progress, limit)
    steps = _CompiledSteps(model, batch_of(model, batch, None), streams, smaller_tiles)
    kept = analysis_of(steps.trace(frozenset(steps.tensors)).program)
    told(kept)
    held = None
    if kept.total_bytes > limit:
        held = analysis_of(steps.held.program)
        told(held)
    gradients = _keras.bytes_of(*_keras.trainable_variables(model))
    ends = CompiledEnds(kept, held, batch, gradients, runs_by_smaller_tiles(steps.held.graph, xla=True))
    return _searched(steps, ends, limit, told), ends


def _searched(steps: _CompiledSteps, ends: CompiledEnds, limit: int, told: _Told) -> ModelPlan:
    everything = steps.as_step(frozenset(steps.tensors), ends.kept)
    if ends.held is None:
        return steps.as_plan(everything, ends, limit, [everything])
    search = KeptSearch(steps.candidates(), limit, [steps.as_step(frozenset(), ends.held), everything])

    def compile_step(kept: frozenset[str]) -> CompiledStep:
        analysis = analysis_of(steps.trace(kept).program)
        told(analysis)
        return steps.as_step(kept, analysis)

    with contextlib.suppress(KeyboardInterrupt):
        search.run(compile_step, _TRIES)
    found = search.best() or min(search.compiled, key=lambda step: step.total_bytes)
    return steps.as_plan(found, ends, limit, search.compiled)


class _Told:
    """Tells `progress` of each step that was compiled."""

    def __init__(self, progress: Callable[[Progress], None] | None, limit: int):
        self._progress, self._limit = progress, limit
        self._start = time.monotonic()
        self._best: int | None = None

    def __call__(self, analysis: MemoryAnalysis) -> None:
        if analysis.total_bytes <= self._limit:
            self._best = max(analysis.total_bytes, self._best or 0)
        if self._progress is not None:
            self._progress(Progress(time.monotonic() - self._start, None, self._best, 0.0))


class _CompiledSteps:
    """Steps of a model, compressed so that some of its tensors are kept; the model is left as it was.

    Args:
      model: A model.
      batch: (inputs, targets), tensors.
      streams: How tensors are encoded, as arguments of `compress_model`.
      smaller_tiles: As in `planner.Plan`.

    Attributes:
      held: The step that keeps none.
      tensors: Those that may be kept, by name, in the order in which the forward pass makes them.

    Raises:
      ValueError: The model trains as plain Keras.
    """

    def __init__(self, model: keras.Model, batch: tuple, streams: dict[str, Any], smaller_tiles: int):
        self._model, self._batch, self._streams = model, batch, streams
        self._smaller_tiles = smaller_tiles
        self._paths = [path for path, _ in parts_of_model(model)]
        self._held: dict[frozenset[str], dict[str, CrossingTensor]] = {}
        self.tensors: dict[str, CrossingTensor] = {}
        self.held = self.trace(frozenset())
        graph = self.held.graph
        order = {op.name: place for place, op in enumerate(graph.get_operations())}
        tensors = sorted(self.held.held.values(), key=lambda tensor: order[tensor.op])
        # What has no scope cannot be told from a layer in `storage=`.
        self.tensors = {tensor.name: tensor for tensor in tensors if "/" in tensor.op}
        self._stream_bytes = {tensor.name: _stream_bytes(tensor, graph) for tensor in tensors}
        self._normalizing = _normalizing_layers(model, graph)

    def storage(self, kept: Collection[str]) -> dict[str, str]:
        """That keeps these tensors; with them the normalizations that read them have their own code.

        With that XLA makes what follows a normalization again from the tensor, and holds no stream of it.
        """
        found = storage_of(self.tensors.values(), dict.fromkeys(kept, "keep"))
        if kept and len(kept) == len(self.tensors):
            return {**found, **dict.fromkeys(self._paths, KEEP)}
        readers = (op for name in kept for op in self.tensors[name].normalizations)
        return {**found, **{self._normalizing[op]: KEEP for op in readers if op in self._normalizing}}

    def trace(self, kept: frozenset[str]) -> LoweredStep:
        """The step that keeps these tensors."""
        graphs: list[tf.Graph] = []
        report = compress_model(self._model, storage=self.storage(kept), **self._streams)
        compressed_models[self._model].held.wishes.smaller_tiles = self._smaller_tiles
        try:
            with _keras.on_gradients(lambda backward: graphs.append(backward.graph)):
                _keras.build_for_step(self._model, *self._batch)
                program = _keras.lowered_train_step(self._model, *self._batch)
            if report.obstacle is not None:
                raise ValueError(
                    f"`model` trains as plain Keras: {report.obstacle}. There is nothing to plan."
                )
        finally:
            restore_model(self._model)
        held = {tensor.name: tensor for tensor in held_tensors(graphs[-1])}
        self._held[kept] = held
        return LoweredStep(program, graphs[-1], held)

    def as_step(self, kept: frozenset[str], analysis: MemoryAnalysis) -> CompiledStep:
        """What was traced and compiled, and which tensors are alive at its peak, by the names of its buffers.

        XLA computes what normalizations and activations make again from their inputs: then the buffer is that of an
        operation before them.
        """
        buffers = {buffer.op for buffer in analysis.buffers}
        streams = {name for name, tensor in self._held[kept].items() if tensor.encoder in buffers}
        own = {self.tensors[name].op for name in kept}
        values = {
            name
            for name in kept
            if self.tensors[name].op in buffers or buffers.intersection(self.tensors[name].makers) - own
        }
        return CompiledStep(kept, analysis.total_bytes, frozenset(streams & self.tensors.keys() | values))

    def candidates(self) -> list[KeepableTensor]:
        """The tensors, as the search takes them: streams are encoded once and decoded for all that is no mask."""
        return [
            KeepableTensor(
                name,
                tensor.bytes - self._stream_bytes[name],
                tensor.elements * (1.0 + sum(not reading.is_mask for reading in tensor.readings)),
            )
            for name, tensor in self.tensors.items()
        ]

    def as_plan(
        self, found: CompiledStep, ends: CompiledEnds, limit: int, compiled: Iterable[CompiledStep]
    ) -> ModelPlan:
        """A step that was compiled, as a plan."""
        rows = []
        for name, tensor in self.tensors.items():
            now = self._held[found.kept].get(name)
            if name in found.kept:
                choice, held_bytes = "keep", tensor.bytes
            elif now is None:
                choice, held_bytes = "rebuild", 0
            else:
                bits = tensor.elements // 8 if now.codec == BITS else self._stream_bytes[name]
                choice, held_bytes = f"stream:{now.codec}", bits
            rows.append(PlanRow(name, choice, tensor.bytes, held_bytes, None))
        return ModelPlan(
            model=self._model.name,
            limit_bytes=limit,
            rows=tuple(rows),
            batch=ends.batch,
            peak_bytes=found.total_bytes,
            step_s=None,
            bound_s=None,
            gap=None,
            feasible=found.total_bytes <= limit,
            smallest_bytes=min(step.total_bytes for step in compiled),
            plain_s=None,
            kept_peak_bytes=ends.kept.total_bytes,
            storage=self.storage(found.kept),
            fingerprint=fingerprint(self._model),
            smaller_tiles=self._smaller_tiles,
        )


def _normalizing_layers(model: keras.Model, graph: tf.Graph) -> dict[str, str]:
    """Paths of layers by the names of the normalizations that they make: what these read are the layers' weights."""
    layers = {}
    for path, layer in parts_of_model(model):
        if isinstance(layer, keras.layers.BatchNormalization):
            variables = [part for weight in layer.weights for part in _keras.parts_of(weight)]
            layers.update(dict.fromkeys(_keras.captured_variables(graph, variables), path))
    found = {}
    for op in graph.get_operations():
        if op.type == NORMALIZATION:
            sources = {_source(tensor) for tensor in op.inputs[1:3]}
            paths = {layers[name] for name in sources if name in layers}
            if len(paths) == 1:
                found[op.name] = paths.pop()
    return found


def _source(tensor: tf.Tensor) -> str:
    """Name of the operation that a weight comes from."""
    while tensor.op.type in ("ReadVariableOp", "Cast") or about(tensor.op.type).is_view:
        tensor = tensor.op.inputs[0]
    return tensor.op.name


def _stream_bytes(tensor: CrossingTensor, graph: tf.Graph) -> int:
    """Of a stream under XLA, whose values have a fixed number of bits; padding of odd shapes aside."""
    if tensor.codec == BITS:
        return tensor.elements // 8
    bits = graph.get_operation_by_name(tensor.encoder).get_attr("bits")
    return tensor.elements * bits // 8 + tensor.elements // _GROUP
