"""Trains in forked processes that are meant to be killed: `python -m tests.learners.kill_server`.

Imports and compiles once, then forks a child for every line on stdin, the path of a run; the child begins or
resumes that run and exits when it is done. So a kill can hit any moment of a run, and 30 of them do not cost 30
times the compilation. Prints the child's process number when it starts and its wait status when it ends.
"""

import os
import sys
import traceback
from pathlib import Path

from learners import session
from learners.build import build
from tests.learners.tiny import tiny_config

ITERATIONS = 150


def config():
    return tiny_config(iterations=ITERATIONS, keep_checkpoints=2)


def train(path: Path) -> None:
    """What `gpurl train` and `gpurl resume` do, the printing aside."""
    if (path / "config.json").exists():
        with session.resume(path) as resumed:
            resumed.trainer.train()
    else:
        with session.begin(config(), path) as begun:
            begun.trainer.train()


def main() -> None:
    build(config()).iterate()  # compiles everything before the first fork
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                train(Path(line.strip()))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)


if __name__ == "__main__":
    main()
