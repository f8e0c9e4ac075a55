"""Keras callbacks: bounds and batch size that steer themselves, and a memory log."""

from tf_comptrain.callbacks.adaptive_batch_size import AdaptiveBatchSize, Decision
from tf_comptrain.callbacks.adaptive_error_bound import AdaptiveErrorBound, BoundUpdate
from tf_comptrain.callbacks.adaptive_training import AdaptiveTraining
from tf_comptrain.callbacks.elastic import ElasticBatch, elastic_batch
from tf_comptrain.callbacks.memory_logger import MemoryLogger, MemoryRecord

__all__ = [
    "AdaptiveBatchSize",
    "AdaptiveErrorBound",
    "AdaptiveTraining",
    "BoundUpdate",
    "Decision",
    "ElasticBatch",
    "MemoryLogger",
    "MemoryRecord",
    "elastic_batch",
]
