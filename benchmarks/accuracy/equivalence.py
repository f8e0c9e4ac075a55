"""Is training with compressed activations as good as plain training? Paired seeds until an interval says so.

    python benchmarks/accuracy/equivalence.py --cifar CIFAR10.npz --fashion FASHION_MNIST.npz --text tinyshakespeare.txt
    python benchmarks/accuracy/equivalence.py ... --tasks resnet-cifar --arms default adaptive --minutes 90
    python benchmarks/accuracy/equivalence.py --report      # docs/accuracy.md and its plot, from the results

Each finished run is one line of the results file, written at its end: whatever stops this (a signal, a kill,
`--minutes`), the same command goes on with the first run that has no line. Runs of another setting of their task are
left where they are and do not count. All runs of a seed, of all tasks and arms, are made before the next seed begins.

*The pair.* Runs of a seed begin with the same weights. A difference is between the mean of an arm's runs of the seed
and the mean of plain's, both over the same orders of the data (`Task.orders`). With s the scatter of single runs and
rho the correlation of an arm's run with plain's of the same order, k orders a seed have a variance of 2 s^2 (1 - rho)
/ k at the cost of k (K + 1) runs for K arms: 2 s^2 (1 - rho) (K + 1) for variance times cost, whatever k. One run of
an arm against two of plain, one of them of its own order, has s^2 (3/2 - rho) (K + 2), which is less only where rho
is small and arms are many (for K = 6 a seventh less at rho = 0, the same at 1/3, a seventh more at 1/2). So an arm
takes plain's orders, and one order a seed with more seeds is at least as good as more orders: it gives more degrees
of freedom, and sees more initial weights. Tasks whose seeds are dear, the long ones, have two. Plain's runs are
shared by all arms: arms are compared with plain here, and not with each other.

*What was measured* for the small tasks, on pilots of 3 to 6 runs each, so roughly. Of the CNN on Fashion-MNIST 2.0%
of 20,000 test images change between right and wrong from plain to the default at the same order, and 4.2% to 5.1%
from one order to another (rho over 0.5); differences of pairs were -0.08 and +0.07 points, of orders 0.28. ResNet-8
on CIFAR-10, shifted and mirrored, at a highest rate of 0.1 is chaotic: 17% change at the same order, 18.5% at another
(rho about 0), and single runs scatter by 0.9 points, of which 0.2 are due to the finite test set: plain 55.1 and
54.1, the default 55.9 and 56.3. At 0.03 four runs, one of them the default's, scattered by 0.17 points (by 0.39
without averaging weights). Hence a rate of 0.03, the mean of the weights after the last three epochs, and as many
test images as there are, up to 20,000: the test set, and those of the training file that are not trained on.

*How many seeds.* From 1,000 simulations of the rule, how often an arm that changes nothing is called equivalent by
20, 30 and 45 seeds, at a scatter of the differences of

    0.2 points: 100%, 100%, 100%        0.5 points: 19%, 49%, 85%
    0.3 points:  92%,  99%,  99%        0.6 points:  5%, 16%, 56%
    0.4 points:  54%,  84%,  97%        0.8 points:  0%,  0%,  5%
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pairs
import report
import sequential
from tasks import ARM_NAMES, PLAIN, TASKS

FOLDER = Path(__file__).resolve().parent
_FILES = ("cifar", "fashion", "text")


class Next(NamedTuple):
    """A run that is wanted."""

    task: str
    arm: str
    seed: int
    order: int


def main() -> None:
    args = parse()
    if args.report:
        report.write(pairs.read(args.results), args.docs)
        return
    for name in args.tasks:
        if getattr(args, TASKS[name].data) is None:
            raise SystemExit(f"--{TASKS[name].data} FILE is needed for {name}.")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run(args)
    except KeyboardInterrupt:
        print("Stopped. What is finished is in the results; the same command goes on with the rest.")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cifar", help="CIFAR-10 as .npz; see data.load")
    parser.add_argument("--fashion", help="Fashion-MNIST as .npz")
    parser.add_argument("--text", help="tinyshakespeare, or another text")
    default = [name for name, task in TASKS.items() if not task.is_long]
    parser.add_argument(
        "--tasks", nargs="+", choices=TASKS, default=default, help=f"default: {' '.join(default)}"
    )
    arms = [name for name in ARM_NAMES if name != PLAIN]
    parser.add_argument("--arms", nargs="+", choices=arms, default=arms, help="default: all")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop before so many are over")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--results", type=Path, default=FOLDER / "results" / "equivalence.jsonl")
    parser.add_argument("--report", action="store_true", help="write table and plot from the results")
    parser.add_argument("--docs", type=Path, default=FOLDER.parents[1] / "docs", help="where the report goes")
    return parser.parse_args()


def run(args: argparse.Namespace) -> None:
    """Trains what is missing, a run at a time."""
    import training

    training.set_threads(args.threads)
    machine, start, trainers = training.this_machine(), time.monotonic(), {}
    while True:
        runs = pairs.read(args.results)
        wanted = next(wanted_runs(runs, args.tasks, args.arms, machine.kind), None)
        if wanted is None:
            print("Every arm has its verdict.")
            return
        minutes = (time.monotonic() - start) / 60
        if minutes + seconds_of(runs, wanted) / 60 > args.minutes:
            print(f"The {args.minutes:g} minutes do not suffice for one more run.")
            return
        task = TASKS[wanted.task]
        if wanted.task not in trainers:
            trainers[wanted.task] = training.Trainer(task, getattr(args, task.data))
        record = trainers[wanted.task].run(wanted.arm, wanted.seed, wanted.order)
        record = {"task": wanted.task, **record, "setting": task.setting(), "machine": machine._asdict()}
        pairs.append(args.results, record)
        print(progress(pairs.read(args.results), wanted, args.tasks, args.arms, machine.kind), flush=True)


def wanted_runs(
    runs: Sequence[pairs.Run], tasks: Sequence[str], arms: Sequence[str], kind: str
) -> Iterator[Next]:
    """The runs up to the next look of every arm that has no verdict, seed by seed, on machines of a kind.

    A seed is finished, all tasks and arms of it, before the next begins: wherever it is stopped, all arms have seen
    the same seeds.
    """
    seeds: dict[str, dict[int, list[pairs.Run]]] = {}  # of each task
    looks: dict[tuple[str, str], int] = {}  # seeds that the next look of a task's arm needs
    for name in tasks:
        of_task = pairs.of_task(runs, name, TASKS[name])
        seeds[name] = pairs.by_seed(of_task)
        for arm in arms:
            found = pairs.in_order(pairs.differences(of_task, TASKS[name], arm))
            if not sequential.verdict(found, TASKS[name].rule).final:
                looks[name, arm] = sequential.next_look(len(found), TASKS[name].rule)
    yielded = set()
    for seed in range(1, 1 + max(looks.values(), default=0)):
        for (name, arm), look in looks.items():
            of_seed = seeds[name].get(seed, [])
            for method, order in pairs.missing(of_seed, TASKS[name], arm, kind) if seed <= look else ():
                wanted = Next(name, method, seed, order)
                if wanted not in yielded:
                    yielded.add(wanted)
                    yield wanted


def seconds_of(runs: Sequence[pairs.Run], wanted: Next) -> float:
    """What a run takes: the median of the last ones of its arm, of its task, or a minute."""
    of_task = [run for run in runs if run["task"] == wanted.task]
    of_arm = [run for run in of_task if run["arm"] == wanted.arm]
    found = [run["wall_s"] for run in (of_arm or of_task)[-9:]]
    return statistics.median(found) if found else 60.0


def progress(
    runs: Sequence[pairs.Run], last: Next, tasks: Sequence[str], arms: Sequence[str], kind: str
) -> str:
    """The run that is finished, how its arm stands, and how long it is to the next look of every arm."""
    task, run = TASKS[last.task], runs[-1]
    found = pairs.in_order(pairs.differences(pairs.of_task(runs, last.task, task), task, last.arm))
    stands = ""
    if last.arm != PLAIN and found:
        verdict = sequential.verdict(found, task.rule)
        stands = f"; {verdict.word} after {len(found)}: {report.interval_words(verdict, task)}"
    left = list(wanted_runs(runs, tasks, arms, kind))
    of_seed = sum(wanted.seed == last.seed for wanted in left)
    minutes = sum(seconds_of(runs, wanted) for wanted in left) / 60
    return (
        f"{last.task} {last.arm} seed {last.seed} order {last.order}: {run['metric']:.2f}, {run['wall_s']:.0f} s"
        f"{stands}. {of_seed} more runs of this seed, {len(left)} to the next looks: {minutes:.0f} min"
    )


if __name__ == "__main__":
    main()
