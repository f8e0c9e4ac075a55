"""A Keras with another backend than TensorFlow's is named before it fails to import."""

import json
import os
import subprocess
import sys

import pytest


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
    assert imported({"KERAS_HOME": str(tmp_path), "KERAS_BACKEND": "tensorflow"}).stdout == "imported\n"


def test_a_keras_that_is_imported_already_says_it():
    before = "import os, keras; os.environ['KERAS_BACKEND'] = 'jax'"
    assert imported({}, before).stdout == "imported\n"
