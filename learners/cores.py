"""Cores set apart for the sampler's threads and for the learner's, so that neither takes the other's."""

from __future__ import annotations

import os

from gpuenvs.errors import ConfigError


class CoreSplit:
    """The first `count` of the cores that this process may use for one thread and those it starts, the rest for another.

    A thread's cores are inherited by the threads that it starts. Where the system knows no affinity nothing is set.

    Raises:
        ConfigError: there are not more than `count` cores.
    """

    def __init__(self, count: int) -> None:
        self._all = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
        cores = sorted(self._all)
        if self._all and count >= len(cores):
            raise ConfigError(
                f"sampler_cores={count}: this process may use {len(cores)}, and the learner needs one; use fewer"
            )
        self.sampler, self.learner = set(cores[:count]), set(cores[count:])

    def enter_sampler(self) -> None:
        """The calling thread is the sampler's."""
        if self._all:
            os.sched_setaffinity(0, self.sampler)

    def enter_learner(self) -> None:
        """The calling thread is the learner's."""
        if self._all:
            os.sched_setaffinity(0, self.learner)

    def leave(self) -> None:
        """The calling thread may use all cores again."""
        if self._all:
            os.sched_setaffinity(0, self._all)
