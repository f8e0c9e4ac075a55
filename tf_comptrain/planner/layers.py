"""A model as a chain of layers, for plans over several devices: what each takes, holds and sends on."""

from __future__ import annotations

from typing import NamedTuple

from tf_comptrain import arguments
from tf_comptrain.planner import _fields
from tf_comptrain.planner.stages import BATCH, SPLITS
from tf_comptrain.planner.task_graph import (
    HoldingOption,
    OffloadOption,
    RebuildOption,
    StreamOption,
    check_numbers,
)


class Saved(NamedTuple):
    """A tensor that a layer holds from its forward to its backward pass.

    Attributes:
      name: Unique in the model.
      bytes: Of its plain values, for the whole batch.
      options: Ways to hold it besides keeping it, for the whole batch. The sources of a `RebuildOption` are tensors of
        the same layer; `restored_bytes` and `direct` have no effect.
      reads: How many operations of the backward pass read it: each decodes or rebuilds it anew.
    """

    name: str
    bytes: int
    options: tuple[HoldingOption, ...] = ()
    reads: int = 1


class Layer(NamedTuple):
    """What stays on one stage: a layer, or several that rebuild each other's tensors.

    Seconds and bytes are those of the whole batch on one device; a part of the batch has its part of them.

    Attributes:
      name: Unique.
      forward_s, backward_s: Seconds, launches apart.
      forward_launch_s, backward_launch_s: Seconds that each pass takes more, however small the part of the batch.
      weight_bytes: Weights, of which gradients take as much again.
      output_bytes: Of what it makes for the layers behind it.
      skip_bytes: Of what earlier layers made and layers behind this one read, first or again.
      entry_bytes: Of what earlier layers made and the backward pass of this or a later one reads: what a stage that
        begins here holds of each microbatch beside what its own layers save.
      workspace_bytes: Scratch memory while it runs, gradients of activations included.
      halo_bytes: Border rows that a neighbour needs where rows are split; for each pass.
      update_s: Seconds of the optimizer.
      splits: How several devices may divide it: of "batch", "channels" and "rows".
      saved: What it holds for its backward pass.
    """

    name: str
    forward_s: float
    backward_s: float
    forward_launch_s: float = 0.0
    backward_launch_s: float = 0.0
    weight_bytes: int = 0
    output_bytes: int = 0
    skip_bytes: int = 0
    entry_bytes: int = 0
    workspace_bytes: int = 0
    halo_bytes: int = 0
    update_s: float = 0.0
    splits: tuple[str, ...] = (BATCH,)
    saved: tuple[Saved, ...] = ()


class LayerChain(NamedTuple):
    """A model's training step, layer by layer.

    Attributes:
      name: Of the model.
      layers: In the order in which they run; stages are consecutive ones.
      batch: Samples of a step, over all devices.
      slots: Bytes of the optimizer's state for each byte of weights: 2 for Adam, 1 for momentum, 0 for plain SGD.
      input_bytes: Of the batch, which is on the first device of the first stage.
    """

    name: str
    layers: tuple[Layer, ...]
    batch: int
    slots: float = 0.0
    input_bytes: int = 0


def check_chain(chain: LayerChain) -> None:
    """Says what is wrong with a chain of layers.

    Raises:
      ValueError: A number is out of range, a name is not unique, or a tensor is rebuilt from one of another layer.
    """
    _fields.text(chain.name, "name")
    arguments.whole("batch", chain.batch)
    arguments.real("slots", chain.slots, least=0)
    arguments.whole("input_bytes", chain.input_bytes, least=0)
    if not chain.layers:
        raise ValueError("`layers` must have at least one layer. Received: none.")
    _fields.unique([layer.name for layer in chain.layers], "layers")
    _fields.unique([saved.name for layer in chain.layers for saved in layer.saved], "saved tensors")
    for layer in chain.layers:
        _check_layer(layer)


def _check_layer(layer: Layer) -> None:
    where = f"layer {layer.name!r}"
    for field in ("forward_s", "backward_s", "forward_launch_s", "backward_launch_s", "update_s"):
        arguments.real(f"{field} of {where}", getattr(layer, field), least=0)
    for field in (
        "weight_bytes",
        "output_bytes",
        "skip_bytes",
        "entry_bytes",
        "workspace_bytes",
        "halo_bytes",
    ):
        arguments.whole(f"{field} of {where}", getattr(layer, field), least=0)
    unknown = [split for split in layer.splits if split not in SPLITS]
    if unknown:
        raise ValueError(f"`splits of {where}` must be of {', '.join(SPLITS)}. Received: {unknown[0]!r}.")
    names = {saved.name for saved in layer.saved}
    for saved in layer.saved:
        of = f"tensor {saved.name!r}"
        arguments.whole(f"bytes of {of}", saved.bytes, least=0)
        arguments.whole(f"reads of {of}", saved.reads)
        for option in saved.options:
            _check_option(option, of, names - {saved.name})


def _check_option(option: HoldingOption, of: str, others: set[str]) -> None:
    if not isinstance(option, (StreamOption, RebuildOption, OffloadOption)):
        raise ValueError(f"`options of {of}` must be Stream, Rebuild or Offload. Received: {option!r}.")
    check_numbers(option, f"{option.label!r} of {of}")
    outside = [name for name in getattr(option, "sources", ()) if name not in others]
    if outside:
        raise ValueError(
            f"`sources of {option.label!r} of {of}` must be other tensors of the same layer, so that a stage has "
            f"both. Received: {outside[0]!r}."
        )
