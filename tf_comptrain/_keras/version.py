"""Which Keras this is: 3, or the legacy lane's 2."""

from importlib.metadata import version

KERAS_3 = int(version("keras").split(".")[0]) >= 3
