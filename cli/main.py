"""Entry point of `gpurl`. Light: the interrupt handler must stand before anything slow is imported."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Run the command line and exit with its code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    from cli.app import run

    code = run(sys.argv[1:])
    sys.stdout.flush()
    sys.exit(code)


def _leave(signum: int, frame: FrameType | None) -> None:
    """One line and out, also in the middle of an import or a compilation, where an exception would be a
    traceback.

    Training replaces this handler by one that saves a checkpoint first (learners/interrupts.py).
    """
    os.write(2, b"\ninterrupted\n")
    os._exit(128 + signum)


if __name__ == "__main__":
    main()
