"""`plan` and `compress_model`: a memory limit for a model, met."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tensorflow import keras

from tf_comptrain import _keras, arguments
from tf_comptrain.codecs import Codec, ErrorBound
from tf_comptrain.compression import model as compression
from tf_comptrain.compression.choice import StorageChoice
from tf_comptrain.compression.first_step import FirstStepCheck
from tf_comptrain.compression.instrumentation import compressed_models
from tf_comptrain.compression.report import Report
from tf_comptrain.memory import counters
from tf_comptrain.memory.trace import NothingRecordedError
from tf_comptrain.model_planning import reasons, trials
from tf_comptrain.model_planning.compiled_plan import CompiledEnds, plan_compiled
from tf_comptrain.model_planning.devices import plan_over_devices
from tf_comptrain.model_planning.microbatches import obstacle_to_microbatches, plan_in_microbatches
from tf_comptrain.model_planning.model_device_plan import ModelDevicePlan
from tf_comptrain.model_planning.model_plan import ModelPlan, too_small
from tf_comptrain.model_planning.offload_of_plan import offload_of_plan
from tf_comptrain.model_planning.peak_check import PeakCheck
from tf_comptrain.model_planning.smaller_tiles import SMALLER_TILES
from tf_comptrain.placement.accumulation import set_microbatches
from tf_comptrain.planner import Hardware, Progress, hardware_from_json
from tf_comptrain.planner.hardware import check_hardware
from tf_comptrain.storage import Offload, PolicyChoice


def plan(
    model: keras.Model,
    batch_size: int,
    memory: int | str | None = None,
    hardware: Hardware | str | Path | None = None,
    seed: int = 0,
    budget_s: float = 10.0,
    *,
    devices: int = 1,
    codec: str | Codec = "plane",
    error_bound: float | ErrorBound | None = None,
    policy: PolicyChoice = None,
    microbatches: bool | None = None,
    offload: bool | Offload = True,
    progress: Callable[[Progress], None] | None = None,
) -> ModelPlan | ModelDevicePlan:
    """How a model's training step fits into a memory limit in the least time; the model is left as it was.

    Steps on random data are measured: one with everything held as a stream or bits, under the profiler, and one with
    everything kept. What lies in between is planned tensor by tensor (kept, a stream, a stream that waits outside of
    the device's memory, bits, rebuilt through a batch normalization), and the plan is tried by steps of its own and
    made again, up to four times, until its peak is within the limit and at least 96% of it where there is more to keep.
    A batch of more than 32 samples is scaled from 32, and tried whole. Plans of a described machine are not tried.

    Where no such plan fits, wide dense layers and attention run by tiles of a quarter of their usual size: less is
    alive at once, and more is made again. Where no plan of the whole batch fits, it is computed in up to 16
    microbatches, one after the other, whose gradients are added up for one update. On the executor a step of two of
    them confirms the peak.

    Of a model that XLA compiles no step runs. Its compiler plans the memory of a step exactly: steps are compiled, and
    the plan is one of them that is within the limit. It has no seconds: `step_s` is None.

    Args:
      model: A compiled model that is functional or a built Sequential, and not compressed. Without XLA it has no
        `train_step` of its own.
      batch_size: Samples a step.
      memory: The most that the device's allocator may give out during a step, weights and batch included: bytes, or
        text such as "8GiB". On a CPU TensorFlow counts all of the process, but no buffers below 256 kB. Under XLA: of
        temporary memory, arguments and outputs of the step. With `devices`, of each of them; None: what the machine
        has.
      hardware: A machine that is not here, as a `planner.Hardware` or the path of its JSON: for times. Its plan is not
        tried. Not with XLA.
      seed: Of the search. XLA's plans have no chance in them.
      budget_s: Seconds for each search; measurements come on top. Under XLA the number of compiled steps is limited,
        at most seven.
      devices: Of more than one the plan says in which stages, splits and microbatches they run the model: a
        `planner.DevicePlan`, which `apply` carries out by `tf_comptrain.distribute.place`. It is made of the
        model's graph and the machine's figures, and no step is run.
      codec: See `compress_model`.
      error_bound: See `compress_model`.
      policy: See `compress_model`.
      microbatches: Whether a batch may be computed in microbatches. None: where that has the whole batch's
        gradient, so not with batch normalization, which takes its statistics from each microbatch.
      offload: Whether streams may wait outside of the device's memory: in a file, or beside a GPU in the host's memory.
        An `Offload`: where; its codec is `codec`. Not under XLA, not where `codec` is lossless, and unasked not in a
        file system in memory.
      progress: Is told of each better plan and bound; under XLA of each step that was compiled.

    Returns:
      A `ModelPlan`; with `feasible` False, and the smallest plan there is, where none fits. A KeyboardInterrupt during
      the search ends it with the best plan so far.

    Raises:
      TypeError: `model` is no keras.Model, or `offload` none of the above.
      ValueError: An argument is out of range; the model is compressed, not compiled, or one that cannot be planned; the
        machine's description lacks a field or has one that is negative.

    Examples:
      >>> plan = ct.plan(model, batch_size=64, memory="8GiB")
      >>> print(plan)
      >>> plan.apply(model)
    """
    _check_choice("microbatches", microbatches)
    streams = _streams(codec, error_bound, policy)
    count = arguments.whole("devices", devices)
    if count > 1:
        arguments.whole("batch_size", batch_size)
        _check_model(model)
        _check_no_xla(model)
        machine = _machine(hardware)
        return plan_over_devices(model, batch_size, memory, count, machine, budget_s, streams, progress)
    if memory is None:
        raise ValueError('`memory` is missing: a plan for one device is for a limit, such as "8GiB".')
    arguments.real("budget_s", budget_s, above=0)
    waiting = offload_of_plan(offload, codec)
    wanted = _Wanted(_machine(hardware), seed, budget_s, streams, waiting, microbatches, progress)
    return _planned(model, batch_size, memory, wanted)[0]


class _Wanted(NamedTuple):
    """What is asked of a plan beside its limit; as in `plan`."""

    machine: Hardware | None
    seed: int
    budget_s: float
    streams: dict[str, Any]
    offload: Offload | None
    microbatches: bool | None
    progress: Callable[[Progress], None] | None = None


def _streams(
    codec: str | Codec, error_bound: float | ErrorBound | None, policy: PolicyChoice
) -> dict[str, Any]:
    """How tensors are encoded, as arguments of `compress_model`."""
    if policy is not None and (error_bound is not None or codec != "plane"):
        raise ValueError(
            "`policy` says codecs and bounds itself: leave `codec` and `error_bound` out. "
            f"Received: codec={codec!r}, error_bound={error_bound!r}."
        )
    return {"codec": codec, "error_bound": error_bound, "policy": policy}


def _planned(
    model: keras.Model, batch_size: int, memory: int | str, wanted: _Wanted
) -> tuple[ModelPlan, trials.Prepared | CompiledEnds | None]:
    """The plan of the whole batch, or in microbatches where that does not fit; and what was measured of it, if any."""
    limit = arguments.size_in_bytes("memory", memory)
    batch = arguments.whole("batch_size", batch_size)
    _check_model(model)

    def plan_of(samples: int, room: int) -> tuple[ModelPlan, trials.Prepared | CompiledEnds | None]:
        found, prepared = _plan_of_step(model, samples, room, wanted)
        if found.feasible or prepared is None or not prepared.has_wide_products:
            return found, prepared
        smaller, its = _plan_of_step(model, samples, room, wanted, SMALLER_TILES)
        if smaller.smallest_bytes >= found.smallest_bytes:
            return found, prepared
        return smaller._replace(plain_s=found.plain_s, kept_peak_bytes=found.kept_peak_bytes), its

    with _keras.targets_forgotten(model):  # of a random batch: the user's may be of some outputs alone
        found, prepared = plan_of(batch, limit)
        parts = None if found.feasible or prepared is None else prepared.parts(limit)
        if (
            parts is None
            or parts[1] > limit
            or wanted.machine is not None
            or obstacle_to_microbatches(model, wanted.microbatches)
        ):
            return found, prepared
        how = {**wanted.streams, "offload": wanted.offload}
        divide = plan_in_microbatches(model, found, parts[0], lambda *step: plan_of(*step)[0], how)
        return divide or found, prepared


def _plan_of_step(
    model: keras.Model, batch: int, limit: int, wanted: _Wanted, smaller_tiles: int = 1
) -> tuple[ModelPlan, trials.Prepared | CompiledEnds | None]:
    if _keras.jit_compile(model):
        if wanted.machine is not None:
            raise ValueError(
                "`hardware` must be left out for a model that XLA compiles: its plan is of the machine that is here. "
                f"Received: {model.name!r}; leave it out, or compile the model with jit_compile=False."
            )
        return plan_compiled(model, batch, limit, wanted.streams, wanted.progress, smaller_tiles)
    _check_train_step(model)
    counters.reserve(limit)
    report = compression.compress_model(model, **wanted.streams)
    try:
        if report.obstacle is not None:
            raise ValueError(f"`model` trains as plain Keras: {report.obstacle}. There is nothing to plan.")
        compressed_models[model].held.wishes.smaller_tiles = smaller_tiles
        try:
            prepared = trials.prepare(model, batch, wanted.machine, wanted.offload)
        except NothingRecordedError:  # TensorFlow's profile has no small buffers
            prepared = None
        if prepared is None or not prepared.graph.tensors:
            return trials.only_plan(model, batch, limit), None
        runs = trials.RUNS if wanted.machine is None else 0
        return trials.search(model, prepared, limit, wanted.seed, wanted.budget_s, runs, wanted.progress)
    finally:
        compression.restore_model(model)


def _machine(hardware: Hardware | str | Path | None) -> Hardware | None:
    if hardware is None:
        return None
    if not isinstance(hardware, Hardware):
        return hardware_from_json(Path(hardware))
    check_hardware(hardware)
    return hardware


def _check_model(model: keras.Model) -> None:
    if not isinstance(model, keras.Model):
        raise TypeError(f"`model` must be a keras.Model. Received: {model!r}.")
    if model in compressed_models:
        raise ValueError(
            f"Model {model.name!r} is compressed already: call tf_comptrain.restore_model(model) first."
        )
    _keras.require_compiled(model)
    graph = _keras.functional_of(model)
    if not (model.built and getattr(graph, "inputs", None)):
        raise ValueError(
            f"Model {model.name!r} must be built, and have a graph, so that its input shapes are known: call it, or "
            "model.build(...), or make it of keras.Input. A subclassed model cannot be planned."
        )


def _check_no_xla(model: keras.Model) -> None:
    if _keras.jit_compile(model):
        raise ValueError(
            f"Model {model.name!r} cannot be planned for several devices: XLA compiles its step. Compile it with "
            "jit_compile=False."
        )
    _check_train_step(model)


def _check_train_step(model: keras.Model) -> None:
    if _keras.has_own_train_step(model):
        raise ValueError(f"Model {model.name!r} cannot be planned: it has a `train_step` of its own.")


def compress_model(
    model: keras.Model,
    codec: str | Codec = "plane",
    error_bound: float | ErrorBound | None = None,
    storage: StorageChoice = None,
    memory: int | str | None = None,
    batch_size: int | None = None,
    policy: PolicyChoice = None,
    check: bool | None = None,
    microbatches: bool | None = None,
    offload: bool | Offload = True,
) -> Report:
    """Makes a model train with its saved activations held compressed, in place.

    Weights, names, configuration and files of the model stay as they are; inference, evaluation and
    export run plain Keras. Whatever crosses from the forward to the backward pass of a traced step is held as a
    stream or as bits, or rebuilt from what is; the report names every tensor, and why some are kept. In
    eager mode, where nothing is traced, the model trains as plain Keras.

    Args:
      model: Functional, Sequential, nested or subclassed; built or not, compiled or not.
      codec: Stream format: "plane" (fast), "rans" (small), "zvc" (lossless), "auto" (one of these
        for each tensor, by a sample of it), "plane+dither", "rans+dither" (unbiased), or an object of
        `tf_comptrain.codecs`.
      error_bound: None: relative to the standard deviation of each channel, 0.2 sigma for inputs
        of convolutions, 0.25 for those of normalizations, 0.1 for those of dense layers and products, 0.02 where a
        nonlinear function reads the tensor (see `ErrorBound` for the formula and its first step). A number: absolute,
        in units of the activations. An `ErrorBound`: as it says.
      storage: How the tensors that layers make and read are held. None: each in the cheapest way. A string:
        for all layers. A mapping from layer name, path or class to a string, or a function from layer (or operation
        of a functional graph) to string or None: for those, and for what is inside them; a mapping may also name
        operations of the traced step, or scopes of them ("decoder/block_1"), as the report does. What is said of the
        layer that makes a tensor comes before what is said of those that read it. Strings:
        "compress" (the default); "rebuild" (what a batch normalization makes may be rebuilt from the stream of its
        input, about a third less to hold; its error is then that stream's times gamma / sigma of the channel); "keep"
        (as plain Keras has it, bit-equal); "offload" (waits in a file or in the host's memory between the passes, as an
        `Offload` says);
        "fused" (kept, but computed by the operations that this package prefers, such as TensorFlow's fused batch
        normalization).
      memory: The most that the device's allocator may give out during a step, as `tf_comptrain.plan` takes
        it: bytes, or text such as "8GiB". The plan of least time is made and applied. The peak of the first
        50 steps of `fit` is held against the limit; where it is over, the next steps are planned tighter.
        Under XLA the plan is exact, and nothing is looked at. None: no limit.
      batch_size: Samples a step, with `memory`.
      policy: Codec and error bound of each class of tensors, or of single ones, in place of `codec` and `error_bound`:
        a `tf_comptrain.Policy`, or the path of its JSON, such as `tf_comptrain.best_fit` makes. With `memory` the
        plan chooses among its streams and what else there is. Layers with a rule of `register_rule` have their
        defaults.
      check: Whether `fit` compares gradients with plain Keras', every 1,000 steps, on at most 8 samples or a quarter
        of a batch. True: before the first step too, which takes some seconds. None: from the 1,000th on. False: never.
        Where a weight's is off by more than three times what the law of
        error bounds promises, a warning names it once, and bounds are halved until it is not. Nothing is looked at in
        loops and train steps of your own, and where the report says why.
      microbatches: With `memory`, whether a batch may be computed in microbatches; see `tf_comptrain.plan`.
      offload: With `memory`, whether and where streams may wait outside of the device's memory; see
        `tf_comptrain.plan`.

    Returns:
      What is held how, what was skipped and why, and predicted bytes; prints as a table, and fills itself when
      a step is traced.

    Raises:
      TypeError: An argument of the wrong type.
      ValueError: A bound that is not a positive normal number, an unknown codec, storage or layer
        name, a model that is compressed already, a limit that no plan keeps within (the message says the smallest),
        `memory` with `storage` or without `batch_size`, `policy` with `codec` or `error_bound`, a policy that is
        not valid, or see `plan`. Nothing has been changed then.
      LibraryError: The op library is missing or was built for another TensorFlow.

    Examples:
      >>> report = ct.compress_model(model)
      >>> model.fit(images, labels)

      >>> ct.restore_model(model)
      >>> print(ct.compress_model(model, memory="8GiB", batch_size=64))

    Reference:
      COMET (Jin et al., VLDB 2022); Gist (Jain et al., ISCA 2018) for the bit masks.
    """
    _check_choice("check", check)
    _check_choice("microbatches", microbatches)
    streams = _streams(codec, error_bound, policy)
    if memory is None:
        alone = (
            ("batch_size", batch_size, None),
            ("microbatches", microbatches, None),
            ("offload", offload, True),
        )
        for name, value, default in alone:
            if value is not default:
                raise ValueError(f"`{name}` goes with `memory`. Received: {name}={value!r} alone.")
        report = compression.compress_model(model, storage=storage, **streams)
    else:
        waiting = offload_of_plan(offload, codec)
        wanted = _Wanted(None, 0, 10.0, streams, waiting, microbatches)
        report = _planned_and_applied(model, memory, batch_size, storage, wanted)
    if check is not False and compressed_models[model].held is not None:
        FirstStepCheck(model, at_once=check is True).begin()
    return report


def _check_choice(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, bool):
        raise TypeError(f"`{name}` must be True, False or None. Received: {value!r}.")


def _planned_and_applied(
    model: keras.Model,
    memory: int | str,
    batch_size: int | None,
    storage: StorageChoice,
    wanted: _Wanted,
) -> Report:
    if storage is not None:
        raise ValueError(f"`storage` and `memory` exclude each other. Received: {storage!r} and {memory!r}.")
    if batch_size is None:
        raise ValueError("`batch_size` is missing: a plan for `memory` is for steps of so many samples.")
    found, prepared = _planned(model, batch_size, memory, wanted)
    if not found.feasible:
        obstacle = obstacle_to_microbatches(model, wanted.microbatches)
        parts = prepared and prepared.parts(found.limit_bytes)
        own = _keras.bytes_of(*_keras.step_variables(model))
        raise ValueError(too_small(found, parts, obstacle, max(counters.bytes_in_use() - own, 0)))
    report = found.apply(model, wanted.offload, **wanted.streams)
    if _keras.jit_compile(model):
        report.notes = functools.partial(reasons.lines_of_fixed, found)
    else:
        tried = prepared if isinstance(prepared, trials.Prepared) else None
        PeakCheck(model, found, tried, report).begin(model)
    return report


def restore_model(model: keras.Model) -> None:
    """Undoes `compress_model`; weights keep what they learned.

    Raises:
      ValueError: The model is not compressed.
    """
    compression.restore_model(model)
    set_microbatches(model, 1)
