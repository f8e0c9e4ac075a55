"""A TensorFlow or a Keras that does not serve is named, with what mends it, before it fails to import."""

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from tf_comptrain import backend


def imported(environment, before="", what="compress_model"):
    command = [sys.executable, "-c", f"{before}\nfrom tf_comptrain import {what}\nprint('imported')"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("KERAS_")}
    return subprocess.run(command, capture_output=True, text=True, env={**clean, **environment})


@pytest.mark.parametrize(
    ("backend", "what"),
    [("numpy", "compress_model"), ("jax", "callbacks"), ("torch", "codecs"), ("jax", "memory")],
)
def test_another_backend_is_named(backend, what):
    run = imported({"KERAS_BACKEND": backend}, what=what)
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].startswith(
        f"ImportError: tf_comptrain needs Keras with the TensorFlow backend; yours is '{backend}'. Set KERAS_BACKEND"
    )


def test_what_needs_no_keras_runs_with_any_backend():
    assert imported({"KERAS_BACKEND": "jax"}, what="planner").stdout == "imported\n"


def test_a_backend_of_the_configuration_file(tmp_path):
    (tmp_path / "keras.json").write_text(json.dumps({"backend": "jax"}))
    run = imported({"KERAS_HOME": str(tmp_path)})
    assert run.returncode == 1 and "yours is 'jax'" in run.stderr


@pytest.mark.long
def test_the_environment_comes_before_the_configuration_file(tmp_path):
    (tmp_path / "keras.json").write_text(json.dumps({"backend": "jax"}))
    assert imported({"KERAS_HOME": str(tmp_path), "KERAS_BACKEND": "tensorflow"}).stdout == "imported\n"


@pytest.mark.long
def test_a_keras_that_is_imported_already_says_it():
    before = "import os, keras; os.environ['KERAS_BACKEND'] = 'jax'"
    assert imported({}, before).stdout == "imported\n"


def distributions(monkeypatch, **versions):
    """TensorFlow is not imported, and installed as this."""

    def version(name):
        if name not in versions:
            raise backend.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.setattr(backend, "version", version)


@pytest.mark.parametrize("found", ["2.17.1", "2.16.0", "2.17.0rc1", "2.14.1", "1.15.5"])
def test_a_tensorflow_without_a_lane_is_refused_in_one_sentence(found, monkeypatch):
    distributions(monkeypatch, tensorflow=found)
    with pytest.raises(ImportError) as caught:
        backend.require_supported_version()
    message = str(caught.value)
    assert f"yours is {found}" in message and "pip install 'tensorflow-cpu>=2.21'" in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("found", ["2.15.1", "2.18.0", "2.21.0", "2.22.0rc0", "3.0.0", "mine"])
def test_a_tensorflow_with_a_lane_is_taken(found, monkeypatch):
    distributions(monkeypatch, tensorflow=found)
    backend.require_supported_version()


def test_of_two_tensorflows_none_is_refused_before_it_is_imported(monkeypatch):
    distributions(monkeypatch, **{"tensorflow": "2.17.0", "tensorflow-cpu": "2.21.0"})
    backend.require_supported_version()
    monkeypatch.setitem(sys.modules, "tensorflow", types.SimpleNamespace(__version__="2.17.0"))
    with pytest.raises(ImportError, match="yours is 2.17.0"):
        backend.require_supported_version()


def test_no_tensorflow(monkeypatch):
    distributions(monkeypatch)
    monkeypatch.setattr(backend, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="not installed: pip install 'tensorflow-cpu>=2.21'"):
        backend.require_supported_version()


@pytest.fixture
def old(tmp_path):
    """An environment whose TensorFlow is 2.17, and does not import."""
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text("raise SystemError('TensorFlow was imported')\n")
    information = tmp_path / "tensorflow-2.17.1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: tensorflow\nVersion: 2.17.1\n")
    hidden = "import importlib.metadata as m, sys; d = m.Distribution.from_name\n"
    hidden += "def of(name):\n    if name == 'tensorflow-cpu': raise m.PackageNotFoundError(name)\n    return d(name)\n"
    (tmp_path / "sitecustomize.py").write_text(hidden + "m.Distribution.from_name = of\n")
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, "PYTHONPATH": path}


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("from tf_comptrain import compress_model", 1),
        ("import tf_comptrain as ct; ct.memory", 1),
        ("import sys; from tf_comptrain import cli; cli.parse(['tf-comptrain', 'bench', 'step'])", 2),
        ("import sys; from tf_comptrain import cli; sys.exit(cli.run(cli.parse(['x', 'doctor'])))", 1),
    ],
)
def test_a_user_of_an_old_tensorflow_reads_what_to_do(code, status, old):
    run = subprocess.run([sys.executable, "-c", code], env=old, capture_output=True, text=True)
    said = " ".join((run.stdout + run.stderr).split())
    assert run.returncode == status and "TensorFlow was imported" not in said
    assert "yours is 2.17.1: pip install 'tensorflow-cpu>=2.21'" in said
    assert status == 1 or "Traceback" not in said


def test_the_build_refuses_the_same(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "tools"))
    import build_native

    assert (build_native.NEWEST_REFUSED, build_native.LEGACY) == (backend.NEWEST_REFUSED, backend.LEGACY)
    said = json.dumps(["2.17.1", [], [], False])
    answer = subprocess.CompletedProcess([], 0, stdout=said, stderr="")
    monkeypatch.setattr(build_native.subprocess, "run", lambda *args, **kwargs: answer)
    with pytest.raises(build_native.BuildError, match="has 2.17.1. Run: pip install 'tensorflow-cpu>=2.21'"):
        build_native.find_tensorflow()
