"""A memory limit for a model: its step measured, planned, and run as planned."""

from tf_comptrain.model_planning.costs import cache_path, calibrate
from tf_comptrain.model_planning.model import compress_model, plan, restore_model
from tf_comptrain.model_planning.model_plan import ModelPlan

__all__ = ["ModelPlan", "cache_path", "calibrate", "compress_model", "plan", "restore_model"]
