"""Tensors that wait outside of the device's memory between the forward and the backward pass.

On a CPU in a file: the forward pass hands a stream over and goes on, and threads of the op library write it. Beside a
GPU in the host's memory: TensorFlow's copies between devices carry it. In the backward pass it comes back before its
reader. docs/offload.md has the whole way.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any, NamedTuple

import tensorflow as tf

from tf_comptrain import arguments, codecs, native
from tf_comptrain.codecs import Codec
from tf_comptrain.storage.engine import Engine
from tf_comptrain.storage.spill_folder import default_folder, warn_of_memory

OFFLOAD = "offload"
# What a smaller tensor would free is not worth its way.
LEAST_PLAIN_BYTES = 1 << 20
# A smaller stream stays in memory, where its handle has it.
_LEAST_BYTES = 1 << 16
_FILE, _HOST = _TIERS = ("file", "host")
_NO_FILE = 1 << 62  # bytes; no smaller stream goes to a file
# Bytes in flight where the user names none: a GPU runs far behind the host, which would wait for each copy.
_HOST_INFLIGHT = "256MB"
_TWO_LARGEST = 0  # to Comptrain>Spill


class Traffic(NamedTuple):
    """What was moved of the tensors of one site.

    Attributes:
      tensors: How many.
      plain_bytes: Of them as plain values.
      stream_bytes: Of what was handed over: their streams, or themselves without a codec.
      written_bytes: Into the file. What was asked back before its turn was not written.
      read_bytes: From the file.
      room_s: Seconds that the forward pass waited for bytes in flight.
      fetch_s: Seconds that the backward pass waited for what came back.
    """

    tensors: int
    plain_bytes: int
    stream_bytes: int
    written_bytes: int
    read_bytes: int
    room_s: float
    fetch_s: float


@dataclasses.dataclass(frozen=True)
class Offload:
    """Saved activations wait outside of the device's memory between the forward and the backward pass.

    Each tensor is encoded, moved while the forward pass goes on, and brought back ahead of its reader in the backward
    pass. Tensors of less than 1 MiB stay in memory as streams, and so do those of the last layers, which would be asked
    back before they are out. On TensorFlow's executor; under XLA, and where a tier does not fit the device, tensors
    stay streams, or as they are where the codec is lossless, and one warning says so.

    With a lossless codec every bit comes back, and layers run by their own code, as with "keep"; docs/offload.md says
    when training is bit-equal.

    Args:
      tier: Where they wait. "host": in the host's memory, beside a GPU. "file": on a CPU, in a file of this process,
        removed when that exits; what a killed process has left is removed by the next one that offloads to the same
        folder. None: the one that fits the device.
      codec: "zvc" (lossless, for what has zeros), None (as it is), or one with a bound: "plane", "rans", "auto" or
        any other of `tf_comptrain.codecs`.
      folder: Of the file, on a local disk; has to be there. None: one of this user's below the temporary folder,
        or below /var/tmp where that is in memory (tmpfs).
      inflight: Bytes that may be on their way, as a number or text ("256MB"); the forward pass waits beyond it. For a
        file bytes of streams, for the host's memory those of plain values. None: for a file as many as two of the
        largest tensors take, for the host's memory 256 MB.

    Raises:
      ValueError: An unknown tier or codec, `inflight` that is not a size, a folder that is not there or cannot be
        written to, or one for tier "host".

    Examples:
      >>> ct.compress_model(model, storage=ct.Offload(codec="plane", folder="scratch"))
      >>> ct.restore_model(model)
      >>> ct.compress_model(model, storage={"encoder": "offload"})

    Reference:
      cDMA (Rhu et al., HPCA 2018).
    """

    tier: str | None = None
    codec: str | Codec | None = "zvc"
    folder: str | os.PathLike | None = None
    inflight: int | str | None = None

    def __post_init__(self) -> None:
        if self.tier not in (None, *_TIERS):
            raise ValueError(f"`tier` must be None, {_FILE!r} or {_HOST!r}. Received: {self.tier!r}.")
        if self.tier == _HOST and self.folder is not None:
            raise ValueError(f"`folder` goes with tier {_FILE!r}. Received: {self.folder!r} with {_HOST!r}.")
        if self.inflight is not None:
            arguments.size_in_bytes("inflight", self.inflight)
        if isinstance(self.codec, str) and self.codec not in codecs.CODECS:
            known = ", ".join(map(repr, codecs.CODECS))
            raise ValueError(
                f"`codec` must be None, a Codec or one of {known}. Received: {self.codec!r}. There is no general "
                "compressor among them: zvc takes what zeros give, plane and rans what a bound gives."
            )
        if self.codec is not None:
            object.__setattr__(self, "codec", codecs.get(self.codec))
        if self.folder is not None:
            folder = os.path.abspath(self.folder)
            if not (os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)):
                raise ValueError(f"`folder` must be a folder that can be written to. Received: {folder!r}.")
            object.__setattr__(self, "folder", folder)

    @property
    def is_lossless(self) -> bool:
        """Whether every bit comes back."""
        return not isinstance(self.codec, Codec) or self.codec.is_lossless

    def traffic(self) -> dict[str, Traffic]:
        """What this process has moved to the folder and back, by name of the site, since it began.

        Returns:
          By site, in the order of their names; empty before the first step, and with the host's memory, where
          TensorFlow's profiler shows the copies.
        """
        folders, sites, moved, seconds = (t.numpy() for t in native.ops().comptrain_offload_traffic())
        ours = self.path().encode()
        return {
            site.decode(): Traffic(*map(int, counts), *map(float, waited))
            for folder, site, counts, waited in zip(folders, sites, moved, seconds)
            if folder == ours
        }

    def path(self) -> str:
        """The folder of the file; the default one is made where it is not there."""
        path = default_folder() if self.folder is None else str(self.folder)
        warn_of_memory(path)
        return path


def obstacle(offload: Offload, engine: Engine) -> str | None:
    """Why an engine cannot offload so; None where it can."""
    if engine.xla:
        return (
            "compiled with XLA (jit_compile=True), whose programs TensorFlow gives no memory but the device's; "
            "jit_compile=False offloads them"
        )
    on_gpu = engine.device == "GPU"
    if offload.tier not in (None, _HOST if on_gpu else _FILE):
        return (
            f"on a GPU, beside which tier={_HOST!r} works"
            if on_gpu
            else f"on a CPU, whose memory is the host's: tier={_FILE!r} works there"
        )
    return None


class Offloaded:
    """What waits outside of the device's memory.

    Args:
      offload: How.
      on_host: In the host's memory, beside a GPU; else in a file.
      site: Whom its traffic counts for.
      value: A stream, or a tensor as it is.
      x: The tensor that it stands for.

    Attributes:
      on_host: As above.
      value: As above.
      x: As above.
      handle: Stands for it.
      passed: Tensors that the forward pass reads behind it; in the host's memory they wait for nothing yet.
      fetches: Its fetch operations; when made, the one control input of each is what makes its reader's incoming
        gradient.
    """

    def __init__(self, offload: Offload, on_host: bool, site: str, value: tf.Tensor, x: tf.Tensor):
        self.on_host, self.value, self.x = on_host, value, x
        given = (_HOST_INFLIGHT if on_host else None) if offload.inflight is None else offload.inflight
        self.inflight = _TWO_LARGEST if given is None else arguments.size_in_bytes("inflight", given)
        self.passed: list[tf.Operation] = []
        self.fetches: list[tf.Operation] = []
        self._dtype = value.dtype
        self._device = _host_of(x.op.device) if on_host else None
        with tf.device(self._device):
            # An operation of the host reads it there: TensorFlow's copy to it runs beside the computation, and the
            # device's memory is free when that is done.
            self.handle = native.ops().comptrain_spill(
                value,
                tf.size(x, out_type=tf.int64) * x.dtype.size,
                folder="" if on_host else offload.path(),
                inflight_bytes=self.inflight,
                least_bytes=_NO_FILE if on_host else _LEAST_BYTES,
                site=site,
            )

    def after(self, tensor: tf.Tensor) -> tf.Tensor:
        """A tensor for the forward pass, once there is room in flight: it would run ahead of the disk."""
        with tf.control_dependencies([] if self.on_host else [self.handle.op]):
            through = tf.identity(tensor)
        self.passed.append(through.op)
        return through

    def fetch(self, gate: tf.Tensor) -> tf.Tensor:
        """It, once the gate is there."""
        with tf.device(self._device), tf.control_dependencies([gate.op]):
            value = native.ops().comptrain_fetch(self.handle, T=self._dtype)
        self.fetches.append(value.op)
        return value


def _host_of(device: str) -> str:
    """The processor beside a device."""
    return tf.DeviceSpec.from_string(device).replace(device_type="CPU", device_index=0).to_string()


class Raw:
    """A tensor that waits outside of the device's memory as it is.

    Attributes:
      storage: "offload".
      offloaded: Its bytes.
    """

    storage = OFFLOAD
    is_exact = True

    def __init__(self, offloaded: Offloaded):
        self.offloaded = offloaded

    def restore(self, gate: tf.Tensor) -> Any:
        """The tensor, once `gate` (the incoming gradient) is there."""
        x = self.offloaded.fetch(gate)
        x.set_shape(self.offloaded.x.shape)
        return x
