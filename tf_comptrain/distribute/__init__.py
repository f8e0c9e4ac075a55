"""Training on several devices and machines, by TensorFlow's own engine."""

from tf_comptrain.distribute.cluster import connect, is_first_worker
from tf_comptrain.distribute.worker import fit
from tf_comptrain.placement import place, unplace
from tf_comptrain.planner.stages import Stage

__all__ = ["Stage", "connect", "fit", "is_first_worker", "place", "unplace"]
