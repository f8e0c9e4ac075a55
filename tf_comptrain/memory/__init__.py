"""What training takes, measured and predicted: a step, a saved tensor, the peak, the largest batch."""

from tf_comptrain.memory.explain import Peak, PeakRow, explain_peak
from tf_comptrain.memory.measure import StepMemory, device, measure_call, measure_step
from tf_comptrain.memory.memory_limit import limit
from tf_comptrain.memory.saved import SavedTensor, saved_bytes
from tf_comptrain.memory.saved_report import MemoryReport, Timeline, report

__all__ = [
    "MemoryReport",
    "Peak",
    "PeakRow",
    "SavedTensor",
    "StepMemory",
    "Timeline",
    "device",
    "explain_peak",
    "limit",
    "measure_call",
    "measure_step",
    "report",
    "saved_bytes",
]
