"""The arrays of `compare.py`: activations of a network trained in the run, and fields read from files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tensorflow import keras

CLASSES = 10
_SMALLEST = 4096  # elements: a smaller array measures calls, not codecs


def activations(steps: int, batch: int, images: Path | None, seed: int = 0) -> dict[str, np.ndarray]:
    """ReLU and batch normalization outputs of a small CNN after some training steps.

    Args:
      steps: Training steps, of 64 images.
      batch: Images whose activations are returned.
      images: npz with x_train (uint8 [n, height, width(, channels)]) and y_train; None for generated
        images, which are easier to learn than real ones: sparser ReLU outputs.
      seed: Of images and weights.

    Returns:
      Float32 arrays [batch, height, width, channels] by name, "relu/..." or "dense/...".
    """
    keras.utils.set_random_seed(seed)
    x, y = _generated(4096, seed) if images is None else _read_images(images)
    network, taps = _network(x.shape[1:])
    network.compile(
        optimizer=keras.optimizers.Adam(2e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    order = np.random.default_rng(seed).integers(len(x), size=(steps, 64))
    for indices in order:
        network.train_on_batch(x[indices], y[indices])
    outputs = taps(x[:batch], training=True)  # batch statistics, as when compressed
    return {name: np.ascontiguousarray(value, np.float32) for name, value in outputs.items()}


def fields(path: Path) -> dict[str, np.ndarray]:
    """The numeric arrays of two and more dimensions in an npz file, as float32.

    Integers are scaled by `<name>_scale` and shifted by `<name>_offset`, where the file has those.

    Raises:
      ValueError: There is no such array.
    """
    found = {}
    with np.load(path, allow_pickle=False) as file:
        for name in file.files:
            array = file[name]
            if array.ndim < 2 or array.size < _SMALLEST or array.dtype.kind not in "iuf":
                continue
            if f"{name}_scale" in file.files:
                array = array * file[f"{name}_scale"] + file.get(f"{name}_offset", 0)
            found[f"field/{path.stem}/{name}"] = np.ascontiguousarray(array, np.float32)
    if not found:
        raise ValueError(f"`--data` must hold numeric arrays of two or more dimensions. Received: {path}.")
    return found


def _network(shape: tuple[int, ...]) -> tuple[keras.Model, keras.Model]:
    inputs = x = keras.Input(shape)
    taps = {}
    for stage, width in enumerate((32, 64)):
        for block in range(2):
            x = keras.layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
            x = taps[f"dense/stage {stage} block {block}"] = keras.layers.BatchNormalization()(x)
            x = taps[f"relu/stage {stage} block {block}"] = keras.layers.ReLU()(x)
        x = keras.layers.MaxPooling2D()(x)
    outputs = keras.layers.Dense(CLASSES)(keras.layers.GlobalAveragePooling2D()(x))
    kept = {name: tap for name, tap in taps.items() if name.endswith("block 1")}
    return keras.Model(inputs, outputs), keras.Model(inputs, kept)


def _generated(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Oriented gratings under noise, an orientation a class: learnt in a few dozen steps."""
    random = np.random.default_rng(seed)
    labels = random.integers(CLASSES, size=n)
    rows, columns = np.mgrid[0:32, 0:32].astype(np.float32)
    angle = (labels * np.pi / CLASSES)[:, None, None]
    phase = random.uniform(0, 2 * np.pi, size=(n, 1, 1))
    wave = np.sin(0.7 * (np.cos(angle) * rows + np.sin(angle) * columns) + phase)
    color = random.uniform(0.3, 1, size=(n, 1, 1, 3))
    images = 0.5 + 0.25 * wave[..., None] * color + random.normal(0, 0.1, size=(n, 32, 32, 3))
    return images.astype(np.float32), labels


def _read_images(path: Path) -> tuple[np.ndarray, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        missing = {"x_train", "y_train"} - set(file.files)
        if missing:
            raise ValueError(f"`--images` must hold x_train and y_train. Received: {path}, of {file.files}.")
        x, y = file["x_train"][:20000], file["y_train"][:20000]
    x = x.astype(np.float32) / 255
    return x if x.ndim == 4 else x[..., None], y.reshape(-1)
