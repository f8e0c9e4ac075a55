"""Tensors whose sizes only their values say, as what `tf.boolean_mask` leaves: XLA's custom calls cannot have them."""

from __future__ import annotations

from tf_comptrain import _keras

# Of a branch that is not taken the results have no samples, where their number is unknown.
_SIZED_BY_VALUES = frozenset(
    [
        "DynamicPartition",
        "If",
        "ListDiff",
        "StatelessIf",
        "Unique",
        "UniqueV2",
        "UniqueWithCounts",
        "UniqueWithCountsV2",
        "Where",
    ]
)
# Have the sizes of something else again.
_SIZED_BY_OTHERS = frozenset(["ScatterNd", "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentSum"])
_SAYS = "the sizes of {} depend on values, and XLA's custom calls cannot have that (jit_compile=False can)"


def sizes_obstacle(backward: _keras.BackwardPass) -> str | None:
    """Why nothing of a step can be held under XLA: it reads a tensor of such sizes; None where it does not."""
    operations = backward.graph.get_operations()
    late = {op.name for op in operations[backward.start : backward.stop]}
    found: set = set()
    for op in operations[: backward.start]:
        sized = op.type in _SIZED_BY_VALUES or not found.isdisjoint(tensor.ref() for tensor in op.inputs)
        if not sized or op.type in _SIZED_BY_OTHERS:
            continue
        for tensor in op.outputs:
            if tensor.shape.is_fully_defined():
                continue
            found.add(tensor.ref())
            has_rows = tensor.dtype.is_floating and tensor.shape.rank != 1
            if has_rows and any(reader.name in late for reader in tensor.consumers()):
                return _SAYS.format(tensor.op.name)
    return None
