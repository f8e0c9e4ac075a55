"""Starts the workers of a training on this machine, and ends them together."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from tf_comptrain.processes import name_of_signal

_POLL_S = 0.1
_GRACE_S = 5.0  # from being asked to end to being killed
_KILL_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class _Ended(Exception):
    """The launcher itself was asked to end."""

    def __init__(self, number: int):
        self.number = number


def free_addresses(count: int) -> list[str]:
    """host:port of this machine, of ports that are free now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"localhost:{one.getsockname()[1]}" for one in sockets]


def launch(
    command: Sequence[str],
    addresses: Sequence[str],
    here: Sequence[int],
    devices: Sequence[str] = (),
    out: TextIO | None = None,
) -> int:
    """Runs a command as workers until all have ended; where one fails, the others are ended.

    What they print appears line by line, behind the number of the worker.

    Args:
      command: Program and arguments.
      addresses: host:port of every worker of the training.
      here: Numbers of those to be started on this machine.
      devices: What CUDA_VISIBLE_DEVICES is to be for each of those; empty: as it is.
      out: Where lines go. Default: the standard output.

    Returns:
      0 where all succeeded; else the exit status of the first that failed, 128 + number of the signal that ended it;
      130 after Ctrl-C; 141 where nobody reads the lines any more.
    """
    out = out or sys.stdout
    unread = threading.Event()
    share = max((os.cpu_count() or 1) // len(here), 1)
    workers: dict[int, subprocess.Popen] = {}
    with _signals():
        try:
            for place, number in enumerate(here):
                device = devices[place] if devices else None
                workers[number] = _started(command, _environment(addresses, number, share, device))
            readers = [_reader(number, worker, out, unread) for number, worker in workers.items()]
            failed = _first_failure(workers, unread)
        except (KeyboardInterrupt, _Ended) as asked:
            _say(out, "ending the workers")
            return 128 + getattr(asked, "number", signal.SIGINT)
        finally:
            _end(workers)
    for reader in readers:
        reader.join()
    if unread.is_set():
        _to_nowhere(out)
        return 128 + signal.SIGPIPE
    if failed is None:
        return 0
    status = workers[failed].returncode
    _say(out, f"worker {failed} of {len(addresses)} {_how(status)}; the others were ended")
    return status if status > 0 else 128 - status


def config_of(addresses: Sequence[str], number: int) -> str:
    """TF_CONFIG of a worker."""
    return json.dumps({"cluster": {"worker": list(addresses)}, "task": {"type": "worker", "index": number}})


def _environment(addresses: Sequence[str], number: int, threads: int, device: str | None) -> dict[str, str]:
    found = {"TF_NUM_INTRAOP_THREADS": str(threads), "OMP_NUM_THREADS": str(threads), **os.environ}
    found.update(TF_CONFIG=config_of(addresses, number), PYTHONUNBUFFERED="1")
    if device is not None:
        found["CUDA_VISIBLE_DEVICES"] = device
    return found


def _started(command: Sequence[str], environment: dict[str, str]) -> subprocess.Popen:
    return subprocess.Popen(
        list(command),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # so that what it starts ends with it
        preexec_fn=_end_with_launcher,
        text=True,
        errors="replace",
    )


_libc = ctypes.CDLL(None)  # here: between fork and exec nothing should be loaded


def _end_with_launcher() -> None:
    """A launcher that is killed cannot end its workers: Linux does."""
    _libc.prctl(_KILL_WITH_PARENT, signal.SIGKILL)


def _reader(number: int, worker: subprocess.Popen, out: TextIO, unread: threading.Event) -> threading.Thread:
    def read() -> None:
        assert worker.stdout is not None
        try:
            for line in worker.stdout:
                out.write(f"[{number}] {line}" if line.endswith("\n") else f"[{number}] {line}\n")
                out.flush()
        except BrokenPipeError:  # `| head`: a worker would wait for ever for room in its pipe
            unread.set()

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def _to_nowhere(out: TextIO) -> None:
    """What is left in the buffer of a pipe that nobody reads would be written, and fail, when Python ends."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, out.fileno())
        os.close(nowhere)


def _first_failure(workers: dict[int, subprocess.Popen], unread: threading.Event) -> int | None:
    """Waits until all have ended, nobody reads their lines any more, or one has failed: its number."""
    while not unread.is_set():
        statuses = {number: worker.poll() for number, worker in workers.items()}
        failed = [number for number, status in statuses.items() if status]
        if failed:
            return failed[0]
        if None not in statuses.values():
            return None
        unread.wait(_POLL_S)
    return None


def _end(workers: dict[int, subprocess.Popen]) -> None:
    """Asks what is left of the workers, and of what they started, to end; kills it where that takes too long."""
    for worker in workers.values():
        _signal(worker, signal.SIGTERM)
    until = time.monotonic() + _GRACE_S
    for worker in workers.values():
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(max(until - time.monotonic(), 0))
    for worker in workers.values():
        _signal(worker, signal.SIGKILL)
        worker.wait()


def _signal(worker: subprocess.Popen, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, number)


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the launcher as Ctrl-C does, workers first."""

    def end(number: int, frame: Any) -> None:
        raise _Ended(number)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _how(status: int) -> str:
    if status < 0:
        return f"was ended by {name_of_signal(-status)}"
    return f"failed with exit status {status}"


def _say(out: TextIO, line: str) -> None:
    out.write(f"tf-comptrain launch: {line}\n")
    out.flush()
