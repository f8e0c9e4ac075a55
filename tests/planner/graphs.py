"""Small graphs with hand-made figures, and a slow reference of the simulator."""

import itertools

from tf_comptrain.planner import OffloadOption, RebuildOption, Segment, StreamOption, Task, TaskGraph, Tensor
from tf_comptrain.planner.effects import compile_graph
from tf_comptrain.planner.simulator import PlanState


def chain(layers=4, size=100, offload=True, segment=True, slices=1):
    """x0 -> x1 -> ...: layer k makes xk of xk-1, its backward part reads xk-1; a second a layer, two backward."""
    names = [f"x{k}" for k in range(layers)]
    forward = [Task(f"f{k}", False, 1.0) for k in range(layers)]
    backward = [Task(f"b{k}", True, 2.0, workspace_bytes=10) for k in reversed(range(layers))]
    tensors = []
    for k, name in enumerate(names):
        readers = (f"f{k + 1}", f"b{k + 1}") if k + 1 < layers else (f"b{k}",)
        options = [StreamOption("plane", size // 4, 0.25, 0.125)]
        options += [RebuildOption((names[k - 1],), 1.0, 5)] if k else []
        if offload == "stream":
            options.append(OffloadOption(0.5, 0.5, size // 4, 0.25, 0.125))
        elif offload:
            options.append(OffloadOption(1.5, 1.5))
        tensors.append(Tensor(name, size, f"f{k}", readers, tuple(options)))
    tensors += [Tensor(f"d{k}", size, f"b{k}", (f"b{k - 1}",)) for k in range(1, layers)]
    inside, tasks = names[1:-1], ()
    if slices > 1:  # the layers from the second to the last but one, with the gradients between them
        inside = names[1:-2] + [f"d{k}" for k in range(2, layers - 1)]
        tasks = tuple(f"{p}{k}" for p in "fb" for k in range(1, layers - 1))
    parts = (Segment("block", tuple(inside), ("x0",), layers - 2.0, 7, slices, tasks),) if segment else ()
    return TaskGraph("chain", tuple(forward + backward), tuple(tensors), parts, resting_bytes=50, batch=8)


def label_state(graph, labels, **options):
    """A state with the choices of these labels, by tensor; the others are kept."""
    effects = compile_graph(graph)
    state = PlanState(effects, **options)
    numbers = {tensor.name: number for number, tensor in enumerate(graph.tensors)}
    for name, label in labels.items():
        offered = effects.of_tensor[numbers[name]]
        state.set(next(c for c in offered if effects.choices[c].label == label))
    return state


def every_plan(graph):
    """All plans that can run, as (seconds, peak)."""
    effects = compile_graph(graph)
    state = PlanState(effects)
    for chosen in itertools.product(*effects.of_tensor):
        joint = [c for c in set(chosen) if len(effects.choices[c].tensors) > 1]
        if all(chosen[n] == c for c in joint for n in effects.choices[c].tensors):
            state.restore(chosen)
            if state.unserved == 0:
                yield state.measure()


def reference(graph, labels):
    """(seconds, peak) of streams, rebuilt tensors and offload: lists of what is held, moment by moment."""
    places = {task.name: k for k, task in enumerate(graph.tasks)}
    by_name = {tensor.name: tensor for tensor in graph.tensors}
    option = {
        name: next(o for o in by_name[name].options if o.label == label)
        for name, label in labels.items()
        if label != "keep"
    }

    def backward_readers(tensor):
        made_late = graph.tasks[places[tensor.producer]].backward
        return [] if made_late else [r for r in tensor.readers if graph.tasks[places[r]].backward]

    def last_forward(tensor):
        late = backward_readers(tensor)
        return max([places[r] for r in tensor.readers if r not in late] + [places[tensor.producer]])

    # What is rebuilt reads its sources: when each tensor is needed beyond its own readers.
    needed = {name: {places[r] for r in backward_readers(t)} for name, t in by_name.items()}
    further = {name: set() for name in by_name}
    for name, chosen in option.items():
        for source in getattr(chosen, "sources", ()):
            further[source] |= needed[name]
    clock, peak, work = 0.0, 0, []
    for k, task in enumerate(graph.tasks):
        prepare, run, store = 0, task.workspace_bytes, 0
        seconds_before = seconds_after = 0.0
        for name, tensor in by_name.items():
            made, chosen = places[tensor.producer], option.get(name)
            last = max([places[r] for r in tensor.readers] + [made])
            until = max([last, *further[name]])
            if chosen is None:
                prepare += tensor.bytes * (made < k <= until)
                run += tensor.bytes * (made <= k <= last or made <= k < until)
                store += tensor.bytes * (made <= k < until)
                continue
            run += tensor.bytes * (made <= k <= last_forward(tensor))
            prepare += tensor.bytes * (made < k <= last_forward(tensor))
            raw_after = made <= k < last_forward(tensor)
            restored = k in needed[name]
            decoded = restored or k in further[name]
            if isinstance(chosen, StreamOption):
                store += tensor.bytes * (raw_after or made == k)
                held_before, held_after = made < k <= until, made <= k < until
                prepare += chosen.bytes * held_before + tensor.bytes * decoded
                run += chosen.bytes * (made < k <= last or made < k < until) + tensor.bytes * restored
                store += chosen.bytes * (held_after or made == k)
                seconds_after += chosen.encode_s * (made == k)
                seconds_before += chosen.decode_s * decoded
            else:
                store += tensor.bytes * raw_after
                prepare += (tensor.bytes + chosen.working_bytes) * restored
                run += tensor.bytes * restored
                seconds_before += chosen.seconds * restored
        work.append((seconds_before, task.duration_s, seconds_after))
        clock += sum(work[-1])
        peak = max(peak, prepare, run, store)
    return clock, peak + graph.resting_bytes
