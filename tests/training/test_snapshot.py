"""Checkpoint files: written whole or not at all, and every other file refused with one error."""

import contextlib
import errno
import hashlib
import json
import os
import pathlib
import random
import re
import resource

import numpy as np
import pytest
from models import compiled
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.training import checkpoint_file, snapshot

FILE = "training.ckpt"
REFUSED = rf"{FILE} is not a checkpoint of ct.fit: .+\. Remove it to begin anew\."


def network():
    keras.utils.set_random_seed(0)
    return compiled(
        keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="dense")], name="network")
    )


def fit(model, folder, **kwargs):
    x, y = np.random.default_rng(0).normal(size=(8, 3)).astype("float32"), np.arange(8) % 2
    stop = keras.callbacks.EarlyStopping("loss", min_delta=0.1, patience=9)
    settings = {"batch_size": 4, "callbacks": [stop], "verbose": 0, "epochs": 1, **kwargs}
    return ct.fit(model, x, y, checkpoint_dir=folder, **settings)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """The content of a checkpoint."""
    folder = tmp_path_factory.mktemp("good")
    fit(network(), folder)
    return (folder / FILE).read_bytes()


def refuses(folder, content):
    (folder / FILE).write_bytes(content)
    with pytest.raises(ValueError, match=REFUSED):
        snapshot.read(folder)


def test_every_byte_counts(tmp_path, good):
    (tmp_path / FILE).write_bytes(good)
    assert snapshot.read(tmp_path) is not None
    for at in range(len(good)):
        refuses(tmp_path, good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :])


def test_every_length_counts(tmp_path, good):
    for length in range(0, len(good), 5):
        refuses(tmp_path, good[:length])
    for more in (b"\0", b"more", good):
        refuses(tmp_path, good + more)


def test_random_bytes(tmp_path, good):
    rng = random.Random(0)
    for _ in range(500):
        begin = good[: rng.choice([0, 6, 8, 24, 200])]
        refuses(tmp_path, begin + rng.randbytes(rng.randrange(len(good))))


def sealed(text, arrays=b"", version=3):
    """A file with the right lengths and digest."""
    head = b"ct.fit" + version.to_bytes(2, "little")
    head += (24 + len(text) + len(arrays) + 32).to_bytes(8, "little") + len(text).to_bytes(8, "little")
    return head + text + arrays + hashlib.sha256(head + text + arrays).digest()


def parts(good):
    """JSON and arrays of a checkpoint."""
    end = 24 + int.from_bytes(good[16:24], "little")
    return json.loads(good[24:end]), good[end:-32]


def places(value, path=()):
    """Every place in nested JSON."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def changed(value, path, new):
    """Nested JSON with another value at a place; without the place where that is `...`."""
    if not path:
        return new
    copy = value.copy()
    if new is ... and len(path) == 1:
        del copy[path[0]]
    else:
        copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


@pytest.mark.parametrize(
    "new", [..., None, -1, 0.5, 2**70, "x", [], {}, [[]], {"at": 0, "dtype": "<f4", "shape": [1]}], ids=str
)
def test_nonsense_at_any_place_is_refused_or_read(tmp_path, good, new):
    """Of state and arguments of callbacks other values are as good; nothing else may be raised."""
    meta, arrays = parts(good)
    read = 0
    for path in places(meta):
        if path or new is not ...:
            (tmp_path / FILE).write_bytes(sealed(json.dumps(changed(meta, path, new)).encode(), arrays))
            try:
                read += snapshot.read(tmp_path) is not None
            except ValueError as error:
                assert re.search(REFUSED, str(error))
    assert read < len(list(places(meta))) / 2


PARTS = """
    about, about model, about data, about batch_size, about callbacks, about callbacks 0 0, about callbacks 0 1,
    about events, about model variables, about model variables 0, about model compressed,
    place, place 0, place 1, place 2, place 3, place 4, place 5,
    variables, variables 0, variables 0 at, variables 0 dtype, variables 0 shape, variables 0 shape 0,
    bound_scale, callbacks, callbacks 0 0, callbacks 0 1
