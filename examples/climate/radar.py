"""Radar images of rain, how rain moves, and what forecasts of it are worth."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import fft, ndimage

SHIPPED = Path(__file__).resolve().parent / "data" / "mrms.npz"
FRAMES = 4  # seen, two minutes apart
AHEAD = 5  # frames from the last one seen to the one forecast: ten minutes
THRESHOLDS = (1.0, 4.0, 8.0)  # mm/h: rain, moderate rain, heavy rain

_MISSING = 65535
_BLOCK, _STEP = 64, 32  # pixels: what motion is found of, and how far blocks lie apart
_FASTEST = 20  # pixels from the first to the last image seen
_SMOOTHING = 1.5  # blocks


class Fields(NamedTuple):
    """Images of a region and what is known before each forecast.

    Attributes:
      seen: [times, height, width, FRAMES] log(1 + mm/h) as float16; each image is moved on to the time of the forecast.
      last: [times, height, width] the last image as it was.
      coming: [times, height, width] what is to be forecast.
      latitude: [height] degrees, or None where the file has none.
      longitude: [width] likewise.
      times: Of the last images, "20190610-001000" in UTC, or None.
    """

    seen: np.ndarray
    last: np.ndarray
    coming: np.ndarray
    latitude: np.ndarray | None
    longitude: np.ndarray | None
    times: list[str] | None


def load(file: Path, part: str) -> Fields:
    """The fields of "train" or "test"."""
    with np.load(file, allow_pickle=False) as arrays:
        tenths = arrays[part]
        places = [arrays.get(f"{part}_{axis}") for axis in ("lat", "lon")]
        times = [str(time) for time in arrays["time"]] if "time" in arrays else None
    logs = np.log1p(np.where(tenths == _MISSING, 0, tenths).astype(np.float32) * 0.1)
    starts = range(FRAMES - 1, len(logs) - AHEAD)
    seen = np.stack([_moved_on(logs[now - FRAMES + 1 : now + 1]) for now in starts])
    last, coming = (logs[np.array(starts) + ahead].astype(np.float16) for ahead in (0, AHEAD))
    return Fields(seen, last, coming, *places, times and [times[now] for now in starts])


def _moved_on(images: np.ndarray) -> np.ndarray:
    velocity = motion(images[0], images[-1]) / (len(images) - 1)
    ages = range(len(images) - 1, -1, -1)
    moved = [advected(image, velocity, AHEAD + age) for image, age in zip(images, ages)]
    return np.stack(moved, -1).astype(np.float16)


def motion(first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """[height, width, 2] pixels down and to the right between two images, by the correlation of blocks."""
    tops, lefts = (range(0, size - _BLOCK + 1, _STEP) for size in first.shape)
    found = np.array([[_of_block(first, last, top, left) for left in lefts] for top in tops])
    weight = found[..., 2] ** 2 + 1e-6
    total = ndimage.gaussian_filter(weight, _SMOOTHING)
    smooth = (ndimage.gaussian_filter(found[..., axis] * weight, _SMOOTHING) / total for axis in (0, 1))
    places = [(np.arange(size) - _BLOCK / 2) / _STEP for size in first.shape]
    grid = np.meshgrid(*places, indexing="ij")
    return np.stack([ndimage.map_coordinates(each, grid, order=1, mode="nearest") for each in smooth], -1)


def _of_block(first: np.ndarray, last: np.ndarray, top: int, left: int) -> tuple[float, float, float]:
    """(pixels down, to the right, correlation) of a block."""
    window = np.outer(np.hanning(_BLOCK), np.hanning(_BLOCK))
    parts = [image[top : top + _BLOCK, left : left + _BLOCK] for image in (first, last)]
    before, after = (window * (part - part.mean()) for part in parts)
    spectrum = fft.rfft2(after) * np.conj(fft.rfft2(before))
    match = np.roll(fft.irfft2(spectrum), (_FASTEST, _FASTEST), (0, 1))[
        : 2 * _FASTEST + 1, : 2 * _FASTEST + 1
    ]
    row, column = np.unravel_index(match.argmax(), match.shape)
    norm = np.sqrt((before**2).sum() * (after**2).sum()) + 1e-9
    return float(row - _FASTEST), float(column - _FASTEST), max(float(match.max() / norm), 0.0)


def advected(image: np.ndarray, velocity: np.ndarray, steps: int) -> np.ndarray:
    """An image after so many steps: each pixel is followed back through the motion."""
    places = list(np.mgrid[: image.shape[0], : image.shape[1]].astype(np.float32))
    for _ in range(steps):
        moves = [
            ndimage.map_coordinates(velocity[..., axis], places, order=1, mode="nearest") for axis in (0, 1)
        ]
        places = [place - move for place, move in zip(places, moves)]
    return ndimage.map_coordinates(image, places, order=1, mode="nearest")


def tiles(fields: Fields, size: int) -> tuple[np.ndarray, np.ndarray]:
    """(x, y): what is seen in tiles side by side, at all times, and where rain reaches each threshold."""
    places = [range(0, length - size + 1, size) for length in fields.last.shape[1:]]
    cut = [np.s_[:, top : top + size, left : left + size] for top in places[0] for left in places[1]]
    x = np.concatenate([fields.seen[place] for place in cut]).astype(np.float32)
    return x, exceeds(np.concatenate([fields.coming[place] for place in cut]))


def exceeds(logs: np.ndarray) -> np.ndarray:
    """[..., thresholds] 1 where rain reaches them, else 0."""
    return (logs[..., None] >= _log_thresholds()).astype(np.float32)


def _log_thresholds() -> np.ndarray:
    return np.log1p(np.array(THRESHOLDS, np.float32)) - 1e-3  # float16 rounds


def scores(forecast: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Critical success index of each threshold: hits / (hits + misses + false alarms), of [..., thresholds] 0 or 1."""
    found = {}
    for number, threshold in enumerate(THRESHOLDS):
        ours, theirs = forecast[..., number] > 0, truth[..., number] > 0
        found[f"CSI {threshold:g} mm/h"] = float((ours & theirs).sum() / max((ours | theirs).sum(), 1))
    return found


def best_cuts(logits: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """For each threshold the logit from which on rain is forecast so that the critical success index is highest."""
    cuts = np.linspace(-3, 1, 41)
    found = [list(scores(logits >= cut, truth).values()) for cut in cuts]
    return cuts[np.argmax(found, 0)]
