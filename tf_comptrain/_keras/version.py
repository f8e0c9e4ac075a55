"""Which Keras this is: 3, or the legacy lane's 2."""

from importlib.metadata import version

KERAS_VERSION = version("keras")
KERAS_3 = int(KERAS_VERSION.split(".")[0]) >= 3


def require_keras_3(what: str, instead: str) -> None:
    """Refuses, in the legacy lane, what is built on the parts of Keras 3's `fit`.

    Raises:
      RuntimeError: This is Keras 2.
    """
    if not KERAS_3:
        raise RuntimeError(
            f"{what} needs Keras 3; this is Keras {KERAS_VERSION}. {instead}, or TensorFlow 2.16 or newer."
        )
