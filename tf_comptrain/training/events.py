"""What a training survived."""

from __future__ import annotations

from typing import NamedTuple

RESUMED = "resumed"
OUT_OF_MEMORY = "out of memory"
OUT_OF_MEMORY_IN_VALIDATION = "out of memory in validation"


class TrainingEvent(NamedTuple):
    """Something that training survived: an element of `history["events"]`.

    Attributes:
      kind: "out of memory", "out of memory in validation" or "resumed".
      epoch: From 0.
      step: Steps of the epoch that were done when it happened.
      back_to: Step of the epoch from which training went on.
      batch: Samples per batch before.
      new_batch: Samples per batch from then on.
      reason: First line of the error.
      microbatches: Parts of a batch from then on, whose gradients are added up.
    """

    kind: str
    epoch: int
    step: int
    back_to: int
    batch: int
    new_batch: int
    reason: str
    microbatches: int = 1

    def line(self, folder: object) -> str:
        """For the user; with the folder of the checkpoint."""
        at = f"ct.fit, epoch {self.epoch + 1}, step {self.step}"
        parts = f" in {self.microbatches} microbatches" if self.microbatches > 1 else ""
        if self.kind == RESUMED:
            return f"{at}: resumed from {folder}, batch {self.batch}{parts}"
        change = f"batch {self.batch} -> {self.new_batch}{parts}"
        return f"{at}: {self.kind}, {change}, back to step {self.back_to}: {self.reason}"
