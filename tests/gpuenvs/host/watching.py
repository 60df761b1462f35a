"""Looking at what a pool does, and at what it leaves behind."""

import contextlib
import gc
import os
import threading
import time
from pathlib import Path

import numpy as np

from gpuenvs.host import HostPool


def action_of(pool, row, step):
    """The action of a row in a step: a function of both."""
    generator = np.random.default_rng((row, step))
    if pool.spec.discrete:
        return generator.integers(pool.single_action_space.n)
    return 2 * generator.standard_normal(pool.action.shape[1])


def record(pool, row):
    """Everything that a pool says of the last step of a row."""
    ended = pool.terminated[row] or pool.truncated[row]
    last = (pool.final_obs[row].tobytes(), float(pool.episode_return[row]), int(pool.episode_length[row]))
    return (
        pool.obs[row].tobytes(),
        float(pool.reward[row]),
        bool(pool.terminated[row]),
        bool(pool.truncated[row]),
        last if ended else None,
    )


def play(pool, steps, begin=0):
    """Every row takes `steps` steps at its own pace, numbered from `begin`; per row a list of `record`."""
    taken = [[] for _ in range(pool.num_envs)]

    def ask(row):
        pool.action[row] = action_of(pool, row, begin + len(taken[row]))
        pool.step(np.array([row]))

    for row in range(pool.num_envs):
        ask(row)
    while any(len(rows) < steps for rows in taken):
        for row in pool.ready():
            taken[row].append(record(pool, row))
            if len(taken[row]) < steps:
                ask(row)
    return taken


def step_all(pool, action):
    """One step of every row with the same action."""
    pool.action[:] = action
    pool.step(np.arange(pool.num_envs))
    waiting = pool.num_envs
    while waiting:
        waiting -= len(pool.ready())


def server_of(pool: HostPool) -> int:
    """Process number of the pool's server, which is the number of its session too."""
    return pool._processes._process.pid


def session_members(session):
    """Process numbers of a session's living processes: a server's, its executors' and their children's."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state, _, _, member_of = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:4]
                if int(member_of) == session and state != "Z":
                    found.append(int(entry.name))
    return sorted(found)


def executors_of(pool):
    """Process numbers of the pool's executors, in order."""
    return [pid for pid in session_members(server_of(pool)) if pid != server_of(pool)]


def wait_gone(session, seconds=5.0):
    """Whether all processes of a session end within this time."""
    deadline = time.monotonic() + seconds
    while session_members(session):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@contextlib.contextmanager
def nothing_left():
    """Fails when descriptors, threads or shared memory are there afterwards that were not before."""
    gc.collect()
    before = _resources()
    yield
    gc.collect()
    for name, then, now in zip(("descriptors", "shared memory", "threads"), before, _resources()):
        assert now == then, name


def _resources():
    shared = Path("/dev/shm")
    names = sorted(entry.name for entry in shared.iterdir()) if shared.is_dir() else []
    own = [name for name in names if "gpurl" in name or "psm_" in name]
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that lists the folder
            links.append(os.readlink(f"/proc/self/fd/{descriptor}").split(":")[0])
    return sorted(links), own, threading.active_count()
