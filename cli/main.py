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

    if os.environ.get("WORLD_SIZE", "1") not in ("", "1"):
        # Of several processes all end when one does, with one line; torch would add a page about each lost connection.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    code = run(sys.argv[1:])
    sys.stdout.flush()
    distributed = sys.modules.get("learners.distributed")
    if distributed is not None and distributed.broken:
        sys.stderr.flush()
        os._exit(code)  # closing the interpreter would wait for exchanges that nobody answers
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
