"""What the operations of codecs take on this machine: measured once, and kept in the user's cache folder."""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from tf_comptrain import codecs, native
from tf_comptrain.codecs import State
from tf_comptrain.memory import device
from tf_comptrain.memory.measure import timed_call
from tf_comptrain.planner import CodecSpeed, Hardware, Link, hardware_from_json
from tf_comptrain.storage import default_folder
from tf_comptrain.version import __version__

_REPEATS = 5
_SHAPE = (8, 64, 64, 64)  # 8 MB
_SIDE = 1024
_BOUND = 0.1  # sigma
_CODECS = ("plane", "rans", "zvc")
_FILE_BYTES = 32 << 20
_FORMAT = "2"  # of what is measured; another one is measured anew


def cache_path() -> Path:
    """The file that holds this machine's costs: of its processor, its device, and the versions installed."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tf_comptrain"
    parts = (_FORMAT, _name(), str(_cores()), device(), tf.__version__, __version__)
    return folder / f"hardware-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}.json"


def calibrate(renew: bool = False) -> Hardware:
    """This machine as the planner takes it.

    Measured with arrays of 8 MB, the fastest of five runs each, in some seconds; from then on read from `cache_path`.

    Args:
      renew: Measure also where the file is there.

    Returns:
      A `planner.Hardware`. Its host link is that of the host's memory beside a GPU, and else of a file where offloaded
      tensors wait; its device link is that of memory.

    Raises:
      LibraryError: The op library is missing or was built for another TensorFlow.
    """
    path = cache_path()
    if not renew:
        try:
            return hardware_from_json(path)
        except (OSError, ValueError):  # none yet, or one that a process was killed while writing
            pass
    hardware = _measured()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(hardware.to_json())
        part.replace(path)
    except OSError:  # no folder to write to: measured again by the next process
        pass
    return hardware


def _measured() -> Hardware:
    native.ops()
    with tf.device(device()):
        x = tf.nn.relu(tf.random.stateless_normal(_SHAPE, seed=(1, 2)))
        square = tf.random.stateless_normal((_SIDE, _SIDE), seed=(3, 4))
        small = tf.zeros((2, 2))
        size = x.shape.num_elements() * 4
        launch_s = _fastest(tf.function(lambda: small + 1.0))
        add_s = max(_fastest(tf.function(lambda: x + 1.0)) - launch_s, 1e-9)
        product_s = max(_fastest(tf.function(lambda: square @ square)) - launch_s, 1e-9)
        speeds = {name: _codec(name, x, size, launch_s) for name in _CODECS}
        host_link = Link(0.0, size / _copy_s(x)) if "GPU" in device() else _file_link()
    bytes_per_s = 2 * size / add_s
    flops_per_s, link = 2 * _SIDE**3 / product_s, Link(0.0, bytes_per_s)
    return Hardware(_name(), 1, _memory_bytes(), flops_per_s, bytes_per_s, launch_s, speeds, host_link, link)


def share_of_copies() -> float:
    """Of the seconds of a copy to where tensors wait, what the computation loses: a file's copies keep a core busy."""
    return 0.0 if "GPU" in device() else 1.0 / _cores()


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _copy_s(x: tf.Tensor) -> float:
    """Of a tensor to the host's memory."""

    @tf.function
    def copied() -> tf.Tensor:
        with tf.device("CPU"):
            return tf.identity(x)

    return _fastest(copied)


def _file_link() -> Link:
    """Of a file in the folder where offloaded tensors wait: the mean of writing and reading."""
    data = bytearray(_FILE_BYTES)
    try:
        with tempfile.TemporaryFile(dir=default_folder(), buffering=0) as file:

            def there_and_back() -> None:
                file.seek(0)
                file.write(data)
                file.seek(0)
                file.readinto(data)

            return Link(0.0, 2 * _FILE_BYTES / _fastest(there_and_back))
    except (OSError, ValueError):  # nowhere to write to: nothing is offloaded
        return Link(0.0, 1.0)


def _codec(name: str, x: tf.Tensor, size: int, launch_s: float) -> CodecSpeed:
    codec = codecs.get(name)
    state = tf.constant(State(), tf.float32)

    @tf.function
    def encode() -> tf.Tensor:
        return codec.compress(x, state, _BOUND, mid_rise=True)[1]

    stream = encode()

    @tf.function
    def decode() -> tf.Tensor:
        return codec.decompress(stream, tf.shape(x), x.dtype, gate=x)

    encode_s, decode_s = (max(_fastest(run) - launch_s, 1e-9) for run in (encode, decode))
    return CodecSpeed(size / encode_s, size / decode_s, size / int(tf.size(stream)))


def _fastest(run: Callable[[], object]) -> float:
    return timed_call(run, _REPEATS, of=min)[1]


def _name() -> str:
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        return str(tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU"))
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 1 << 34


def costs_as_text(hardware: Hardware) -> str:
    """For readers."""
    lines = [
        hardware.name,
        f"memory    {hardware.memory_bytes / 1e9:.4g} GB in all",
        f"products  {hardware.flops_per_s / 1e9:.4g} GFLOP/s",
        f"elements  {hardware.bytes_per_s / 1e9:.4g} GB/s read and written",
        f"launch    {hardware.launch_s * 1e6:.3g} us",
    ]
    lines += [
        f"{name:8}  encodes {codec.encode_bytes_per_s / 1e9:.3g} GB/s, "
        f"decodes {codec.decode_bytes_per_s / 1e9:.3g} GB/s, {codec.ratio:.3g}x smaller"
        for name, codec in hardware.codecs.items()
    ]
    return "\n".join(lines)
