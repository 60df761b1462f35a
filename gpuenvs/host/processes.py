"""The pool's side of its processes: starting them, noticing when one of them fails, ending them all."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path

from gpuenvs.errors import HostError
from gpuenvs.host import memory
from gpuenvs.host.protocol import FAILED, LENGTH, STATUS, WORD, Plan
from gpuenvs.host.spec import HostSpec

CLOSING_SECONDS = 1.0  # how long executors may finish their step and close their environments before they are killed
_ROOT = Path(__file__).resolve().parents[2]
# One executor is one core: no library in it may start threads of its own.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


class Descriptor:
    """A file descriptor that is closed when nobody refers to it any more, so never under a thread that reads from it."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


def _pipe() -> tuple[Descriptor, Descriptor]:
    reader, writer = os.pipe()
    return Descriptor(reader), Descriptor(writer)


class Ends:
    """The pool's ends of the pipes, and the log file."""

    def __init__(self, done: tuple[Descriptor, Descriptor], commands: list[Descriptor], log: Descriptor) -> None:
        self._held = (*done, *commands, log)
        self.done, self.done_writer = done[0].number, done[1].number
        self.commands = [end.number for end in commands]
        self.log = log.number


class Processes:
    """A server and its executors.

    Attributes:
        arrays: what is shared with them.
        ends: the pipes; None when closed. Hold a reference to it for as long as a descriptor is used.
    """

    def __init__(self, spec: HostSpec, num_envs: int, executors: int, seed: int, env_offset: int) -> None:
        self._spec, self._num_envs, self._executors = spec, num_envs, executors
        table = memory.fields(spec, num_envs, executors)
        shared, log = Descriptor(memory.create(table)), Descriptor(memory.anonymous_file())
        self.arrays = memory.attach(shared.number, table)
        done, control, status = _pipe(), _pipe(), _pipe()
        commands = [_pipe() for _ in range(executors)]
        plan = Plan(
            spec=pickle.dumps(spec),
            path=[os.getcwd() if entry == "" else entry for entry in sys.path],
            fields=table,
            num_envs=num_envs,
            seed=seed,
            env_offset=env_offset,
            parent=os.getpid(),
            bound=threading.current_thread() is threading.main_thread(),
            memory=shared.number,
            log=log.number,
            status=status[1].number,
            done=done[1].number,
            commands=[reader.number for reader, _ in commands],
        )
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gpuenvs.host.server", str(control[0].number)],
            stdin=subprocess.DEVNULL,
            stdout=2,  # what environments print must not get into what a command prints
            pass_fds=(control[0].number, plan.memory, plan.log, plan.status, plan.done, *plan.commands),
            start_new_session=True,  # a terminal's Ctrl-C is for this process
            env={**os.environ, **dict.fromkeys(_ONE_THREAD, "1"), "PYTHONPATH": path},
        )
        self.ends: Ends | None = Ends(done, [writer for _, writer in commands], log)
        self._control: Descriptor | None = control[1]
        self._status = status[0]
        self._error: HostError | None = None
        self._known = threading.Event()  # set when there is an error, or when the server has ended
        self._closing = False
        self._pid = os.getpid()
        data = pickle.dumps(plan)
        with contextlib.suppress(BrokenPipeError):  # then the watcher says why
            _write(control[1].number, LENGTH.pack(len(data)) + data)
        self._watcher = threading.Thread(target=self._watch, name="gpuenvs-host-watch", daemon=True)
        self._watcher.start()

    # --- failures ----------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Wait for the first executor that ends, then for the server."""
        while record := os.read(self._status.number, STATUS.size):
            if not self._closing and self._error is None:
                self._fail(self._explain(*STATUS.unpack(record)))
        # The server has ended or is about to. While it is not reaped its number cannot mean another group of processes.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        self._kill()
        code = self._process.wait()
        if not self._closing and self._error is None:
            self._fail(self._explain(None, -code if code < 0 else code << 8))
        self._known.set()

    def _fail(self, error: HostError) -> None:
        self._error = error
        self._known.set()
        self._mark_failed()

    def _mark_failed(self) -> None:
        """End every read of finished rows; whoever reads the mark puts it back for the next."""
        ends = self.ends
        if ends is not None:
            os.write(ends.done_writer, WORD.pack(FAILED))

    def _explain(self, number: int | None, status: int) -> HostError:
        first = memory.first_error(self.arrays)
        if first is not None:
            return HostError(*first)
        if os.WIFSIGNALED(status):
            how = f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
        else:
            how = f"ended with exit code {os.WEXITSTATUS(status)}"
        if number is None:
            return HostError(f"{self._spec.id}: the process that starts the executors {how}")
        rows = memory.split_rows(self._num_envs, self._executors)[number]
        return HostError(f"{self._spec.id}: executor {number} (envs {rows[0]} to {rows[-1]}) {how}")

    def error(self) -> HostError:
        """Why the processes do not answer; waits until that is known."""
        if not self._closing:
            self._known.wait(timeout=10)
        return self._error or HostError(f"{self._spec.id}: the pool is closed")

    # --- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End all processes and this side's thread; who waits for a row gets an error. A forked child leaves them alone."""
        if self._closing or self._pid != os.getpid():
            return
        self._closing = True
        self._mark_failed()
        self.ends = None  # the executors' pipes close
        if threading.current_thread() is not self._watcher:
            self._watcher.join(CLOSING_SECONDS)
            if self._watcher.is_alive():
                self._kill()
                self._watcher.join()
        self._control = None

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def end_with(owner: object, processes: Processes) -> None:
    """Close the processes when `owner` is collected or the interpreter ends."""
    weakref.finalize(owner, processes.close)
