"""Images and texts, and their batches in an order that seed and number of the order alone determine."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

LARGEST = 10**9  # images: all of them
_SHIFT = 4  # pixels, as in the usual CIFAR augmentation


class Images(NamedTuple):
    """uint8 images [count, height, width, channels] and int64 labels [count]."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def load(path: str, train: int, test: int) -> Images:
    """Reads CIFAR-10 or Fashion-MNIST; at most so many images of each part, the first ones.

    Args:
      path: An .npz that holds x_train, y_train, x_test and y_test; or, for `train` and `test` each, JPEG
        files end to end as {part}_jpeg, their limits as {part}_offset and the labels as {part}_label.
      train: Images of the training set.
      test: Images of the test set.
    """
    with np.load(path, allow_pickle=False) as file:
        if "x_train" in file:
            x, y, x_test, y_test = (file[key] for key in ("x_train", "y_train", "x_test", "y_test"))
        else:
            x, x_test = _decoded(file, "train", train), _decoded(file, "test", test)
            y, y_test = file["train_label"], file["test_label"]
    if x.ndim == 3:
        x, x_test = x[..., None], x_test[..., None]
    y, y_test = y.astype("int64").ravel(), y_test.astype("int64").ravel()
    return Images(x[:train], y[:train], x_test[:test], y_test[:test])


def load_apart(path: str, train: int) -> tuple[Images, np.ndarray, np.ndarray]:
    """The first images to train with; and to test, behind the test set, as many of the last that are not of these."""
    images = load(path, LARGEST, LARGEST)
    rest = slice(max(train, len(images.x) - len(images.x_test)), None)
    x, y = (
        np.concatenate(parts) for parts in ((images.x_test, images.x[rest]), (images.y_test, images.y[rest]))
    )
    return images._replace(x=images.x[:train], y=images.y[:train]), x, y


def _decoded(file, part: str, count: int) -> np.ndarray:
    blob, offset = file[f"{part}_jpeg"].tobytes(), file[f"{part}_offset"]
    count = min(count, len(offset) - 1)
    return np.stack([tf.io.decode_jpeg(blob[offset[i] : offset[i + 1]]).numpy() for i in range(count)])


def scaled(x: np.ndarray) -> np.ndarray:
    """float32, about zero mean and unit variance."""
    return (x.astype("float32") - 120.0) / 64.0


class Batches(keras.utils.PyDataset):
    """Full batches, shuffled anew in each epoch; colour images are also shifted and mirrored, where not said otherwise.

    Args:
      images: What they are taken from.
      batch: Images a batch.
      seed: Of the draw.
      order: Number of the order: the same seed has many.
      moved: Whether colour images are shifted and mirrored.
    """

    def __init__(self, images: Images, batch: int, seed: int, order: int = 0, moved: bool = True):
        super().__init__()
        self.moved = moved and images.x.shape[-1] == 3
        self.images, self.batch, self.seed, self.order, self.epoch = images, batch, seed, order, 0
        self._draw()

    def __len__(self) -> int:
        return len(self.images.x) // self.batch

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        chosen = slice(index * self.batch, (index + 1) * self.batch)
        rows = self._order[chosen]
        x = self.images.x[rows]
        if self.moved:
            x = _moved(x, self._shifts[chosen], self._mirrored[chosen])
        return scaled(x), self.images.y[rows]

    def on_epoch_end(self) -> None:
        self.epoch += 1
        self._draw()

    def _draw(self) -> None:
        random, count = np.random.default_rng((self.seed, self.epoch, self.order)), len(self.images.x)
        self._order = random.permutation(count)
        self._shifts = random.integers(0, 2 * _SHIFT + 1, (count, 2))
        self._mirrored = random.integers(0, 2, count).astype(bool)


class Text(NamedTuple):
    """Characters by their number in the alphabet: the first nine tenths, to train with, and the rest."""

    training: np.ndarray
    held_out: np.ndarray

    def validation(self, context: int) -> tuple[np.ndarray, np.ndarray]:
        """All passages of the held-out part, end to end, and the characters that follow each of theirs."""
        rows = (len(self.held_out) - 1) // context
        x, y = (self.held_out[k : rows * context + k].reshape(rows, context) for k in range(2))
        return x, y


def load_text(path: str) -> Text:
    characters = np.unique(list(Path(path).read_text()), return_inverse=True)[1].astype("int32")
    split = len(characters) * 9 // 10
    return Text(characters[:split], characters[split:])


class Passages(keras.utils.PyDataset):
    """Batches of random passages of a text, and the characters that follow each of theirs; other ones in each epoch."""

    def __init__(self, text: Text, context: int, batch: int, steps: int, seed: int, order: int = 0):
        super().__init__()
        self.text, self.context, self.batch, self.steps = text, context, batch, steps
        self.seed, self.order, self.epoch = seed, order, 0
        self._draw()

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        starts = self._starts[index]
        taken = self.text.training[starts[:, None] + np.arange(self.context + 1)]
        return taken[:, :-1], taken[:, 1:]

    def on_epoch_end(self) -> None:
        self.epoch += 1
        self._draw()

    def _draw(self) -> None:
        random = np.random.default_rng((self.seed, self.epoch, self.order))
        room = len(self.text.training) - self.context
        self._starts = random.integers(room, size=(self.steps, self.batch))


def _moved(x: np.ndarray, shifts: np.ndarray, mirrored: np.ndarray) -> np.ndarray:
    height, width = x.shape[1:3]
    pad = (_SHIFT, _SHIFT)
    padded = np.pad(x, ((0, 0), pad, pad, (0, 0)))
    rows = shifts[:, :1] + np.arange(height)
    columns = np.arange(width)
    columns = np.where(mirrored[:, None], columns[::-1], columns) + shifts[:, 1:]
    return padded[np.arange(len(x))[:, None, None], rows[:, :, None], columns[:, None, :]]
