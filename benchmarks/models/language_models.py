"""Peak memory, time and gradient error of keras-hub's language models, plain and compressed, inside `Model.fit`.

    # keras-hub's dependencies bring `tensorflow`, which is not wanted beside tensorflow-cpu.
    pip install --no-deps keras-hub; pip install regex tokenizers
    python benchmarks/models/language_models.py --out language_models.jsonl

Small configurations: 6 blocks of width 192, 8 x 256 tokens, vocabulary 500 unless said (T5 and Whisper have
3 + 3 blocks). "GemmaCausalLM" and "GPT2CausalLM" are keras-hub's tasks with their own loss, accuracy, weights
of tokens and a head that is the embedding; "MiniLM" is a classifier of texts of 6 blocks of width 384, and
"MiniLM-dropout" the same with dropout 0.1; "blocks" are six pre-norm transformer blocks written with
TensorFlow's own operations, 16 x 256 x 192; "long" are six causal blocks of Keras' layers of width 192, for
long sequences. "DPO" and "distillation" train a Gemma beside a frozen one.

Each variant trains in a child process of its own. The peak is the highest of all steps, the first included,
over the level before it; under --xla what the compiler plans, since an allocator's chunk may be larger by up to
128 MB. The step is the median of all but the first five, or the first half. With --turns plain and compressed
are measured in turns: the highest peaks, and the median of the steps' ratios. The error of the gradient is that
of one step from the same weights and batch, relative to each weight's gradient: median and largest over the
weights. Every measurement adds a line to the file; those that are there already are not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from hub_models import LANGUAGE_MODELS, MINILM, Sizes, causal_model, language_model, quantize
from two_models import TWO_MODELS, beside_a_frozen_one, mean_of_losses

CAUSAL = ("GemmaCausalLM", "GPT2CausalLM")
LONG = "long"
MODELS = (*LANGUAGE_MODELS, *MINILM, *CAUSAL, *TWO_MODELS, "blocks", LONG)
VARIANTS = ("plain", "compressed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--policy", default="float32", help="of keras.config.set_dtype_policy")
    parser.add_argument("--lora", action="store_true", help="train rank-4 updates of frozen matrices alone")
    parser.add_argument(
        "--quantized",
        choices=("int8", "int4", "float8"),
        help="all matrices; int8 and int4 with --lora, float8 without",
    )
    parser.add_argument("--xla", action="store_true")
    parser.add_argument("--vocabulary", type=int, default=Sizes().vocabulary)
    parser.add_argument("--batch", type=int, default=Sizes().batch)
    parser.add_argument("--tokens", type=int, default=Sizes().tokens)
    parser.add_argument("--accuracy", action="store_true", help="compile with that metric")
    parser.add_argument("--out", type=Path, default=Path("language_models.jsonl"))
    parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.variant:
        print(json.dumps(measure(options.models[0], options.variant, options)))
        return 0
    failed = False
    for name in options.models:
        for turn in range(options.turns):
            for variant in VARIANTS:
                if key(name, variant, turn, options) not in measured(options.out):
                    failed |= not run(name, variant, turn, options)
    print(table(options))
    return int(failed)


def key(name: str, variant: str, turn: int, options: argparse.Namespace) -> tuple:
    sizes = options.vocabulary, options.batch, options.tokens
    found = (name, variant, turn, options.policy, options.lora, options.xla, *sizes, options.accuracy)
    return found if options.quantized is None else (*found, options.quantized)


def measured(path: Path) -> dict[tuple, dict]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {tuple(entry["key"]): entry for entry in map(json.loads, lines)}


def run(name: str, variant: str, turn: int, options: argparse.Namespace) -> bool:
    command = [sys.executable, __file__, "--models", name, "--variant", variant, "--policy", options.policy]
    for flag in ("steps", "vocabulary", "batch", "tokens"):
        command += [f"--{flag}", str(getattr(options, flag))]
    command += [] if options.quantized is None else ["--quantized", options.quantized]
    command += [f"--{flag}" for flag in ("lora", "xla", "accuracy") if getattr(options, flag)]
    return add_line(options.out, key(name, variant, turn, options), command)


def add_line(path: Path, of: tuple, command: list[str]) -> bool:
    """Adds to a file what a child process printed last, with its key; whether there was something."""
    print(f"{of[0]}, {of[1]}", file=sys.stderr, flush=True)
    child = subprocess.run(command, capture_output=True, text=True)
    if child.returncode:
        print(child.stderr[-2000:], file=sys.stderr)
        return False
    entry = {"key": of, **json.loads(child.stdout.splitlines()[-1])}
    with path.open("a") as file:
        file.write(json.dumps(entry) + "\n")
    return True


def table(options: argparse.Namespace) -> str:
    found = measured(options.out)
    rows = [
        "| model | peak plain | compressed | plain / compressed | step compressed / plain | gradient error |"
    ]
    rows.append("|---|---|---|---|---|---|")
    for name in options.models:
        turns = [
            [found.get(key(name, variant, turn, options)) for variant in VARIANTS]
            for turn in range(options.turns)
        ]
        pairs = [(plain, ours) for plain, ours in turns if plain and ours]
        if pairs:
            peaks = [max(entry["peak_bytes"] for entry in of_one) / 1e6 for of_one in zip(*pairs)]
            step = statistics.median(ours["step_s"] / plain["step_s"] for plain, ours in pairs)
            if options.xla:  # what the compiler plans
                peaks = [of_one[0]["planned_bytes"] / 1e6 for of_one in zip(*pairs)]
            found_error = pairs[0][1]["error"]
            error = "" if found_error is None else "{:.1%} ({:.1%})".format(*found_error)
            rows.append(
                f"| {name} | {peaks[0]:.0f} MB | {peaks[1]:.0f} MB | {peaks[0] / peaks[1]:.1f} "
                f"| {step:.2f} | {error} |"
            )
    return "\n".join(rows)


def measure(name: str, variant: str, options: argparse.Namespace) -> dict[str, Any]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import numpy as np
    import tensorflow as tf
    from tensorflow import keras

    import tf_comptrain as ct

    keras.config.set_dtype_policy(options.policy)
    keras.utils.set_random_seed(0)
    sizes = Sizes(options.batch, options.tokens, options.vocabulary)
    model, x, y = make(name, sizes, options.lora and options.quantized is None)
    if options.quantized is not None:
        quantize(model, options.quantized, options.lora)
    sparse = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loss = mean_of_losses if name in TWO_MODELS else sparse
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    metrics = {"weighted_metrics" if name in CAUSAL else "metrics": [accuracy]}
    model.compile(
        keras.optimizers.SGD(0.01),  # with 0.1 the blocks diverge
        loss,
        jit_compile=options.xla,
        **(metrics if options.accuracy or name in CAUSAL else {}),
    )
    weights = np.ones(y.shape, "float32") if name in CAUSAL else None
    first = tf.nest.map_structure(lambda a: tf.constant(a[: len(y) // 6]), (x, y))
    plain = None
    if variant == "compressed":
        if not options.xla:
            plain = gradients(model, *first)
        ct.compress_model(model)
    error = None if plain is None else errors(gradients(model, *first), plain)
    found = meter(model, x, y, len(y) // 6, options.steps, options.xla, weights)
    return {**found, "error": error}


def meter(
    model: Any, x: Any, y: Any, batch: int, steps: int, xla: bool, sample_weight: Any = None
) -> dict[str, Any]:
    """Of steps of `fit`: bytes planned by XLA, the highest peak, the median time, and the first epoch's loss."""
    import tensorflow as tf
    from tensorflow import keras

    import tf_comptrain as ct

    peaks: list[int] = []
    seconds: list[float] = []

    class Meter(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            tf.config.experimental.reset_memory_stats("CPU:0")
            self.level = tf.config.experimental.get_memory_info("CPU:0")["current"]
            self.began = time.perf_counter()

        def on_train_batch_end(self, batch, logs=None):
            seconds.append(time.perf_counter() - self.began)
            peaks.append(tf.config.experimental.get_memory_info("CPU:0")["peak"] - self.level)
            if len(peaks) == steps:
                self.model.stop_training = True

    how = {"batch_size": batch, "epochs": steps, "shuffle": False, "verbose": 0, "callbacks": [Meter()]}
    history = model.fit(x, y, sample_weight=sample_weight, **how)
    planned = None
    if xla:
        first = tf.nest.map_structure(lambda a: a[:batch], (x, y))
        planned = ct.memory.memory_analysis(model, *first).temporary_bytes
    return {
        "planned_bytes": planned,
        "peak_bytes": max(peaks[:steps]),
        "step_s": statistics.median(seconds[min(5, steps // 2) : steps]),
        "loss": history.history["loss"][0],
    }


def gradients(model: Any, x: Any, y: Any) -> list:
    """One step's, as arrays; with the random numbers of the step after this one put back."""
    import tensorflow as tf

    before = [v.numpy() for v in model.non_trainable_variables]
    weights = [v.value for v in model.trainable_variables]

    @tf.function(autograph=False)
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x=x, y=y, y_pred=model(x, training=True))
        found = tape.gradient(loss, weights)
        return [tf.convert_to_tensor(g) for g in found if g is not None]

    result = [g.numpy().astype("float64") for g in step(x, y)]
    for variable, value in zip(model.non_trainable_variables, before):
        variable.assign(value)
    return result


def errors(ours: list, plain: list) -> tuple[float, float]:
    import numpy as np

    norms = [(np.linalg.norm(a - b), np.linalg.norm(b)) for a, b in zip(ours, plain)]
    relative = [error / norm for error, norm in norms if norm > 0]
    return float(np.median(relative)), float(max(relative))


def make(name: str, sizes: Sizes, lora: bool) -> tuple:
    """(model, x, y) with six batches."""
    import numpy as np
    from tensorflow import keras

    if name == "blocks":
        rng = np.random.default_rng(0)
        inputs = h = keras.Input((sizes.tokens, sizes.width))
        for k in range(6):
            h = raw_block(sizes.width)(name=f"block{k}")(h)
        model = keras.Model(inputs, keras.layers.Dense(100, dtype="float32")(h[:, 0]))
        x = rng.normal(size=(2 * 6 * sizes.batch, sizes.tokens, sizes.width)).astype("float32")
        return model, x, rng.integers(0, 100, len(x))
    if name == LONG:
        inputs = keras.Input((sizes.tokens,), dtype="int32")
        h = keras.layers.Embedding(sizes.vocabulary, sizes.width)(inputs)
        for _ in range(6):
            h = keras_block(h, sizes.width)
        model = keras.Model(inputs, keras.layers.Dense(sizes.vocabulary, dtype="float32")(h))
        words = np.random.default_rng(0).integers(0, sizes.vocabulary, (2, 6 * sizes.batch, sizes.tokens))
        return model, *words
    if name in TWO_MODELS:
        return beside_a_frozen_one(name, sizes, 6)
    if name in CAUSAL:
        return causal_model(name, sizes, 6, lora)
    return language_model(name, sizes, 6, lora)


def keras_block(x: Any, width: int) -> Any:
    """A causal block of four heads."""
    from tensorflow.keras import layers

    h = layers.LayerNormalization()(x)
    x = layers.Add()([x, layers.MultiHeadAttention(4, width // 4)(h, h, use_causal_mask=True)])
    h = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
    return layers.Add()([x, layers.Dense(width)(h)])


def raw_block(width: int) -> Any:
    import tensorflow as tf
    from tensorflow import keras

    class Block(keras.layers.Layer):
        """Normalization, attention and a product with GELU in TensorFlow's operations."""

        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            dense = keras.layers.Dense
            self.qkv, self.out = dense(3 * width, use_bias=False), dense(width)
            self.up, self.down = dense(4 * width), dense(width)

        def call(self, x):
            q, k, v = tf.split(self.qkv(normalized(x)), 3, -1)
            attention = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / 16.0)
            x = x + self.out(tf.matmul(attention, v))
            return x + self.down(tf.nn.gelu(self.up(normalized(x))))

    def normalized(x):
        return x * tf.math.rsqrt(tf.reduce_mean(x * x, -1, keepdims=True) + 1e-6)

    return Block


if __name__ == "__main__":
    sys.exit(main())
