"""Workers meet before TensorFlow connects them: its own wait can neither be ended nor says for whom it is."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence

from absl import logging

_POLL_S = 0.1
_WORD_S = 30.0  # of silence, before it is said for whom a worker waits
_ANSWER_S = 2.0


def meet(addresses: Sequence[str], number: int, timeout_s: float) -> None:
    """Waits until every other worker listens at its address, as this one does meanwhile.

    Args:
      addresses: host:port of every worker.
      number: Of this worker.
      timeout_s: How long to wait at most.

    Raises:
      OSError: This worker's port is in use.
      TimeoutError: Some worker has not come.
    """
    began = said = time.monotonic()
    with _listener(addresses[number]):
        missing = [other for other in range(len(addresses)) if other != number]
        while True:
            missing = [other for other in missing if not _answers(addresses[other])]
            now = time.monotonic()
            if not missing:
                return
            names = ", ".join(f"{other} ({addresses[other]})" for other in missing)
            if now - began > timeout_s:
                raise TimeoutError(
                    f"Worker {number} has waited {timeout_s:g} s for worker {names}. Start it, or look at the "
                    "address in TF_CONFIG; ct.distribute.connect(timeout_s=...) waits longer."
                )
            if now - said > _WORD_S:
                said = now
                logging.warning(
                    "Worker %d waits for worker %s, for %.0f s so far.", number, names, now - began
                )
            time.sleep(_POLL_S)


def _listener(address: str) -> socket.socket:
    """Where TensorFlow's server will listen."""
    port = int(address.rpartition(":")[2])
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # TensorFlow takes the port next
    try:
        listener.bind(("", port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise OSError(
            error.errno,
            f"Port {port} of {address}, this worker's address in TF_CONFIG, cannot be listened at: {error.strerror}. "
            "End what uses it, or name another port on every worker",
        ) from None
    return listener


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
    except OSError:
        return False
    return True
