"""Events of particle detectors: a generated sample, and loaders of sets that a user has.

The generated events are toys, which stand in for what cannot be shipped: they show how training behaves, and say
nothing about physics.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np


class Events(NamedTuple):
    """Images [events, ...], channels last, of about unit scale, and labels, 1 of the signal."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def calorimeter(count: int, size: int = 64, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Energies [count, size, size] in a calorimeter, unrolled, and labels [count].

    Background has two or three jets, the signal one more on the average and narrower ones: the numbers overlap.
    """
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, count)
    images = np.zeros((count, size, size), np.float32)
    for image, label in zip(images, labels):
        for _ in range(random.integers(2, 4) + random.integers(0, 3) * label):
            hits = random.integers(10, 40)
            width = random.uniform(1.0, 3.0) * (0.8 if label else 1.0)
            centre = random.uniform(0, size, 2)
            places = np.rint(centre + random.normal(0, width, (hits, 2))).astype(int) % size
            np.add.at(image, tuple(places.T), random.exponential(1.0, hits))
        noise = random.integers(0, size, (2, 40))
        np.add.at(image, tuple(noise), random.exponential(0.15, 40))
    return images, labels


def write_hdf5(file: Path, images: np.ndarray, labels: np.ndarray) -> None:
    """Writes events in the layout of NERSC's HEP-CNN: all_events/hist, y, weight, normalized_weight."""
    import h5py

    file.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(file, "w") as made:
        events = made.create_group("all_events")
        events.create_dataset("hist", data=images, compression="gzip")
        events.create_dataset("y", data=labels.astype(np.float32))
        events.create_dataset("weight", data=np.ones(len(labels), np.float32))
        events.create_dataset("normalized_weight", data=np.full(len(labels), 1 / len(labels), np.float32))


def read_hdf5(file: Path, test_share: float = 0.3) -> Events:
    """Events in the layout of NERSC's HEP-CNN; the last ones are for testing.

    Raises:
      ValueError: The file has another layout.
    """
    import h5py

    with h5py.File(file) as found:
        if "all_events" not in found or {"hist", "y"} - set(found["all_events"]):
            raise ValueError(
                f"{file} must have all_events/hist and all_events/y. It has: {', '.join(found)}."
            )
        images, labels = found["all_events/hist"][:], found["all_events/y"][:]
    x = _scaled(images.astype(np.float32)[..., None])
    first = round(len(x) * (1 - test_share))
    labels = labels.astype("int64")
    return Events(x[:first], labels[:first], x[first:], labels[first:])


def read_jets(file: Path, count: int | None = None) -> Events:
    """Jet images (24, 24) of an npz with x_train, y_train, x_test, y_test: class 0 (QCD) is background."""
    with np.load(file, allow_pickle=False) as arrays:
        x, y, x_test, y_test = (arrays[f"{v}_{part}"] for part in ("train", "test") for v in "xy")
    x, x_test = (
        np.sqrt(np.maximum(images, 0) / 0.003)[..., None].astype(np.float32) for images in (x, x_test)
    )
    return Events(x[:count], (y[:count] > 0).astype("int64"), x_test, (y_test > 0).astype("int64"))


def tracks(
    count: int, shape: tuple[int, int, int] = (16, 48, 16), seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Charges [count, *shape] along a track in a time projection chamber; the signal's end is denser."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, count)
    images = np.zeros((count, *shape), np.float32)
    for image, label in zip(images, labels):
        begin, end = random.uniform(0.1, 0.9, (2, 3)) * shape
        along = random.beta(1.0 + 1.2 * label, 1.0, random.integers(60, 140))[:, None]
        places = begin + along * (end - begin) + random.normal(0, 1.2, (len(along), 3))
        inside = np.clip(np.rint(places), 0, np.array(shape) - 1).astype(int)
        np.add.at(image, tuple(inside.T), 1.0)
    return images, labels


def read_tracks(file: Path, count: int | None = None) -> Events:
    """3-D images (22, 110, 22) of an npz with index, value, offset, label, n_train: sparse, one after the other."""
    with np.load(file, allow_pickle=False) as arrays:
        index, value, offset, label = (arrays[name] for name in ("index", "value", "offset", "label"))
        shape, train = tuple(int(size) for size in arrays["shape"]), int(arrays["n_train"])
    chosen = (range(min(count or train, train)), range(train, len(label)))

    def images(events: range) -> np.ndarray:
        made = np.zeros((len(events), *shape, 1), np.float32)
        for image, event in zip(made, events):
            part = slice(offset[event], offset[event + 1])
            image[(*index[part].astype(int).T, 0)] = value[part]
        return _scaled(made)

    (x, x_test), y = map(images, chosen), label.astype("int64")
    return Events(x, y[chosen[0].start : chosen[0].stop], x_test, y[train:])


def read_points(file: Path, count: int | None = None, most: int = 256) -> Events:
    """The same tracks as points [events, most, 5], see `as_points`."""
    with np.load(file, allow_pickle=False) as arrays:
        index, value, offset, label = (arrays[name] for name in ("index", "value", "offset", "label"))
        train = int(arrays["n_train"])
    x = as_points(np.split(index, offset[1:-1]), np.split(value, offset[1:-1]), most)
    y = label.astype("int64")
    return Events(x[: min(count or train, train)], y[: min(count or train, train)], x[train:], y[train:])


def generated_points(train: int, test: int, most: int = 256) -> Events:
    """Those of toy tracks."""
    images, labels = tracks(train + test)
    places = [np.argwhere(image) for image in images]
    x = as_points(places, [image[tuple(place.T)] for image, place in zip(images, places)], most)
    return Events(x[:train], labels[:train], x[train:], labels[train:])


def as_points(places: list[np.ndarray], charges: list[np.ndarray], most: int) -> np.ndarray:
    """[events, most, 5]: where a point is, from the charge's centre on; its charge; 1, and 0 where there is no point.

    Of an event with more points some are drawn, the same in each call.
    """
    random, made = np.random.default_rng(0), np.zeros((len(places), most, 5), np.float32)
    for event, place, charge in zip(made, places, charges):
        charge = charge.astype(np.float32)
        place = (place - charge @ place / charge.sum()) / 4
        if len(place) > most:
            chosen = random.choice(len(place), most, replace=False)
            place, charge = place[chosen], charge[chosen]
        event[: len(place)] = np.column_stack([place, charge / 7 - 1, np.ones(len(place))])
    return made


def skewness(points: np.ndarray) -> np.ndarray:
    """[events] Of the charge along the first axis, with the sign by which a dense end means the signal."""
    along, charge = points[..., 0], (points[..., 3] + 1) * points[..., 4]
    total = charge.sum(1)
    along = along - ((along * charge).sum(1) / total)[:, None]
    second, third = (((along**power) * charge).sum(1) / total for power in (2, 3))
    return -third / (second + 1e-9) ** 1.5


def generated(kind: str, train: int, test: int) -> Events:
    """Toy events: "calorimeter" or "tracks"."""
    make = {"calorimeter": calorimeter, "tracks": tracks}[kind]
    images, labels = make(train + test)
    x = _scaled(images[..., None])
    return Events(x[:train], labels[:train], x[train:], labels[train:])


def _scaled(images: np.ndarray) -> np.ndarray:
    """Energies fall off steeply: their logarithms do not."""
    return np.log1p(np.maximum(images, 0)).astype(np.float32)