"""


@pytest.mark.parametrize("new", [..., -1, 0.5, 2**63, [{}]], ids=str)
@pytest.mark.parametrize("place", [place.strip() for place in PARTS.split(",")])
def test_nonsense_in_the_structure_is_refused(tmp_path, good, place, new):
    path = tuple(int(part) if part.isdigit() else part for part in place.split())
    meta, arrays = parts(good)
    refuses(tmp_path, sealed(json.dumps(changed(meta, path, new)).encode(), arrays))


@pytest.mark.parametrize("step, samples", [(0, 9), (5, 4)])
def test_a_position_beyond_the_data(tmp_path, good, step, samples):
    meta, arrays = parts(good)
    assert meta["about"]["data"]["samples"] == 8
    meta["place"][1:3] = step, samples
    refuses(tmp_path, sealed(json.dumps(meta).encode(), arrays))


@pytest.mark.parametrize(
    "shape, dtype",
    [
        ([3, 3], "<f4"),
        ([-3, -2], "<f4"),
        ([6], "<f4"),
        ([3, 2], "<i4"),
        ([3, 2], "<f8"),
        ([3, 2], "O"),
        ([3, 2], "f4,f4"),
    ]
    + [([3, 2], text) for text in ("", "(", "x", "<U0", "|V4", None, [["a", "<f4"]])]
    + [([0, 10**30], "<f4"), ([10**30], "<f4"), ([3, 2.0], "<f4"), (["3", 2], "<f4"), (3, "<f4")],
    ids=str,
)
def test_arrays_of_another_shape_or_type(tmp_path, good, shape, dtype):
    meta, arrays = parts(good)
    index = next(i for i, array in enumerate(meta["variables"]) if array["shape"] == [3, 2])
    meta["variables"][index].update(shape=shape, dtype=dtype)
    refuses(tmp_path, sealed(json.dumps(meta).encode(), arrays))


@pytest.mark.parametrize(
    "code",
    [{"other": 1}, {"dict": 3}, {"dict": [[[1], 2]]}, {"dict": [[1, 2, 3]]}, {"tuple": {}}, {"name": ["a"]}]
    + [{"named": ["a", "b"], "items": 3}, {"array": 1, "scalar": False}, {"tensor": [1]}],
    ids=str,
)
def test_callbacks_state_that_is_no_plain_data(tmp_path, good, code):
    meta, arrays = parts(good)
    meta["callbacks"][0][1]["best"] = code
    refuses(tmp_path, sealed(json.dumps(meta).encode(), arrays))


@pytest.mark.parametrize("depth", [10**3, 10**4, 10**5])
@pytest.mark.parametrize("begin, end", [(b"[", b"]"), (b'{"tuple":[', b"]}"), (b'{"a":', b"}")])
def test_deep_nesting(tmp_path, good, depth, begin, end):
    deep = begin * depth + b"1" + end * depth
    refuses(tmp_path, sealed(deep))
    meta, arrays = parts(good)
    meta["callbacks"][0][1]["best"] = "here"
    refuses(tmp_path, sealed(json.dumps(meta).encode().replace(b'"here"', deep), arrays))


@pytest.mark.parametrize("text", [b"", b"{", b"null", b"\xff\xfe", b"9" * 10**4, b'{"meta": NaN}', b"[" * 9])
def test_no_json(tmp_path, text):
    refuses(tmp_path, sealed(text))


def test_other_files(tmp_path, good):
    meta, arrays = parts(good)
    refuses(tmp_path, sealed(json.dumps(meta).encode(), arrays, version=4))
    np.savez(tmp_path / "a.npz", meta=np.zeros(3))
    refuses(tmp_path, (tmp_path / "a.npz").read_bytes())
    for make in (os.mkdir, os.mkfifo):
        (tmp_path / FILE).unlink()
        make(tmp_path / FILE)
        with pytest.raises(ValueError, match=REFUSED):
            snapshot.read(tmp_path)
        if make is os.mkdir:
            (tmp_path / FILE).rmdir()
            (tmp_path / FILE).touch()


def test_fit_refuses_before_anything_is_changed(tmp_path, good):
    (tmp_path / FILE).write_bytes(good[:-1])
    model = network()
    before = model.get_weights()
    with pytest.raises(ValueError, match=REFUSED):
        fit(model, tmp_path)
    np.testing.assert_array_equal(model.get_weights()[0], before[0])
    assert not model.optimizer.built and (tmp_path / FILE).read_bytes() == good[:-1]


def test_functions_that_are_gone_are_named(tmp_path, good):
    meta, arrays = parts(good)
    meta["callbacks"][0][1]["monitor_op"] = {"name": ["keras.src.ops.numpy", "lesser"]}
    (tmp_path / FILE).write_bytes(sealed(json.dumps(meta).encode(), arrays))
    with pytest.raises(
        ValueError, match="`monitor_op`: keras.src.ops.numpy.lesser is not there. Define or import it"
    ):
        fit(network(), tmp_path, epochs=2)


def test_a_planted_link_is_not_followed(tmp_path):
    victim = tmp_path / "victim.txt"
    victim.write_text("precious")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / f"{FILE}.tmp").symlink_to(victim)
    fit(network(), folder)
    assert victim.read_text() == "precious"
    assert {path.name for path in folder.iterdir()} == {FILE, "training.lock"} and not (
        folder / FILE
    ).is_symlink()


def test_a_link_planted_at_the_last_moment_is_not_followed(tmp_path, monkeypatch):
    """Between the removal of what lies there and the making of the file."""
    victim, path = tmp_path / "victim.txt", tmp_path / "file"
    victim.write_text("precious")
    remove = pathlib.Path.unlink

    def plant(name, missing_ok=False):
        remove(name, missing_ok)
        os.symlink(victim, name)

    monkeypatch.setattr(pathlib.Path, "unlink", plant)
    with pytest.raises(FileExistsError, match="could not write its checkpoint"):
        checkpoint_file.write(path, {})
    assert victim.read_text() == "precious"


@contextlib.contextmanager
def small_files():
    """No file may grow beyond 2000 bytes, as on a full disk: pytest's own log neither."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_write_that_fails_leaves_the_last_complete_file(tmp_path):
    path = tmp_path / "run" / FILE
    words = f"could not write its checkpoint {path}: File too large. Free space"
    with small_files():
        checkpoint_file.write(path, {"a": 1, "b": np.arange(3)})
        with pytest.raises(OSError, match=words):
            checkpoint_file.write(path, {"a": 2, "b": np.zeros(1000)})
    found = checkpoint_file.read(path)
    assert found["a"] == 1 and found["b"].tolist() == [0, 1, 2]
    assert [path.name for path in path.parent.iterdir()] == [FILE]


