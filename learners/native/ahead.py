"""Kernels of the update compiled by another process, while this one compiles those that fill the first rollout.

numba compiles one function at a time in a process, so a second core helps only a second process. The two meet in the cache of
kernels on disk: where there is none, one core, or every kernel there already, nothing is started. What goes wrong over there
costs time and nothing else: a kernel that is not found is compiled here.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

from gpuenvs.runtime.disk_cache import lacks
from gpuenvs.runtime.threads import allowed_cores
from learners.native.epochs import make_kernels, no_minibatch
from learners.native.network import Plan

# How long `Ahead.wait` waits; a kernel takes a few seconds.
TIMEOUT_SECONDS = 60


class Job(NamedTuple):
    """The `epochs` kernel of one network; see `Plan`, `make_kernels` and `no_minibatch` for the fields."""

    sizes: tuple[int, ...]
    activation: str
    log_std: bool
    critic: bool
    betas: tuple[float, float]
    discrete: bool

    def compile(self) -> None:
        """Make the kernel, and with it its entry on disk."""
        plan = Plan(tuple(self.sizes), self.activation, self.log_std)
        make_kernels(plan, self.critic, self.betas).epochs(*no_minibatch(plan, self.discrete))


class Ahead:
    """A process that makes `jobs`. It ends by itself, or with this object."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, json.dumps(list(jobs))],
            env={**os.environ, "PYTHONPATH": paths},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the training, which may go on to its checkpoint
        )  # fmt: skip
        self._end = weakref.finalize(self, _end, self._process)

    def wait(self) -> None:
        """Until all is made, or TIMEOUT_SECONDS."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(TIMEOUT_SECONDS)
        self._end()


def _end(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()


def start(jobs: Iterable[tuple[Job, Any]]) -> Ahead | None:
    """Compile those of (job, its kernels here) that the disk lacks; None if there is nothing to do or to gain."""
    if allowed_cores() < 2:
        return None
    missing = []
    for job, kernels in jobs:
        plan = Plan(job.sizes, job.activation, job.log_std)
        if lacks(kernels.epochs, no_minibatch(plan, job.discrete)):
            missing.append(job)
    if not missing:
        return None
    with contextlib.suppress(OSError):  # no memory or no process to be had
        return Ahead(missing)
    return None


if __name__ == "__main__":
    for _job in json.loads(sys.argv[1]):
        Job(*_job).compile()
