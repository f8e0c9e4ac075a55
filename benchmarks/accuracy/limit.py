"""Training under a memory limit: plain at the batch it manages, adaptive from there on.

    python benchmarks/accuracy/limit.py CIFAR10.npz [--network resnet20] [--batch 64] [--seeds 1 2 3]

The limit is what the plain network needs at that batch, measured. The adaptive run is given the limit and
begins at the same batch: bounds by `AdaptiveErrorBound`, batch by `AdaptiveBatchSize`.
"""

from __future__ import annotations

import argparse
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import data
import keras
import networks
import tensorflow as tf

import tf_comptrain as ct


def compiled(network: str, seed: int, rate: float) -> keras.Model:
    keras.utils.set_random_seed(seed)
    model = networks.BUILDERS[network]()
    model.compile(
        keras.optimizers.Adam(rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,
    )
    return model


class Seconds(keras.callbacks.Callback):
    """CPU seconds of the training steps of each epoch."""

    def on_train_begin(self, logs=None):
        self.epochs: list[float] = []

    def on_epoch_begin(self, epoch, logs=None):
        self.sum = 0.0

    def on_train_batch_begin(self, batch, logs=None):
        self.start = time.process_time()

    def on_train_batch_end(self, batch, logs=None):
        self.sum += time.process_time() - self.start

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(self.sum)


def train(model: keras.Model, images: data.Images, batch: int, epochs: int, more: list) -> tuple:
    """(history, CPU seconds of the last epoch's steps)"""
    # Sample by sample, as bytes: float arrays in the allocator would be a large part of what it counts.
    samples = tf.data.Dataset.from_tensor_slices((images.x, images.y)).shuffle(len(images.x))
    scaled = samples.map(lambda x, y: ((tf.cast(x, tf.float32) - 120.0) / 64.0, y))
    batches = ct.elastic_batch(scaled, batch, drop_remainder=True)
    seconds = Seconds()
    history = model.fit(batches, epochs=epochs, verbose=0, callbacks=[*more, seconds]).history
    return history, seconds.epochs[-1], batches.elastic.size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cifar", help="CIFAR-10 as .npz; see data.load")
    parser.add_argument("--network", choices=networks.BUILDERS, default="resnet20")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--lr-scaling", default="sqrt")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    args = parser.parse_args()
    images = data.load(args.cifar, args.images, 2000)
    test = (data.scaled(images.x_test), images.y_test)
    for seed in args.seeds:
        plain = compiled(args.network, seed, args.rate)
        memory = ct.MemoryLogger()
        history, plain_s, _ = train(plain, images, args.batch, args.epochs, [memory])
        _, plain_accuracy = plain.evaluate(*test, batch_size=500, verbose=0)
        limit = max(record.peak_bytes for record in memory.records)
        del plain, history
        tf.keras.backend.clear_session()
        model = compiled(args.network, seed, args.rate)
        ct.compress_model(model)
        tuner = ct.AdaptiveBatchSize(memory_limit=limit, lr_scaling=args.lr_scaling)
        log = ct.MemoryLogger()
        history, adaptive_s, batch = train(
            model, images, args.batch, args.epochs, [ct.AdaptiveErrorBound(), tuner, log]
        )
        _, accuracy = model.evaluate(*test, batch_size=500, verbose=0)
        print(
            f"seed {seed}, limit {limit / 1e6:.1f} MB: plain batch {args.batch}, accuracy {plain_accuracy:.2%}; "
            f"adaptive batches {history['batch_size']}, ends at {batch} = {batch / args.batch:.1f} b, peak "
            f"{max(r.peak_bytes for r in log.records) / 1e6:.1f} MB, accuracy {accuracy:.2%}, samples per CPU "
            f"second {plain_s / adaptive_s:.2f} times plain's",
            flush=True,
        )


if __name__ == "__main__":
    main()
