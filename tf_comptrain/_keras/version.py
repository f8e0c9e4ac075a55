"""Which Keras this is: 3, or the legacy lane's 2."""

from importlib.metadata import version

KERAS_VERSION = version("keras")
KERAS_3 = int(KERAS_VERSION.split(".")[0]) >= 3
