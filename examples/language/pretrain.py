"""A decoder like Gemma, with 32,000 words, trained from nothing on the sources of Python's standard library.

pip install --no-deps keras-hub; pip install regex tokenizers
python examples/language/pretrain.py                          # plain and compressed
python examples/language/pretrain.py --data book.txt --tokens 512
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable
from pathlib import Path

import keras
import numpy as np
import texts
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import comparison

_HELD_OUT = 0.05  # of the text, its end
_ARMS = ("plain", "compressed")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="a text (Python's standard library)")
    parser.add_argument("--words", type=int, default=32_000, help="of the vocabulary (%(default)s)")
    parser.add_argument("--tokens", type=int, default=256, help="of each sequence (%(default)s)")
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--steps", type=int, default=2000, help="(%(default)s)")
    parser.add_argument("--every", type=int, default=100, help="steps between evaluations (%(default)s)")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--jit", action="store_true", help="compile the step by XLA")
    args = comparison.arguments(parser, "pretrain_out", _ARMS)
    console = Console(width=None if sys.stdout.isatty() else 160)
    app = application(args, console)
    runs = comparison.compare(app, args, console)
    console.print(comparison.table(app, runs, f"{args.blocks} blocks of {args.width}, {args.words} words"))
    console.print(str(comparison.curves(app, runs, args.out / "pretrain.png")))


def application(args: argparse.Namespace, console: Console) -> comparison.Application:
    with console.status("a vocabulary is made"):
        ids, byte_count = tokens_in(args.out, args.data, args.words)
    edge = int(len(ids) * (1 - _HELD_OUT))
    train, test = (sequences(part, args.tokens) for part in (ids[:edge], ids[edge:]))
    part = args.every * args.batch
    if len(train[0]) < part:
        least = part * args.tokens
        raise SystemExit(f"--data must have {least} tokens for --every {args.every}. Received: {len(ids)}.")
    nats_to_bits = len(ids) / byte_count / math.log(2)

    def evaluate(model: keras.Model) -> dict[str, float]:
        loss = model.evaluate(*test, batch_size=args.batch, verbose=0)
        return {"bits a byte": loss * nats_to_bits, "loss": loss}

    epochs = args.steps // args.every
    return comparison.Application(
        lambda _: decoder(args), (train, test), evaluate, False, epochs, args.batch, part
    )


def tokens_in(folder: Path, data: Path | None, words: int) -> tuple[np.ndarray, int]:
    """`tokens_of` a text, which a file of the folder keeps."""
    file = folder / f"tokens-{data.stem if data else 'python'}-{words}.npz"
    if not file.exists():
        text = [data.read_text(encoding="utf-8")] if data else texts.standard_library()
        ids, byte_count = tokens_of(text, words)
        folder.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part.npz")
        np.savez(part, ids=ids, bytes=byte_count)
        part.replace(file)
    with np.load(file) as found:
        return found["ids"], int(found["bytes"])


def tokens_of(text: Iterable[str], words: int) -> tuple[np.ndarray, int]:
    """Numbers of all tokens, of a vocabulary made of the text itself, and how many bytes they stand for."""
    from tokenizers import ByteLevelBPETokenizer

    text = list(text)
    made = ByteLevelBPETokenizer()
    made.train_from_iterator(text, vocab_size=words, show_progress=False)
    ids = np.concatenate([np.array(code.ids, np.int32) for code in made.encode_batch(text)])
    return ids, sum(len(part.encode()) for part in text)


def sequences(ids: np.ndarray, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """[sequences, tokens] tokens, and the one after each."""
    count = (len(ids) - 1) // tokens
    return tuple(ids[start : start + count * tokens].reshape(count, tokens) for start in (0, 1))


def decoder(args: argparse.Namespace) -> keras.Model:
    """[batch, tokens] numbers of tokens -> [batch, tokens, words] logits; the head is the embedding."""
    import keras_hub

    backbone = keras_hub.models.GemmaBackbone(
        vocabulary_size=args.words,
        num_layers=args.blocks,
        num_query_heads=4,
        num_key_value_heads=1,
        hidden_dim=args.width,
        intermediate_dim=4 * args.width,
        head_dim=args.width // 4,
    )
    ids = keras.Input((args.tokens,), dtype="int32")
    h = backbone({"token_ids": ids, "padding_mask": keras.ops.ones_like(ids)})
    model = keras.Model(ids, backbone.token_embedding(h, reverse=True), name="decoder")
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, args.steps, warmup_target=1e-3, warmup_steps=args.steps // 20
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(rate, clipnorm=1.0), loss, jit_compile=args.jit)
    return model


if __name__ == "__main__":
    main()
