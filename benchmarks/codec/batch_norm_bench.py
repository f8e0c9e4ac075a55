"""Gradient of batch normalization from the stream, beside decoding it first.

    python benchmarks/codec/batch_norm_bench.py [float32|bfloat16|float16]

Both run in turns in one graph each, with dy made in the graph so that dx may take its memory. Prints
medians of process CPU time in ms on one thread, less the time to make dy, and their ratio.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import tensorflow as tf

from tf_comptrain import codecs

SHAPES = [(8, 112, 112, 64), (8, 56, 56, 256), (8, 14, 14, 1024), (8, 112, 112, 144)]
REPEATS = 25


def decode_first(codec, stream, dy, gamma, mean, inv_std):
    """By TensorFlow's own kernel, whose second reserve is the variance that epsilon is added to."""
    return tf.raw_ops.FusedBatchNormGradV3(
        y_backprop=dy,
        x=codec.decompress(stream, tf.shape(dy), dy.dtype, gate=dy),
        scale=gamma,
        reserve_space_1=mean,
        reserve_space_2=1.0 / tf.square(inv_std),
        reserve_space_3=mean,
        epsilon=0.0,
    )[:3]


def steps(shape, dtype):
    random = np.random.default_rng(0)
    plane = codecs.get("plane")
    x, source = (tf.cast(random.normal(size=shape), dtype) for _ in range(2))
    _, stream, _ = plane.compress(x, tf.constant(codecs.State()), relative_bound=0.1, mid_rise=False)
    mean, variance = tf.nn.moments(tf.cast(x, tf.float32), [0, 1, 2])
    rest = (tf.ones(shape[-1]), mean, tf.math.rsqrt(variance + 1e-3))
    factor = tf.Variable(tf.cast(1.5, dtype))

    def step(gradient):
        @tf.function
        def run():
            outputs = gradient(stream, source * factor, *rest)
            return [tf.reduce_max(t[:1]) for t in outputs]

        return run

    return {
        "dy alone": step(lambda stream, dy, *rest: [dy]),
        "decode first": step(lambda *given: decode_first(plane, *given)),
        "from stream": step(plane.batch_norm_gradient),
    }


def main() -> None:
    dtype = tf.as_dtype(sys.argv[1] if len(sys.argv) > 1 else "float32")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    for shape in SHAPES:
        runs = steps(shape, dtype)
        taken: dict[str, list[float]] = {name: [] for name in runs}
        for repeat in range(REPEATS + 1):
            for name, run in runs.items():
                start = time.process_time()
                run()
                if repeat:  # the first one traces
                    taken[name].append(time.process_time() - start)
        dy, first, stream = (1e3 * float(np.median(taken[name])) for name in runs)
        print(
            f"{shape} {dtype.name}: decode first {first - dy:.2f} ms, from stream {stream - dy:.2f} ms, "
            f"ratio {(first - dy) / (stream - dy):.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
