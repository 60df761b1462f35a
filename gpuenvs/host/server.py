"""The process that starts the executors: `python -m gpuenvs.host.server DESCRIPTOR`.

It imports the environment's module once and forks; nothing else runs in it, so a fork copies no lock that a thread holds.
It ends when its executors have, and takes them along when the pool's process ends in whatever way.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import pickle
import select
import signal
import sys
import time
from typing import NoReturn

import gymnasium

from gpuenvs.host import lookup
from gpuenvs.host.executor import Row, run
from gpuenvs.host.memory import Arrays, attach, leave_error, split_rows
from gpuenvs.host.protocol import LENGTH, STATUS, Plan
from gpuenvs.host.spec import HostSpec

_PR_SET_PDEATHSIG = 1


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = int(sys.argv[1])
    (length,) = LENGTH.unpack(_read(control, LENGTH.size))
    plan: Plan = pickle.loads(_read(control, length))
    if plan.bound:
        _die_with_parent(plan.parent)
    arrays = attach(plan.memory, plan.fields)
    os.close(plan.memory)
    sys.path[:] = plan.path
    try:
        spec: HostSpec = pickle.loads(plan.spec)
        lookup.find(spec.id)  # imports it
        gymnasium.logger.min_level = gymnasium.logger.ERROR  # the pool's process has warned already
    except BaseException as error:
        line, trace = lookup.described(plan.name, "starting the executors", error)
        leave_error(arrays, len(plan.commands), time.monotonic_ns(), line, trace)
        sys.exit(1)
    _serve(plan, control, spec, arrays)


def _serve(plan: Plan, control: int, spec: HostSpec, arrays: Arrays) -> None:
    woken, waker = os.pipe()
    for end in (woken, waker):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker)
    gc.freeze()  # the executors share these pages as long as no collection touches them
    server, running = os.getpid(), {}
    for number, rows in enumerate(split_rows(plan.num_envs, len(plan.commands))):
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (control, plan.status, woken, waker, *plan.commands[number + 1 :]):
                os.close(end)
            _execute(plan, spec, arrays, number, rows, server)
        running[pid] = number
        os.close(plan.commands[number])
    os.close(plan.done)
    os.close(plan.log)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(woken, select.POLLIN)
    if hasattr(os, "pidfd_open"):
        # The other end of the control pipe may outlive the parent, in a process that it has forked.
        poll.register(os.pidfd_open(plan.parent), select.POLLIN)
    while running:
        for end, _ in poll.poll():
            if end == woken:
                os.read(woken, 4096)
                _reap(running, plan.status)
            else:
                os.killpg(0, signal.SIGKILL)  # this process too


def _reap(running: dict[int, int], status: int) -> None:
    while running:
        pid, code = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        if pid in running:
            os.write(status, STATUS.pack(running.pop(pid), code))


def _execute(plan: Plan, spec: HostSpec, arrays: Arrays, number: int, rows: range, server: int) -> NoReturn:
    try:
        _die_with_parent(server)
        faulthandler.enable()
        mine = [Row(spec, arrays, row, plan.seed, plan.env_offset) for row in rows]
        run(spec, arrays, mine, number, plan.commands[number], plan.done, plan.log)
    finally:
        os._exit(1)


def _die_with_parent(parent: int) -> None:
    """SIGKILL for this process when the thread that started it ends (Linux; elsewhere the closed pipes have to do)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)


def _read(descriptor: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(descriptor, size)
        if not part:
            os._exit(1)  # the parent has gone
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


if __name__ == "__main__":
    main()
