"""Random models out of blocks, and how far their gradients are from plain ones; by hand:

python tests/graph/random_models.py --models 500 --seed 0
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from model_blocks import BLOCKS, CHANNELS, STEPS
from tensorflow import keras

import tf_comptrain as ct

BATCH, WIDER = 8, 8
JOINS = ("chain", "residual", "product", "beside")
EXACT = 1e-5  # of the norm of all gradients: what is made again may round otherwise
BOUND = 0.25
# Of the largest norm of a weight's gradient. One that is smaller is mostly a sum of terms that cancel, as that of a
# bias before a normalization: its error may be as large as that of one of this size.
NOISE = 0.1
X = np.random.default_rng(0).normal(size=(BATCH, STEPS, CHANNELS)).astype("float32")
# Gradients that are alike in all samples would cancel in those of scales.
SIGNS = np.random.default_rng(1).normal(size=(BATCH, WIDER * STEPS * CHANNELS)).astype("float32")


class Spec(NamedTuple):
    """A model: names of blocks, and for each how it is joined to what is before it."""

    blocks: tuple[str, ...]
    joins: tuple[str, ...]
    seed: int


class RandomModel(keras.Model):
    """Blocks in a row, each behind a matrix of weights, with sums, products and shared tensors between them."""

    def __init__(self, spec: Spec):
        super().__init__()
        keras.utils.set_random_seed(spec.seed)
        self.spec = spec
        self.mixes = [keras.layers.Dense(CHANNELS) for _ in spec.blocks]
        self.parts = [BLOCKS[name].make() for name in spec.blocks]
        self.last = keras.layers.Dense(CHANNELS)
        self(X)
        for variable in self.trainable_variables:  # no bias of zero, no scale of one
            noise = np.random.default_rng(spec.seed).normal(size=variable.shape)
            variable.assign(variable + 0.1 * noise.astype("float32"))

    def call(self, x: tf.Tensor, training: bool = True) -> tf.Tensor:
        for mix, part, join in zip(self.mixes, self.parts, self.spec.joins):
            y = mix(x)
            made = settled(part(y, training=training) if takes_training(part) else part(y))
            if join == "residual":
                made = x + made
            elif join == "product":
                made = tf.tanh(x) * made
            elif join == "beside":
                made = tf.nn.relu(y) + made
            x = made
        return self.last(x)


def takes_training(part: object) -> bool:
    return isinstance(part, keras.layers.Layer) and part._call_has_training_arg


def settled(made: tf.Tensor) -> tf.Tensor:
    """Of the shape of the input of a block, and of the order of one."""
    flat = tf.reshape(made, [BATCH, -1])
    wanted = STEPS * CHANNELS
    flat = tf.tile(flat, [1, -(-wanted // flat.shape[1])])[:, :wanted]
    flat *= tf.math.rsqrt(tf.reduce_mean(tf.square(flat)) + 1e-6)
    return tf.reshape(flat, [BATCH, STEPS, CHANNELS])


def gradients(model: RandomModel, before: list, jit: bool) -> list[np.ndarray]:
    for variable, value in zip(model.variables, before):
        variable.assign(value)

    @tf.function(autograph=False, jit_compile=jit)
    def step(x: tf.Tensor) -> list:
        with ct.training_scope(), tf.GradientTape() as tape:
            out = model(x, training=True)
            # More is made after the last block than it makes: what a step begins with is kept.
            wide = tf.tile(tf.reshape(out, [BATCH, -1]), [1, WIDER])
            loss = tf.reduce_mean(tf.sin(wide) * SIGNS)
        return tape.gradient(loss, model.trainable_variables, unconnected_gradients="zero")

    return [tf.convert_to_tensor(g).numpy() for g in step(X)]


def norm(tensors: list) -> float:
    return float(np.sqrt(sum(np.sum(np.square(t, dtype=np.float64)) for t in tensors)))


def apart(ours: list, plain: list) -> float:
    """Of all gradients together."""
    return norm([a - b for a, b in zip(ours, plain)]) / (norm(plain) + 1e-30)


def worst_weight(ours: list, plain: list) -> float:
    """The largest error of a weight's gradient, relative to its norm or to what is noise."""
    noise = NOISE * max(norm([g]) for g in plain)
    return max(norm([a - b]) / max(norm([b]), noise) for a, b in zip(ours, plain))


def check(spec: Spec, jit: bool) -> list[str]:
    """What is wrong with the gradients of a model; nothing where nothing is."""
    model = RandomModel(spec)
    before = [variable.numpy() for variable in model.variables]
    engine = "XLA" if jit else "executor"
    plain = gradients(model, before, jit)
    if not np.isfinite(norm(plain)) or norm(plain) < 1e-12:
        return []
    wrong = []
    modes: dict[str, dict] = {"default": {}}
    if not jit:  # XLA has no lossless codec: such a model trains as plain Keras
        modes.update({"keep": {"storage": "keep"}, "zvc": {"codec": "zvc"}})
    for mode, how in modes.items():
        ct.compress_model(model, **how)
        try:
            ours = gradients(model, before, jit)
        finally:
            ct.restore_model(model)
        error = worst_weight(ours, plain) if mode == "default" else apart(ours, plain)
        if not error <= {"keep": 0.0, "zvc": EXACT, "default": BOUND}[mode]:
            wrong.append(f"{engine}, {mode}: {error:.2e}")
    return wrong


def drawn(seed: int) -> Spec:
    rng = random.Random(seed)
    count = rng.randint(1, 3)
    return Spec(tuple(rng.choices(list(BLOCKS), k=count)), tuple(rng.choices(JOINS, k=count)), seed)


def lowers(spec: Spec) -> bool:
    return all(BLOCKS[name].lowers for name in spec.blocks)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="of the first model; the others count on")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no model after so long")
    parser.add_argument("--xla-every", type=int, default=1, help="compile every so many models by XLA too")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--each-block", action="store_true", help="a model of each block alone instead")
    options = parser.parse_args()
    specs = [drawn(options.seed + k) for k in range(options.models)]
    if options.each_block:
        specs = [Spec((name,), ("chain",), options.seed) for name in BLOCKS][options.first :]
    start, failed, done = time.monotonic(), 0, 0
    for number, spec in enumerate(specs):
        if time.monotonic() - start > options.seconds:
            break
        wrong: list[str] = []
        for jit in (False, True) if lowers(spec) and number % options.xla_every == 0 else (False,):
            try:
                wrong += check(spec, jit)
            except Exception as error:
                wrong.append(f"{'XLA' if jit else 'executor'}: {type(error).__name__}: {str(error)[:200]}")
        done += 1
        failed += bool(wrong)
        for line in wrong:
            print(spec.seed, "+".join(spec.blocks), "+".join(spec.joins), line, sep="\t", flush=True)
        keras.backend.clear_session()
    print(f"{done} models of {len(BLOCKS)} blocks, {failed} with wrong gradients", file=sys.stderr)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
