"""Every strategy over devices of a tiny case, from the definitions: slow, and apart from the planner's own code."""

import itertools

import numpy as np
from synthetic import DEVICE

from tf_comptrain.planner import Layer, LayerChain, Link, OffloadOption, RebuildOption, Saved, StreamOption
from tf_comptrain.planner.pipeline import Border, StageRun, simulate

MACHINE = DEVICE._replace(
    devices=3,
    launch_s=0.0,
    codecs={
        "plane": DEVICE.codecs["plane"]._replace(
            encode_bytes_per_s=200.0, decode_bytes_per_s=300.0, ratio=4.0
        )
    },
    device_link=Link(0.01, 40.0),
)


def tiny(layers, seed, batch=4):
    """A chain with random sizes and seconds; bytes of some tens."""
    random = np.random.default_rng(seed)
    made = []
    for k in range(layers):
        size = int(random.integers(20, 80))
        first = Saved(
            f"x{k}",
            size,
            (
                StreamOption("plane", size // 4, *random.uniform(0.02, 0.3, 2)),
                OffloadOption(*random.uniform(0.5, 2.5, 2)),
            ),
            int(random.integers(1, 3)),
        )
        saved = [first]
        if k % 2:
            again = RebuildOption((first.name,), float(random.uniform(0.05, 0.4)))
            stream = StreamOption("plane", size // 3, *random.uniform(0.02, 0.3, 2))
            saved.append(Saved(f"y{k}", int(random.integers(20, 60)), (again, stream)))
        made.append(
            Layer(
                f"layer{k}",
                *random.uniform(0.5, 2.0, 2),
                *random.uniform(0.0, 0.05, 2),
                weight_bytes=int(random.integers(1, 30)),
                output_bytes=int(random.integers(5, 40)),
                skip_bytes=int(random.integers(0, 10)),
                entry_bytes=int(random.integers(0, 10)),
                workspace_bytes=int(random.integers(0, 10)),
                halo_bytes=int(random.integers(1, 4)),
                update_s=float(random.uniform(0, 0.05)),
                splits=("batch", "channels", "rows") if k != 1 else ("batch", "rows"),
                saved=tuple(saved),
            )
        )
    return LayerChain(f"tiny {layers}", tuple(made), batch, 1.0)


def best_step_s(chain, machine, devices, memory):
    """Seconds of the best strategy, by trying all of them; infinite where none fits."""
    best = float("inf")
    for microbatches in [m for m in range(1, chain.batch + 1) if chain.batch % m == 0]:
        for used in {devices >> k for k in range(devices.bit_length())}:
            for sizes in compositions(used, sorted({1, 2, used} & set(range(1, used + 1)))):
                for cuts in itertools.combinations(range(1, len(chain.layers)), len(sizes) - 1):
                    borders = [0, *cuts, len(chain.layers)]
                    best = min(best, best_of_division(chain, machine, memory, microbatches, sizes, borders))
    return best


def best_of_division(chain, machine, memory, microbatches, sizes, borders):
    options = []
    for number, size in enumerate(sizes):
        stretch = chain.layers[borders[number] : borders[number + 1]]
        ahead = min(microbatches, len(sizes) - number)
        found = []
        for split in ["batch"] if size == 1 else ["batch", "channels", "rows"]:
            if size > 1 and not all(split in layer.splits for layer in stretch):
                continue
            if split == "batch" and chain.batch // microbatches % size:
                continue
            found += list(
                stage_runs(
                    chain, machine, memory, microbatches, ahead, size, split, *borders[number : number + 2]
                )
            )
        options.append(unbeaten(found))
    best = float("inf")
    for runs in itertools.product(*options):
        for ways in itertools.product([None, "plane"], repeat=len(sizes) - 1):
            best = min(best, step_of(chain, machine, microbatches, sizes, borders, list(runs), ways))
    return best


def unbeaten(runs):
    """Stages alike but for how tensors are held: those with some pass that no other stage has shorter or equal."""
    kept = []
    for run in sorted(runs, key=lambda run: run.microbatch_s):
        shorter = (
            np.all(one.forward_s <= run.forward_s) and np.all(one.backward_s <= run.backward_s)
            and one.sync_s.sum() <= run.sync_s.sum() and one.finish_s <= run.finish_s
            for one in kept
        )  # fmt: skip
        if not any(shorter):
            kept.append(run)
    return kept


def stage_runs(chain, machine, memory, microbatches, ahead, size, split, start, end):
    part = 1 / (microbatches * size)
    held_part = 1 / microbatches if split == "channels" else part
    weights_part = 1 / size if split == "channels" else 1
    layers = chain.layers[start:end]
    forward, backward, sync = [], [], []
    for place, layer in enumerate(layers):
        before = chain.layers[start + place - 1].output_bytes if start + place else 0
        inside = [0.0, 0.0]
        if split == "channels":
            inside = [machine.all_reduce_s(layer.output_bytes / microbatches, size) / 2]
            inside.append(machine.all_reduce_s(before / microbatches, size) if start + place else 0.0)
        elif split == "rows":
            inside = [machine.device_link.seconds(layer.halo_bytes / microbatches)] * 2
        forward.append(layer.forward_launch_s + layer.forward_s * part + inside[0])
        backward.append(layer.backward_launch_s + layer.backward_s * part + inside[1])
        summed = size > 1 and split != "channels"
        sync.append(
            machine.all_reduce_s(layer.weight_bytes, size) - machine.all_reduce_s(0, size) if summed else 0.0
        )
    latency = machine.all_reduce_s(0, size) if size > 1 and split != "channels" else 0.0
    finish = latency + sum(layer.update_s for layer in layers) * weights_part
    whole = [layer.output_bytes + layer.skip_bytes for layer in chain.layers]
    plain = [sum(saved.bytes for saved in layer.saved) for layer in chain.layers]
    moving = [
        sum(s.bytes for s in y.saved if any(isinstance(o, OffloadOption) for o in s.options))
        for y in chain.layers
    ]
    working = max(
        held_part * (chain.layers[k].workspace_bytes + plain[k] + (moving[k - 1] if k else 0))
        + weights_part * chain.layers[k].weight_bytes
        for k in range(start, end)
    )
    copies = 0 if size == 1 else 1 / size if split == "channels" else 1 - 1 / size
    waiting = 0 if size == 1 else weights_part
    state = (1 + chain.slots + (microbatches > 1)) / size + copies + waiting
    fixed = sum(layer.weight_bytes for layer in layers) * state
    fixed += held_part * ((whole[start - 1] if start else 0) + (whole[end - 1] if end < len(whole) else 0))
    fixed += working + (0 if start else chain.input_bytes)
    entering = held_part * chain.layers[start].entry_bytes
    saved = [(place, one) for place, layer in enumerate(layers) for one in layer.saved]
    offers = [
        [None, *(o for o in one.options if split != "channels" or not isinstance(o, OffloadOption))]
        for _, one in saved
    ]
    for taken in itertools.product(*offers):
        by_name = {one.name: option for (_, one), option in zip(saved, taken)}
        held = np.zeros(len(layers))
        ahead_s, back_s = np.array(forward), np.array(backward)
        for (place, one), option in zip(saved, taken):
            size_held, more_ahead, more_back = of_option(
                layers[place], one, option, by_name, moving[start + place]
            )
            held[place] += held_part * size_held
            ahead_s[place] += held_part * more_ahead
            back_s[place] += held_part * more_back
        held[0] += entering
        if fixed + ahead * held.sum() <= memory:
            yield StageRun(ahead_s, back_s, np.array(sync), held, fixed, finish)


def of_option(layer, one, option, by_name, moving):
    """(bytes, forward seconds, backward seconds) of holding a tensor."""
    if option is None:
        return one.bytes, 0.0, 0.0
    if isinstance(option, StreamOption):
        return option.bytes, option.encode_s, one.reads * option.decode_s
    if isinstance(option, RebuildOption):
        source = by_name[option.sources[0]]
        decode_s = source.decode_s if isinstance(source, StreamOption) else 0.0
        return 0, 0.0, one.reads * (option.seconds + decode_s)
    cover = one.bytes / moving
    waits = max(option.out_s - cover * layer.forward_s, 0), max(option.in_s - cover * layer.backward_s, 0)
    return 0, *waits


def step_of(chain, machine, microbatches, sizes, borders, runs, ways):
    made = []
    for number, way in enumerate(ways):
        before = chain.layers[borders[number + 1] - 1]
        size = (
            (before.output_bytes + before.skip_bytes) / microbatches / min(sizes[number], sizes[number + 1])
        )
        back = ahead = machine.device_link.seconds(size)
        if way is not None:
            codec = machine.codecs[way]
            ahead = machine.device_link.seconds(size / codec.ratio)
            first, second = runs[number].forward_s.copy(), runs[number + 1].forward_s.copy()
            first[-1] += size / codec.encode_bytes_per_s
            second[0] += size / codec.decode_bytes_per_s
            runs[number] = runs[number]._replace(forward_s=first)
            runs[number + 1] = runs[number + 1]._replace(forward_s=second)
        made.append(Border(ahead, back))
    return simulate(runs, made, microbatches).step_s


def compositions(total, sizes):
    if total == 0:
        yield ()
    for size in sizes:
        if size <= total:
            for rest in compositions(total - size, sizes):
                yield (size, *rest)
