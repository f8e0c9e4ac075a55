"""What runs in a process of its own, with TensorFlow: `python workers.py '{"what": NAME, ...}'` prints the answer."""

from __future__ import annotations

import contextlib
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from machine import ANSWER, MIB, turn
from results import Result

BENCHMARKS = Path(__file__).resolve().parents[1]
# Of ResNet-50: the input of a normalization, the outputs of two ReLUs.
HELD = ("conv2_block2_2_conv", "conv2_block2_2_relu", "conv3_block2_out")
HUB_SIZES = {
    "Gemma": (1024, 32_000, 768, 12),
    "MiniLM": (512, 30_522, 384, 6),
}  # tokens, vocabulary, width, blocks
WARM_UP_STEPS = 3  # compile; rates may rise once
STEPS_A_ROUND = 5  # between two waits for the device, as steps follow one another in a training
# The share of a GPU that XLA plans with, unless told (xla_gpu_memory_limit_slop_factor is a percentage of it).
XLA_SHARE = 0.8


def about() -> Result:
    """Which TensorFlow there is, what it sees, and whether the op library has GPU kernels."""
    import tensorflow as tf

    from tf_comptrain import _keras, native

    gpus = [tf.config.experimental.get_device_details(g) for g in tf.config.list_physical_devices("GPU")]
    return {
        "tensorflow": tf.__version__,
        "gpus": [details.get("device_name", "GPU") for details in gpus],
        "library": native.problem(),
        "gpu_kernels": "GPU" in _keras.kernel_devices("Comptrain>Compress"),
    }


# --- Ops ----------------------------------------------------------------------


def check() -> Result:
    """Whether each op answers on the GPU as on the CPU: what training asks before it uses them."""
    from tf_comptrain import native
    from tf_comptrain.storage import gpu_check

    let_memory_grow()
    native.ops()
    problem = gpu_check.problem() or gpu_check.problem(xla=True)
    return {"text": "every op answers as on the CPU"} if problem is None else {"error": problem}


def activations(path: str, weights: str, folder: str, batch: int, small: bool) -> Result:
    """What ResNet-50 holds of images in a training step, as files of float32 values, channels last.

    Args:
      path: An .npz of CIFAR-10, whose images are scaled up to the network's.
      weights: A file for `keras.applications.ResNet50`; "": those that it begins with.
      folder: For the files.
      batch: Images.
      small: A few narrow layers in the network's place.

    Returns:
      "files": the path of each, the tensor's width and channels, and a bound of 0.1 standard deviations.
    """
    import numpy as np
    import tensorflow as tf
    from tensorflow import keras

    sys.path.insert(0, str(BENCHMARKS / "accuracy"))
    import data

    let_memory_grow()
    keras.utils.set_random_seed(0)
    images = tf.cast(data.load(path, batch, 1).x[:batch], tf.float32)
    if small:
        model = small_network(images.shape[1])
        kinds = keras.layers.Conv2D, keras.layers.ReLU
        read = [next(layer for layer in model.layers if isinstance(layer, kind)) for kind in kinds]
    else:
        images = keras.applications.resnet.preprocess_input(tf.image.resize(images, (224, 224)))
        model = keras.applications.ResNet50(weights=weights or None)
        read = [model.get_layer(name) for name in HELD]
    made = keras.Model(model.input, [layer.output for layer in read])(images, training=True)
    files = []
    for layer, tensor in zip(read, made):
        values, at = tensor.numpy(), Path(folder) / layer.name
        values.tofile(at)
        width, channels = values.shape[-2:]
        files.append(
            {"path": str(at), "width": width, "channels": channels, "bound": 0.1 * float(np.std(values))}
        )
    return {"files": files}


