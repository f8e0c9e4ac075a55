"""Checkmate's VGG-19: 224 px, float32, backward tasks that cost twice the forward ones and make as many bytes.

The instance as its paper and public code describe it: a node for each Keras layer but the input, one for the loss, one
backward node for each layer, which reads the layer's output, its consumer's output and the gradient that arrives. Costs
are floating-point operations; weights count twice, for their gradients; the budget is 16 GB.
"""

from tf_comptrain.planner import RebuildOption, Segment, StreamOption, Task, TaskGraph, Tensor

BUDGET = 16 * 10**9
WEIGHTS = 143_667_240
_FLOPS_PER_S = 15.7e12  # of a V100
_CODEC_BYTES_PER_S = 200e9
_RATIO = 4.5


def layers():
    """(name, bytes of the output for a sample, operations for a sample)."""
    found, size, channels = [], 224, 3
    for block, (width, count) in enumerate(((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)), 1):
        for number in range(1, count + 1):
            found.append((f"conv{block}_{number}", 4 * size**2 * width, 2 * 9 * channels * width * size**2))
            channels = width
        size //= 2
        found.append((f"pool{block}", 4 * size**2 * width, 4 * size**2 * width))
    found.append(("flatten", 4 * 25088, 0))
    for name, inputs, outputs in (("fc1", 25088, 4096), ("fc2", 4096, 4096), ("predictions", 4096, 1000)):
        found.append((name, 4 * outputs, 2 * inputs * outputs))
    return found


def vgg19(all_storages=False):
    """The step of one sample: every tensor may be rebuilt from any held one before it.

    Args:
      all_storages: Streams, and blocks that run in slices, too.
    """
    found = layers()
    names = [name for name, _, _ in found]
    seconds = [operations / _FLOPS_PER_S for _, _, operations in found]
    tasks = [Task(name, False, s) for name, s in zip(names, seconds)]
    tasks += [Task("loss", True, 0.0)]
    tasks += [Task(f"grad {name}", True, 2 * s) for name, s in zip(reversed(names), reversed(seconds))]
    tensors = []
    for k, (name, size, _) in enumerate(found):
        readers = [names[k + 1]] if k + 1 < len(found) else ["loss"]
        readers += [f"grad {name}"] + ([f"grad {names[k - 1]}"] if k else [])
        options = [_rebuild(found, seconds, source, k) for source in range(k)]
        if all_storages:
            options.append(
                StreamOption(
                    "plane", int(size / _RATIO), size / _CODEC_BYTES_PER_S, size / _CODEC_BYTES_PER_S
                )
            )
        tensors.append(Tensor(name, size, name, tuple(readers), tuple(options)))
    gradients = [
        Tensor(f"d {name}", size, f"grad {name}", (f"grad {names[k - 1]}",) if k else ())
        for k, (name, size, _) in enumerate(found)
    ]
    segments = [
        Segment(
            f"{names[first]}..{names[last]}",
            tuple(names[first : last + 1]),
            (names[first - 1],),
            sum(seconds[first : last + 1]),
        )
        for first in range(1, len(found))
        for last in range(first + 1, len(found))
    ]
    if all_storages:
        segments += [
            _sliced(names, seconds, block, slices) for block in range(1, 4) for slices in (2, 4, 8, 16)
        ]
    return TaskGraph(
        "VGG-19", tuple(tasks), tuple(tensors + gradients), tuple(segments), resting_bytes=2 * 4 * WEIGHTS
    )


def _rebuild(found, seconds, source, k):
    """By the layers from `source` on, of which two neighbours' outputs are there at a time."""
    working = 0
    for step in range(source + 1, k + 1):
        before = found[step - 1][1] if step - 1 > source else 0
        working = max(working, before + (found[step][1] if step < k else 0))
    return RebuildOption((found[source][0],), sum(seconds[source + 1 : k + 1]), working)


def _sliced(names, seconds, block, slices):
    """A block of convolutions; the first one's input is the batch, which is there anyway."""
    inside = [name for name in names if name.startswith(f"conv{block}_")]
    source = (f"pool{block - 1}",) if block > 1 else ()
    made_again = sum(seconds[names.index(name)] for name in inside)
    return Segment(
        f"block{block} in {slices} slices",
        (*inside, *(f"d {name}" for name in inside)),
        source,
        made_again,
        slices=slices,
        tasks=(*inside, f"pool{block}", *(f"grad {name}" for name in inside)),
    )
