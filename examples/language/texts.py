"""Texts that are on every machine, the sources of installed packages, and a user's own.

Nothing is downloaded.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

PACKAGES = ("absl", "keras", "numpy", "rich", "scipy", "tensorflow", "json", "email", "asyncio", "unittest")
_LEAST = 2_000  # characters of a text


class Texts(NamedTuple):
    """Texts, the number of each one's class, and the classes' names."""

    texts: list[str]
    labels: np.ndarray
    names: tuple[str, ...]


class Split(NamedTuple):
    """Tokens int32 [texts, tokens], 0 for padding, and labels int32 [texts], for training and testing."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    names: tuple[str, ...]


def of_folder(folder: Path) -> Texts:
    """A text a file, in a folder for each class, as `keras.utils.text_dataset_from_directory` reads.

    Raises:
      ValueError: There are fewer than two such folders.
    """
    names = tuple(sorted(sub.name for sub in folder.iterdir() if sub.is_dir())) if folder.is_dir() else ()
    if len(names) < 2:
        raise ValueError(
            f"--data must be a folder with a folder of text files for each of two classes or more. Received: {folder}."
        )
    files = [(file, label) for label, name in enumerate(names) for file in sorted((folder / name).glob("*"))]
    texts = [file.read_text(encoding="utf-8", errors="replace") for file, _ in files]
    return Texts(texts, np.array([label for _, label in files]), names)


def of_packages(packages: Sequence[str] = PACKAGES, most: int = 150) -> Texts:
    """Modules of installed packages: which package a module is from is to be told.

    Left out are imports, comments and each line that names the package.

    Args:
      packages: Names; those that are not installed are left out.
      most: Modules of each.
    """
    texts: list[str] = []
    labels: list[int] = []
    found = [name for name in packages if (spec := find_spec(name)) and spec.origin]
    for label, name in enumerate(found):
        of_one = list(_modules(name, most))
        texts += of_one
        labels += [label] * len(of_one)
    return Texts(texts, np.array(labels), tuple(found))


def _modules(package: str, most: int) -> Iterator[str]:
    spec = find_spec(package)
    assert spec is not None and spec.origin is not None
    count = 0
    for file in sorted(Path(spec.origin).parent.rglob("*.py")):
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        said = [line for line in lines if package not in line.lower() and not _is_giveaway(line)]
        text = "\n".join(said)
        if len(text) >= _LEAST:
            yield text
            count += 1
        if count == most:
            return


def _is_giveaway(line: str) -> bool:
    return line.lstrip().startswith(("import ", "from ", "#"))


def standard_library() -> Iterator[str]:
    """Modules of Python's standard library, in the order of their paths."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    for file in sorted(folder.rglob("*.py")):
        if "site-packages" not in file.parts:
            yield file.read_text(encoding="utf-8", errors="replace")


def split(texts: Texts, tokenizer: bytes, tokens: int, train: int, test: int) -> Split:
    """The first tokens of each text; the same texts for training and testing in each run.

    Args:
      texts: All of them.
      tokenizer: JSON of a `tokenizers.Tokenizer`.
      tokens: Of each text; shorter ones are padded.
      train: Texts to train with, at most three quarters of all.
      test: To test with, at most.
    """
    from tokenizers import Tokenizer

    reader = Tokenizer.from_str(tokenizer.decode())
    reader.enable_truncation(tokens)
    reader.enable_padding(length=tokens)
    order = np.random.default_rng(0).permutation(len(texts.texts))
    edge = len(order) * 3 // 4
    chosen = order[:edge][:train], order[edge:][:test]
    x, x_test = (
        np.array([code.ids for code in reader.encode_batch([texts.texts[i] for i in part])], np.int32)
        for part in chosen
    )
    y, y_test = (texts.labels[part].astype(np.int32) for part in chosen)
    return Split(x, y, x_test, y_test, texts.names)