def ops(megabytes: list[int]) -> Result:
    """GB/s of Compress and Decompress as TensorFlow runs them, beside a copy: medians of five rounds of 20."""
    import tensorflow as tf

    from tf_comptrain import codecs, native

    let_memory_grow()
    native.ops()
    timed_alone()
    rows = []
    for mb in megabytes:
        n = mb * MIB // 4
        x = tf.nn.relu(tf.random.stateless_normal((n // 64, 64), seed=(1, 2)))
        state = tf.constant(codecs.State(bound_set=0.058), tf.float32)
        for name in ("plane", "rans", "zvc", "auto"):
            codec = codecs.get(name)
            _, stream, _ = codec.compress(x, state, 0.1, mid_rise=True)

            def compress(codec=codec, x=x, state=state):
                return codec.compress(x, state, 0.1, mid_rise=True)

            def decompress(codec=codec, x=x, stream=stream):
                return codec.decompress(stream, x.shape, x.dtype, gate=x)

            def copy(x=x):
                return tf.raw_ops.DeepCopy(x=x)

            calls = {"compress": compress, "decompress": decompress, "copy": copy}
            rates = {key: 4e-9 * n / seconds_of(call) for key, call in calls.items()}
            rows.append({"codec": name, "mb": mb, "ratio": 4 * n / int(tf.size(stream)), **rates})
    return {"rows": rows}


def seconds_of(call: Callable[[], Any], times: int = 20, rounds: int = 5) -> float:
    """Of one call of an op, the device's work included; the median of some rounds."""
    from tf_comptrain import memory

    def calls() -> None:
        for _ in range(times):
            call()

    calls()
    return statistics.median(memory.measure_call(calls)[2] for _ in range(rounds)) / times


# --- Training steps -----------------------------------------------------------


def train(
    net: str, variant: str, batch: int, dtype: str, jit: bool, steps: int, small: bool,
    limit_bytes: int = 0, memory_bytes: int = 0, kernels: bool = False,
) -> Result:  # fmt: skip
    """Trains on random data: images (or texts) a second by the median round, peak over the resting level.

    Args:
      net: "ResNet50", "ResNet152", "VGG16", "decoder", "ViT-B/16", or one of HUB_SIZES.
      variant: "plain", "compressed"; "recompute" and "remat": blocks in ct.Recompute and keras.remat; "offload",
        "offload_zvc", "offload_plane": as it is, and with a codec, in the host's memory (on a CPU in a file).
      batch: Samples a step.
      dtype: Keras' policy.
      jit: XLA.
      steps: Timed ones, in rounds.
      small: A few narrow layers in the network's place.
      limit_bytes: Device memory there may be in use; 0: all there is. XLA plans with it, too.
      memory_bytes: Of the device; 0: unknown.
      kernels: Whether three more steps run under the profiler.

    Returns:
      "ready_s" (until the first steps have run), "images_s", "peak_bytes", "first_peak_bytes" (with what rests, of
      the steps before those timed, in which kernels are chosen), "used_bytes" (with what rests), "largest_tensor"
      (elements); with offload "moving_s" and "hidden_s" (of one step, where they could be recorded); "kernels" (see
      kernels_of); or "does_not_fit", why, where the device had no memory for it.
    """
    if limit_bytes and memory_bytes:
        percent = round(100 * limit_bytes / (XLA_SHARE * memory_bytes))
        flag = f"--xla_gpu_memory_limit_slop_factor={percent}"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"
    import tensorflow as tf
    from tensorflow import keras

    from tf_comptrain import _keras
    from tf_comptrain.memory import counters

    began = time.perf_counter()
    let_memory_grow(limit_bytes)
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(dtype)
    try:
        model, x, y, obstacle, largest = of_variant(net, variant, batch, jit, small)
        step = _keras.train_step_runner(model, x, y)
        for _ in range(WARM_UP_STEPS):
            step()
        first = {"first_peak_bytes": counters.peak_bytes(), "ready_s": time.perf_counter() - began}
        timed_alone()
        result = timed(step, len(y), steps) | first
    except tf.errors.ResourceExhaustedError as error:
        return {"batch": batch, "does_not_fit": str(error).strip().splitlines()[-1][:300]}
    if limit_bytes and result["used_bytes"] > limit_bytes:
        return {"batch": batch, "does_not_fit": f"{result['used_bytes']} bytes were in use"}
    if variant.startswith("offload"):
        result.update(moved(model, x, y))
    if kernels:
        result["kernels"] = kernels_of(step)
    return {"batch": batch, "variant": variant, "obstacle": obstacle, "largest_tensor": largest, **result}


def timed(step: Callable[[], Any], batch: int, steps: int) -> Result:
    """Rounds of training steps; the model goes on from where it is."""
    from tf_comptrain import memory

    def round_of_steps() -> None:
        for _ in range(STEPS_A_ROUND):
            step()

    round_of_steps()
    measured = [memory.measure_call(round_of_steps) for _ in range(-(-steps // STEPS_A_ROUND))]
    peaks, resting, seconds = zip(*measured)
    return {
        "images_s": STEPS_A_ROUND * batch / statistics.median(seconds),
        "peak_bytes": max(peaks),
        "used_bytes": max(peaks) + max(resting),
    }


def moved(model, x, y) -> Result:
    """Seconds of one step in which something moved, and of them those in which something was computed; nothing where
    the profiler, which takes memory of its own, could not record it."""
    import tensorflow as tf

    from tf_comptrain import memory

    try:
        found = memory.transfers(model, x, y)
    except (RuntimeError, tf.errors.ResourceExhaustedError) as error:
        print(f"no copies recorded: {error}", file=sys.stderr)
        return {}
    return {"moving_s": found.moving_s, "hidden_s": found.hidden_s}


def kernels_of(step: Callable[[], Any], steps: int = 3) -> Result:
    """What a step takes its time for: "rows" of [kernel, runs in a step, microseconds in a step], the longest first,
    of kernels that take a thousandth of the time; "kinds", "runs" and "kernels_us" of all; "span_us" of the step."""
    from tf_comptrain.memory import movement, profile

    recorded = movement.of_busiest_gpu(profile.profile_step(lambda: [step() for _ in range(steps)]))
    if not recorded:
        return {"rows": []}
    taken: dict[str, list[int]] = {}
    for event in recorded:
        taken.setdefault(event.name, []).append(event.duration_ps)
    rows = [[name[:90], len(ps) / steps, sum(ps) / 1e6 / steps] for name, ps in taken.items()]
    rows.sort(key=lambda row: -row[2])
    all_us = sum(row[2] for row in rows)
    return {
        "span_us": (max(e.end_ps for e in recorded) - min(e.start_ps for e in recorded)) / 1e6 / steps,
        "kernels_us": all_us, "kinds": len(rows), "runs": len(recorded) / steps,
        "rows": [row for row in rows if row[2] > all_us / 1000],
    }  # fmt: skip


def let_memory_grow(limit_bytes: int = 0) -> None:
    """The GPU's memory as it is needed, or a part of it that TensorFlow's allocator does not pass."""
    import tensorflow as tf

    for gpu in tf.config.list_physical_devices("GPU"):
        if limit_bytes:
            part = tf.config.LogicalDeviceConfiguration(memory_limit=limit_bytes // MIB)
            tf.config.set_logical_device_configuration(gpu, [part])
        else:
            tf.config.experimental.set_memory_growth(gpu, True)


# --- Networks -----------------------------------------------------------------


def of_variant(net: str, variant: str, batch: int, jit: bool, small: bool):
    """(the model, x, y, why it trains uncompressed though it should not, elements of a sample's largest tensor)."""
    if net in HUB_SIZES:
        model, x, y = hub_model(net, batch, small)
        return model, x, y, set_up(model, variant, jit), 1
    model, obstacle, largest = compiled(net, variant, jit, small)
    return model, *batch_of(net, batch, small), obstacle, largest


def compiled(net: str, variant: str, jit: bool, small: bool):
    """(the model, why it trains uncompressed though it should not, elements of its largest tensor for a sample)."""

    model = network(net, variant == "compressed", small)
    largest = max(math.prod(layer.output.shape[1:]) for layer in model.layers)
    if variant in ("recompute", "remat"):
        model = in_blocks(model, variant)
    return model, set_up(model, variant, jit), largest


def set_up(model, variant: str, jit: bool) -> str | None:
    """Compiles a model and, in the variants that compress, its train step; why it stays as it is, if so."""
    from tensorflow import keras

    import tf_comptrain as ct

    softmax = getattr(model.layers[-1], "activation", None) is keras.activations.softmax
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=not softmax)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss, jit_compile=jit)
    storage = {
        "offload": ct.Offload(codec=None),
        "offload_zvc": ct.Offload(),
        "offload_plane": ct.Offload(codec="plane"),
    }
    compresses = variant == "compressed" or variant in storage
    return ct.compress_model(model, storage=storage.get(variant)).obstacle if compresses else None


def hub_model(net: str, batch: int, small: bool):
    """(the model, x, y): one of keras-hub's language models in the sizes of HUB_SIZES, and random tokens."""
    import tensorflow as tf

    nets_module(small)  # its folder has this module, too
    from hub_models import Sizes, language_model

    tokens, vocabulary, width, blocks = (16, 50, 32, 2) if small else HUB_SIZES[net]
    model, x, y = language_model(net, Sizes(batch, tokens, vocabulary, width, blocks), 1)
    return model, {key: tf.constant(value, "int32") for key, value in x.items()}, tf.constant(y)


def network(net: str, compressed: bool, small: bool):
    nets = nets_module(small)
    if net == "decoder":
        return nets.decoder(compressed, 32, 2) if small else nets.decoder(compressed)
    if net == "ViT-B/16":
        return nets.vit(32, 2, depth=2)(compressed) if small else nets.vit(768, 12)(compressed)
    return small_network(nets.IMAGE) if small else nets.NETS[net].build(compressed)


def nets_module(small: bool):
    """benchmarks/models/nets.py."""
    if str(BENCHMARKS / "models") not in sys.path:
        sys.path.insert(0, str(BENCHMARKS / "models"))
    import nets

    if small:
        nets.IMAGE = 32
    return nets


def small_network(image: int):
    from tensorflow import keras

    layers = keras.layers
    x = inputs = keras.Input((image, image, 3))
    for _ in range(6):
        y = layers.BatchNormalization()(layers.Conv2D(16, 3, padding="same")(x))
        y = layers.ReLU()(y)
        x = layers.Add()([x, y]) if x.shape == y.shape else y
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def batch_of(net: str, batch: int, small: bool):
    """Random samples and labels, on the device."""
    import numpy as np
    import tensorflow as tf

    nets = nets_module(small)
    if net == "decoder":
        return nets.characters(None, batch)
    x = tf.random.stateless_normal((batch, nets.IMAGE, nets.IMAGE, 3), seed=(1, 2))
    return x, tf.constant(np.random.default_rng(0).integers(0, 10, batch))


def in_blocks(model, variant: str):
    """The model as a chain of blocks, each of about the square root of its number of layers.

    Every block's activations are computed again in the backward pass: by ct.Recompute, or by keras.remat, to
    which keras.RematScope leads. (The scope itself hands `training` to a custom gradient, which takes no keyword
    in a graph; the function here holds it, for the second run too.)

    Reference:
      Chen et al., Training deep nets with sublinear memory cost (2016).
    """
    from tensorflow import keras

    import tf_comptrain as ct

    class Remat(keras.layers.Layer):
        def __init__(self, block):
            super().__init__()
            self.block = block

        def call(self, x, training=None):
            return keras.remat(lambda x: self.block(x, training=training))(x)

    wrap = ct.Recompute if variant == "recompute" else Remat
    size, count = math.isqrt(len(model.layers)), 0
    start, y = model.input, model.input
    for layer, alone in zip(model.layers, outputs_alone(model)):
        count += 1
        if layer is model.layers[-1] or (alone and count >= size):
            block = keras.Model(start, layer.output)
            y = block(y) if layer is model.layers[-1] else wrap(block)(y)
            start, count = layer.output, 0
    return keras.Model(model.input, y)


def outputs_alone(model) -> list[bool]:
    """Whether what comes after each layer of a functional model reads that layer's output and nothing before it."""
    import tensorflow as tf

    inputs = [tf.nest.flatten(layer.input) for layer in model.layers[1:]]
    readers: dict[int, int] = {}
    for tensor in (t for tensors in inputs for t in tensors):
        readers[id(tensor)] = readers.get(id(tensor), 0) + 1
    live = {id(model.layers[0].output)}
    alone = [False]
    for layer, tensors in zip(model.layers[1:], inputs):
        for tensor in tensors:
            readers[id(tensor)] -= 1
            if not readers[id(tensor)]:
                live.discard(id(tensor))
        live.add(id(layer.output))
        alone.append(live == {id(layer.output)})
    return alone


# --- A training ---------------------------------------------------------------


def training(path: str, variant: str, epochs: int, images: int, small: bool, batch: int = 256) -> Result:
    """ResNet-50 under XLA on CIFAR-10, from scratch: its accuracy, and the seconds of fit."""
    import numpy as np
    import tensorflow as tf
    from tensorflow import keras

    import tf_comptrain as ct
    from tf_comptrain import memory

    sys.path.insert(0, str(BENCHMARKS / "accuracy"))
    import data

    let_memory_grow()
    keras.utils.set_random_seed(0)
    found = data.load(path, images, images // 5)
    batch = min(batch, len(found.x) // 4)
    x, x_test = data.scaled(found.x), data.scaled(found.x_test)
    if small:
        model = small_network(x.shape[1])
    else:
        model = keras.applications.ResNet50(
            weights=None, input_shape=x.shape[1:], classes=10, classifier_activation=None
        )
    steps = epochs * (len(x) // batch)
    rate = keras.optimizers.schedules.CosineDecay(0.0, steps, warmup_target=0.1, warmup_steps=steps // 10)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    sgd = keras.optimizers.SGD(rate, momentum=0.9, weight_decay=5e-4)
    model.compile(sgd, loss, metrics=["accuracy"], jit_compile=True)
    obstacle = ct.compress_model(model).obstacle if variant == "compressed" else None
    batches = tf.data.Dataset.from_tensor_slices((x, found.y)).shuffle(len(x), seed=0)
    batches = batches.map(lambda x, y: (tf.image.random_flip_left_right(x, seed=0), y))
    batches = batches.batch(batch, drop_remainder=True).prefetch(4)
    history: dict[str, list] = {}

    def fit() -> None:
        history.update(
            model.fit(
                batches, epochs=epochs, validation_data=(x_test, found.y_test),
                validation_batch_size=min(500, len(x_test)), verbose=2,
            ).history
        )  # fmt: skip

    timed_alone()
    peak, _, seconds = memory.measure_call(fit)
    return {
        "variant": variant, "epochs": epochs, "images": len(x), "obstacle": obstacle, "fit_s": seconds,
        "peak_bytes": peak, "accuracy": history["val_accuracy"][-1], "val_accuracy": history["val_accuracy"],
        "loss": history["loss"], "finite": bool(np.isfinite(history["loss"]).all()),
    }  # fmt: skip


_turns = contextlib.ExitStack()


def timed_alone() -> None:
    """What is timed begins here: others become ready first, and none begins before this process ends."""
    _turns.close()
    _turns.enter_context(turn(alone=True))


WORKERS: dict[str, Callable[..., Result]] = {
    "about": about, "check": check, "activations": activations, "ops": ops, "train": train, "training": training,
}  # fmt: skip

if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    _turns.enter_context(turn(alone=False))
    print(ANSWER + json.dumps(WORKERS[asked.pop("what")](**asked)))
