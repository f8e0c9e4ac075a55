"""Training samples in an order that seed and epoch alone determine."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras, arguments
from tf_comptrain.callbacks.elastic import single_samples

_DEFAULT_BUFFER = 10_000
_PREFETCHED = 2


class Samples:
    """Gives the batches of any epoch, from any position on.

    Arrays: epoch e takes them in the order of the permutation drawn with (seed, e). Dataset: epoch
    e is `dataset.shuffle(buffer, seed=(seed, e))`. Function: epoch e is `x(e)`, as it is.

    Args:
      x: See `tf_comptrain.fit`.
      y: Targets, with arrays.
      sample_weight: With arrays.
      shuffle: Whether to shuffle; for a dataset also the buffer's size.
      seed: Of the order.
    """

    def __init__(self, x: Any, y: Any, sample_weight: Any, shuffle: bool | int, seed: int):
        if not isinstance(shuffle, bool):
            shuffle = arguments.whole("shuffle", shuffle, least=0, remedy="Or pass True or False.")
        self.shuffle = shuffle
        self.seed = arguments.whole("seed", seed, least=0)
        self._x = x
        self._arrays: Any = None
        self._latest: tuple[int, tf.data.Dataset, int] | None = (
            None  # what a function gave: epoch, data, samples
        )
        if isinstance(x, tf.data.Dataset) or callable(x):
            if y is not None or sample_weight is not None:
                raise ValueError(
                    "`y` and `sample_weight` must be left out where `x` is a dataset or a function."
                )
            self._count = _checked_count(x, "`x`") if isinstance(x, tf.data.Dataset) else None
            self.count(0)
        else:
            parts = (x,) if y is None else (x, y) if sample_weight is None else (x, y, sample_weight)
            self._arrays = _checked_arrays(parts, x)
            lengths = {len(array) for array in tf.nest.flatten(self._arrays)}
            if len(lengths) != 1 or 0 in lengths:
                raise ValueError(
                    "`x`, `y` and `sample_weight` must hold the same number of samples, one or more. "
                    f"Received lengths {sorted(lengths)}."
                )
            self._count = lengths.pop()

    def count(self, epoch: int) -> int:
        """Samples in an epoch: a function may give each another number."""
        return self._given(epoch)[1] if self._count is None else self._count

    def about(self, epoch: int) -> dict[str, Any]:
        """What a checkpoint must agree on, for its position in that epoch to mean the same."""
        return {"samples": self.count(epoch), "shuffle": self.shuffle, "seed": self.seed}

    def batches(self, epoch: int, start: int, batch: int) -> tf.data.Dataset:
        """The batches of an epoch after its first `start` samples."""
        if self._arrays is not None:
            count = self.count(epoch)
            order = np.arange(count)
            if self.shuffle:
                order = np.random.default_rng([self.seed, epoch]).permutation(count)
            arrays = self._arrays

            def gather(indices: tf.Tensor) -> Any:
                return tf.nest.map_structure(lambda array: tf.gather(array, indices), arrays)

            data = tf.data.Dataset.from_tensor_slices(order[start:]).batch(batch).map(gather)
        else:
            data = self._epoch(epoch).skip(start).batch(batch)
        return data.prefetch(_PREFETCHED)

    def _epoch(self, epoch: int) -> tf.data.Dataset:
        if not isinstance(self._x, tf.data.Dataset):
            return self._given(epoch)[0]
        if not self.shuffle:
            return self._x
        buffer = _DEFAULT_BUFFER if self.shuffle is True else self.shuffle
        seed = int(np.random.SeedSequence([self.seed, epoch]).generate_state(1)[0])
        return self._x.shuffle(buffer, seed=seed, reshuffle_each_iteration=False)

    def _given(self, epoch: int) -> tuple[tf.data.Dataset, int]:
        """What the function gives for an epoch, and its samples. Asked once: two answers could differ."""
        if self._latest is None or self._latest[0] != epoch:
            data = self._x(epoch)
            if not isinstance(data, tf.data.Dataset):
                raise TypeError(
                    "A function given as `x` must return the tf.data.Dataset of an epoch. "
                    f"Received: {type(data).__name__} for epoch {epoch}."
                )
            self._latest = epoch, data, _checked_count(data, f"`x({epoch})`")
        return self._latest[1:]


def _checked_arrays(parts: tuple, x: Any) -> Any:
    try:
        with tf.device("CPU:0"):
            arrays = tf.nest.map_structure(tf.convert_to_tensor, parts)
    except (TypeError, ValueError):
        arrays = None
    if arrays is None or any(array.shape.rank == 0 for array in tf.nest.flatten(arrays)):
        raise TypeError(
            "`x`, `y` and `sample_weight` must be arrays of samples or structures of such, or `x` a tf.data.Dataset "
            f"or a function from the epoch to one. Received: {type(x).__name__}. For generators and the like: "
            "tf.data.Dataset.from_generator(...).apply(tf.data.experimental.assert_cardinality(n)), of single samples."
        )
    return arrays


def _checked_count(data: tf.data.Dataset, name: str) -> int:
    count = single_samples(data, name, maker="ct.fit", reason="positions in it follow from that")
    if count == 0:
        raise ValueError(f"{name} must hold at least one sample. Received an empty dataset.")
    unsteady = _keras.unsteady_shuffle_of(data)
    if unsteady is not None:
        raise ValueError(
            f"{name} must give its samples in the same order each time it is read. Received a dataset with "
            f"{unsteady}. Leave out its .shuffle(...), for ct.fit shuffles each epoch anew (`shuffle`, "
            "`seed`), or give it a seed and reshuffle_each_iteration=False."
        )
    return count


def distributed(batches: tf.data.Dataset, model: keras.Model) -> Any:
    """Batches as the model's strategy takes them: each split evenly among the replicas, those of all workers.

    tf.distribute's own split gives the last replicas nothing of a small batch, and the mean over
    nothing is not a number. A batch of fewer samples than there are replicas is left out.
    """
    strategy = model.distribute_strategy
    replicas = strategy.num_replicas_in_sync
    if replicas == 1:
        return batches

    def size_of(*batch: Any) -> Any:
        return tf.shape(tf.nest.flatten(batch)[0], tf.int64)[0]

    def split(first: int, last: int, *batch: Any) -> Any:
        size = size_of(*batch)

        def part(k: int) -> Any:
            rows = slice(size * k // replicas, size * (k + 1) // replicas)
            return tf.nest.map_structure(lambda t: t[rows], batch)

        return tf.data.Dataset.range(first, last).map(part)

    def parts(context: Any) -> tf.data.Dataset:
        """What the replicas of one input pipeline, that of this process, take in turn."""
        own = replicas // context.num_input_pipelines
        first = own * context.input_pipeline_id
        whole = batches.filter(lambda *batch: size_of(*batch) >= replicas)
        return whole.flat_map(functools.partial(split, first, first + own)).prefetch(2 * own)

    return strategy.distribute_datasets_from_function(parts)
