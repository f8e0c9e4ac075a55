"""What training takes, measured and predicted: a step, a saved tensor, the peak, the largest batch."""

from tf_comptrain.memory.measure import StepMemory, device, measure_call, measure_step, saved_bytes
from tf_comptrain.memory.memory_limit import limit

__all__ = [
    "StepMemory",
    "device",
    "limit",
    "measure_call",
    "measure_step",
    "saved_bytes",
]