@pytest.mark.parametrize("number, kind", [(errno.ENOSPC, OSError), (errno.EACCES, PermissionError)])
def test_training_goes_on_from_the_checkpoint_before_a_failed_write(tmp_path, monkeypatch, number, kind):
    writes, replace = [], os.replace

    def full(*args):
        writes.append(args)
        if len(writes) == 4:
            raise OSError(number, os.strerror(number), args[0])
        replace(*args)

    model, plain = network(), network()
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(
        kind, match=f"{FILE}: {os.strerror(number)}. Free space there, make the folder writable, or"
    ):
        fit(model, tmp_path / "run", epochs=3, snapshot_every=1)
    assert int(model.optimizer.iterations) == 3
    model = network()
    history = fit(model, tmp_path / "run", epochs=3, snapshot_every=1)
    assert fit(plain, None, epochs=3).history["loss"] == history.history["loss"]
    for ours, theirs in zip(model.get_weights(), plain.get_weights()):
        np.testing.assert_array_equal(ours, theirs)


def test_a_file_that_cannot_be_read_is_named(tmp_path, good, monkeypatch):
    (tmp_path / FILE).write_bytes(good)

    def denied(*args):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("builtins.open", denied)
    with pytest.raises(PermissionError, match=f"{FILE}: Permission denied. Make it readable"):
        snapshot.read(tmp_path)


@pytest.mark.parametrize("linked", ["file", "folder"])
def test_a_link_to_nowhere_is_named(linked, tmp_path):
    """A disk that is not mounted: training would begin anew and put its own file in place of the link."""
    folder, disk = tmp_path / "run", tmp_path / "disk"
    link, there = (folder / FILE, disk / FILE) if linked == "file" else (folder, disk)
    disk.mkdir()
    if linked == "file":
        folder.mkdir()
    link.symlink_to(there)
    fit(network(), folder) if linked == "folder" else there.touch()
    disk.rename(tmp_path / "elsewhere")
    with pytest.raises(
        ValueError, match=rf"{link} is not a checkpoint of ct.fit: a link to {there}, which is not"
    ):
        fit(network(), folder)
    assert link.is_symlink()
