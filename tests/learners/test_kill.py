"""kill -9 at random moments: what is left is always a run that goes on to the very same weights.

Five moments here; `GPURL_KILLS=30 pytest tests/learners/test_kill.py` for thirty.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from learners import checkpoint
from learners.runs import RunDirectory
from tests.learners import kill_server
from tests.learners.tiny import ITERATION, stable_rows, weights

KILLS = int(os.environ.get("GPURL_KILLS", "5"))
ROOT = Path(__file__).resolve().parents[2]


class Server:
    """A running `kill_server`."""

    def __init__(self):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tests.learners.kill_server"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
        )

    def start(self, run):
        """A child that begins or resumes the run; its process number."""
        self.process.stdin.write(f"{run.path}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def wait(self):
        """The child's wait status."""
        return int(self.process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.stdin.close()
        self.process.wait(timeout=60)


def newest(run):
    """Step of the latest checkpoint, -1 before there is one."""
    return max((step for step, _ in checkpoint.list_steps(run.checkpoints)), default=-1)


END = kill_server.ITERATIONS * ITERATION


def kill_on_the_way(server, run, moments, kills):
    """Kill the run up to `kills` times, fewer if it gets to its end before; how often it was."""
    killed, last = 0, -1
    while killed < kills and newest(run) < END:
        # A random way into the rest of the run, then a random moment of the iteration there, or of the start.
        goal = last + moments.randint(0, 2 * (END - last) // (kills - killed + 1))
        child = server.start(run)
        deadline = time.monotonic() + 60
        while newest(run) < goal and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(moments.choice((0.0, 0.003, 0.03)) * moments.random())
        with contextlib.suppress(ProcessLookupError):  # it was done already
            os.kill(child, signal.SIGKILL)
        assert server.wait() in (0, signal.SIGKILL)
        killed += 1
        for step, path in checkpoint.list_steps(run.checkpoints):
            assert checkpoint.load(path)["trainer"]["step"] == step  # whole, every one of them
        assert newest(run) >= last  # nothing that was saved is lost
        last = newest(run)
    return killed


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_anywhere_it_goes_on_to_the_same_weights(tmp_path):
    undisturbed, moments, killed = RunDirectory(tmp_path / "undisturbed"), random.Random(0), 0
    with Server() as server:
        server.start(undisturbed)
        assert server.wait() == 0
        while killed < KILLS:  # a fast machine may get to the end between two kills: then another run
            run = RunDirectory(tmp_path / f"run-{killed}")
            killed += kill_on_the_way(server, run, moments, KILLS - killed)
            if newest(run) < END:
                server.start(run)
                assert server.wait() == 0
            assert weights(run) == weights(undisturbed)
            assert stable_rows(run) == stable_rows(undisturbed)
    assert killed == KILLS
