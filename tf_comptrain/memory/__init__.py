"""What training takes, measured and predicted: a step, a saved tensor, the peak, the largest batch."""

from tf_comptrain.memory.analysis import MemoryAnalysis, PlannedBuffer, memory_analysis
from tf_comptrain.memory.counters import device
from tf_comptrain.memory.explain import Peak, PeakRow, explain_peak
from tf_comptrain.memory.max_batch import MaxBatch, PeakLine, find_max_batch_size
from tf_comptrain.memory.measure import StepMemory, measure_call, measure_step, synchronize
from tf_comptrain.memory.memory_limit import limit
from tf_comptrain.memory.movement import Transfer, Transfers, transfers
from tf_comptrain.memory.predict import predict_peak
from tf_comptrain.memory.saved import SavedTensor, saved_bytes
from tf_comptrain.memory.saved_report import MemoryReport, report
from tf_comptrain.memory.timeline import Timeline
from tf_comptrain.memory.trial import Trial, TrialError

__all__ = [
    "MaxBatch",
    "MemoryAnalysis",
    "MemoryReport",
    "Peak",
    "PeakLine",
    "PeakRow",
    "PlannedBuffer",
    "SavedTensor",
    "StepMemory",
    "Timeline",
    "Transfer",
    "Transfers",
    "Trial",
    "TrialError",
    "device",
    "explain_peak",
    "find_max_batch_size",
    "limit",
    "measure_call",
    "measure_step",
    "memory_analysis",
    "predict_peak",
    "report",
    "saved_bytes",
    "synchronize",
    "transfers",
]
