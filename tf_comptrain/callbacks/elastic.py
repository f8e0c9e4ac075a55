"""Datasets whose batch size can change while `fit` runs, without retracing."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_comptrain import _keras, arguments


class ElasticBatch:
    """The batch size of a dataset made by `elastic_batch`, as its attribute `elastic`.

    Attributes:
      first: The size that it was made with, which learning rates refer to.

    Args:
      size: Samples per batch.
      samples: Samples in the dataset.
      drop_remainder: Whether an incomplete last batch is left out.
    """

    def __init__(self, size: int, samples: int, drop_remainder: bool):
        self.first = size
        self.samples = samples
        self.drop_remainder = drop_remainder
        with tf.init_scope(), tf.device("CPU:0"):
            self.variable = tf.Variable(size, dtype=tf.int64, trainable=False, name="comptrain_batch_size")

    @property
    def size(self) -> int:
        """Samples per batch, over all replicas."""
        return int(self.variable.numpy())

    @property
    def steps(self) -> int:
        """Batches in an epoch of this size."""
        return self.steps_in(self.samples)

    def steps_in(self, samples: int) -> int:
        """Batches of this size in so many samples."""
        return samples // self.size if self.drop_remainder else -(-samples // self.size)

    def resize(self, size: int) -> None:
        """Sets the batch size from the next step on.

        In the middle of an epoch of `model.fit` the dataset is read anew, for as many samples as were left: an
        epoch has its number of samples then, of which some may have been seen before.

        Raises:
          ValueError: Not a positive integer, or no batch at all would be left.
        """
        self.variable.assign(_checked_size(size, self.samples, self.drop_remainder))


def elastic_batch(dataset: Any, batch_size: int, drop_remainder: bool = False) -> tf.data.Dataset:
    """Batches a dataset so that `AdaptiveBatchSize` can change the batch size.

    A change takes effect with the next step and retraces nothing. The result knows its number of
    batches at every size, so that `fit` takes exactly that many steps. It is prefetched already:
    pass it to `fit` as it is, since a further `map` or `prefetch` makes a dataset that does not know
    its length. Shuffle and map before batching.

    Args:
      dataset: A tf.data.Dataset of single samples, in the structure that `fit` takes, (x, y) mostly;
        of known length. Or a tuple of arrays, (x, y) or (x, y, sample_weight), x and y arrays or
        dicts of them, whose samples are shuffled anew in each epoch.
      batch_size: Samples per batch to begin with, over all replicas.
      drop_remainder: Whether an incomplete last batch is left out.

    Returns:
      A tf.data.Dataset with the attribute `elastic`, an `ElasticBatch`.

    Raises:
      TypeError: Neither a tf.data.Dataset nor a tuple.
      ValueError: Arrays of different lengths; a dataset that is batched already, infinite or of
        unknown length; a bad size.
      RuntimeError: Keras 2.

    Examples:
      >>> data = ct.elastic_batch((images, labels), batch_size=64)
      >>> ct.compress_model(model)
      >>> model.fit(data, epochs=20, callbacks=[ct.AdaptiveBatchSize(limit_bytes=2_000_000_000)])
    """
    take = None
    if isinstance(dataset, tuple):
        dataset, take = _rows_of(dataset)
    elif not isinstance(dataset, tf.data.Dataset):
        raise TypeError(
            "`dataset` must be a tf.data.Dataset of single samples or a tuple of arrays, (x, y). "
            f"Received: {type(dataset).__name__}."
        )
    samples = single_samples(
        dataset, "`dataset`", maker="elastic_batch", reason="the steps of an epoch follow from it"
    )
    elastic = ElasticBatch(_checked_size(batch_size, samples, drop_remainder), samples, drop_remainder)

    def batches(_: Any) -> Any:
        batches = dataset.batch(elastic.variable, drop_remainder=drop_remainder)
        return batches if take is None else batches.map(take)

    _keras.follow_cardinality()
    batched = tf.data.Dataset.range(1).flat_map(batches).prefetch(tf.data.AUTOTUNE)
    batched.elastic = elastic
    # tf.data cannot know it: the size is a variable.
    batched.cardinality = lambda: tf.constant(elastic.steps, tf.int64)
    return batched


def _rows_of(arrays: tuple) -> tuple[tf.data.Dataset, Any]:
    """A dataset of row numbers in random order, and the function from some of them to those rows."""
    with tf.device("CPU:0"):
        arrays = tf.nest.map_structure(tf.convert_to_tensor, arrays)
    lengths = {len(array) for array in tf.nest.flatten(arrays)}
    if len(lengths) != 1:
        raise ValueError(
            f"`dataset` as arrays must hold the same number of samples in each. Received lengths {sorted(lengths)}."
        )
    count = lengths.pop()

    def take(rows: tf.Tensor) -> Any:
        return tf.nest.map_structure(lambda array: tf.gather(array, rows), arrays)

    return tf.data.Dataset.range(count).shuffle(max(count, 1)), take


def single_samples(dataset: tf.data.Dataset, name: str, maker: str, reason: str) -> int:
    """How many samples a dataset holds that `maker` makes batches of.

    Args:
      dataset: Of single samples, of known length.
      name: Of the argument, for what an error says; so are `maker` and `reason`, why its length must be known.

    Raises:
      ValueError: Another dataset.
    """
    batching = "elastic_batch" if hasattr(dataset, "elastic") else _keras.batching_of(dataset)
    if batching is not None:
        raise ValueError(
            f"{name} must be a dataset of single samples: {maker} makes the batches. Received a dataset that is "
            f"batched already ({batching}). Leave out its .batch(...), or put .unbatch() behind it."
        )
    count = int(dataset.cardinality())
    if count < 0:
        length = "infinite" if count == tf.data.INFINITE_CARDINALITY else "unknown"
        raise ValueError(
            f"{name} must be a dataset of known, finite length, for {reason}. Received a dataset of {length} "
            "length. State it with dataset.apply(tf.data.experimental.assert_cardinality(n)), and leave out "
            ".repeat()."
        )
    return count


def _checked_size(size: int, samples: int, drop_remainder: bool) -> int:
    size = arguments.whole("batch_size", size)
    if drop_remainder and size > samples:
        raise ValueError(
            f"`batch_size` must be at most the dataset's {samples} samples with drop_remainder=True: no "
            f"batch would be left. Received: {size}."
        )
    return size
