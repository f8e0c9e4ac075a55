"""Of tests of XLA's lowerings, which the op library has from TensorFlow 2.20 on."""

import pytest

from tf_comptrain import backend

_found = backend.tensorflow_version()
needs_xla = pytest.mark.skipif(
    _found is not None and tuple(map(int, _found.split(".")[:2])) < (2, 20),
    reason="this TensorFlow has no XLA headers",
)
