"""How a process ended."""

from __future__ import annotations

import signal


def name_of_signal(number: int) -> str:
    """9 -> 'SIGKILL'; one that has no name -> 'signal 40'."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
