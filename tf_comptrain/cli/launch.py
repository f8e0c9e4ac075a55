"""`tf-comptrain launch`: the workers of a training, on this machine or as part of a cluster."""

from __future__ import annotations

import argparse
import json
import shlex
import sys

from tf_comptrain.cli import options
from tf_comptrain.distribute import launching

_PORT = 2222
_ALL_ADDRESSES = (
    "tf-comptrain launch: TensorFlow's servers listen on all addresses of this machine, without a password: "
    'see "Networks that are not trusted" in docs/distribution.md.'
)

_SLURM = """\
#!/bin/bash
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
# One worker a node, which trains on all of the node's GPUs. Start with: sbatch FILE
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed 's/$/:{port}/' | paste -sd,)
export hosts
srun --kill-on-bad-exit=1 bash -c 'exec tf-comptrain launch --hosts "$hosts" --index "$SLURM_PROCID" {command}'
"""

_KUBERNETES = """\
# One pod a worker. Start with: kubectl apply -f FILE
apiVersion: v1
kind: Service
metadata:
  name: train
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    job-name: train
---
apiVersion: batch/v1
kind: Job
metadata:
  name: train
spec:
  completions: {nodes}
  parallelism: {nodes}
  completionMode: Indexed
  backoffLimit: 0
  template:
    spec:
      subdomain: train
      restartPolicy: Never
      containers:
      - name: worker
        image: YOUR_IMAGE
        command: ["sh", "-c", {command}]
        ports:
        - containerPort: {port}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of `main`."""
    parser.add_argument(
        "-n", "--workers", type=options.positive, default=2, help="of the training (%(default)s)"
    )
    parser.add_argument(
        "--devices", help="a GPU for each worker here, such as 0,1,2,3 (CUDA_VISIBLE_DEVICES)"
    )
    parser.add_argument(
        "--hosts", help="host:port of each worker of a cluster, with commas; starts one of them"
    )
    parser.add_argument("--index", type=int, help="which of --hosts this is, from 0")
    parser.add_argument(
        "--print",
        dest="show",
        choices=("tf-config", "slurm", "kubernetes"),
        help="start nothing: print what starts the workers on a cluster, or what each needs to know",
    )
    parser.add_argument("script", help="a Python script that calls ct.distribute.fit")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")
    parser.set_defaults(function=main)


def main(args: argparse.Namespace) -> int:
    """Runs the workers; returns the status of the first that failed, 2 for arguments that do not do."""
    problem = _problem(args)
    if problem:
        print(problem, file=sys.stderr)
        return 2
    if args.show:
        print(shown(args), end="")
        return 0
    command = [sys.executable, args.script, *args.arguments]
    if args.hosts or args.workers > 1:  # one worker alone has no server
        print(_ALL_ADDRESSES, file=sys.stderr, flush=True)
    devices = args.devices.split(",") if args.devices else ()
    if args.hosts:
        return launching.launch(command, args.hosts.split(","), [args.index], devices)
    return launching.launch(command, launching.free_addresses(args.workers), range(args.workers), devices)


def shown(args: argparse.Namespace) -> str:
    """What --print prints."""
    script = shlex.join([args.script, *args.arguments])
    if args.show == "slurm":
        inner = script.replace("'", "'\\''")  # within single quotes
        return _SLURM.format(nodes=args.workers, port=_PORT, command=inner)
    if args.show == "kubernetes":
        hosts = ",".join(f"train-{k}.train:{_PORT}" for k in range(args.workers))
        line = f'exec tf-comptrain launch --hosts {hosts} --index "$JOB_COMPLETION_INDEX" {script}'
        return _KUBERNETES.format(nodes=args.workers, port=_PORT, command=json.dumps(line))
    addresses = args.hosts.split(",") if args.hosts else [f"host{k}:{_PORT}" for k in range(args.workers)]
    lines = [
        f"worker {k}: TF_CONFIG={shlex.quote(launching.config_of(addresses, k))}"
        for k in range(len(addresses))
    ]
    return "\n".join([*lines, ""])


def _problem(args: argparse.Namespace) -> str | None:
    here = args.workers
    if args.hosts and not args.show:
        count, here = len(args.hosts.split(",")), 1
        if args.index is None or not 0 <= args.index < count:
            return f"--index must be which of the {count} --hosts this worker is, from 0. Received: {args.index}."
    elif args.index is not None:
        if args.show:
            return f"--print prints what all workers need. Received: --index {args.index}. Leave it out."
        return f"--index goes with --hosts. Received: --index {args.index} alone. Leave it out, or name the hosts."
    given = len(args.devices.split(",")) if args.devices else here
    if given != here:
        return f"--devices must name one for each of the {here} workers here. Received: {args.devices}."
    return None
