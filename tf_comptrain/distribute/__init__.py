"""Training on several devices and machines, by TensorFlow's own engine."""

from tf_comptrain.distribute.cluster import connect, is_first_worker
from tf_comptrain.distribute.fitting import fit
from tf_comptrain.distribute.placing import place, unplace

__all__ = ["connect", "fit", "is_first_worker", "place", "unplace"]
