"""The pool's side of its processes: starting them, talking to them, noticing when one fails, ending them all."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np

from gpuenvs.errors import ConfigError, HostError
from gpuenvs.host import memory
from gpuenvs.host.protocol import ATOMIC_WORDS, FAILED, LENGTH, MARK, READ, STATUS, WOKEN, WORD, Plan
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

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.number)


def _pipe() -> tuple[Descriptor, Descriptor]:
    reader, writer = os.pipe()
    return Descriptor(reader), Descriptor(writer)


class Processes:
    """A server and its executors.

    Attributes:
        arrays: what is shared with them.
    """

    def __init__(self, spec: HostSpec, num_envs: int, executors: int, seed: int, env_offset: int) -> None:
        self._spec, self._num_envs, self._executors = spec, num_envs, executors
        table = memory.fields(spec, num_envs, executors)
        shared, log = Descriptor(memory.create(table)), Descriptor(memory.anonymous_file())
        self.arrays = memory.attach(shared.number, table)
        done, control, status = _pipe(), _pipe(), _pipe()
        commands = [_pipe() for _ in range(executors)]
        plan = Plan(
            name=spec.id,
            spec=_pickled(spec),
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
            [sys.executable, "-P", "-m", "gpuenvs.host.server", str(control[0].number)],
            stdin=subprocess.DEVNULL,
            stdout=2,  # what environments print must not get into what a command prints
            pass_fds=(control[0].number, plan.memory, plan.log, plan.status, plan.done, *plan.commands),
            start_new_session=True,  # a terminal's Ctrl-C is for this process
            env={**os.environ, **dict.fromkeys(_ONE_THREAD, "1"), "PYTHONPATH": path},
        )
        self._done: tuple[Descriptor, Descriptor] | None = done
        self._commands: list[Descriptor] | None = [writer for _, writer in commands]
        self._commands_lock = threading.Lock()  # they are closed while no thread writes
        self._log: Descriptor | None = log
        self._control: Descriptor | None = control[1]
        self._failure: tuple[str, str] | None = None  # message and traceback
        self._known = threading.Event()  # set when there is an error, or when the server has ended
        self._closing = False
        self._pid = os.getpid()
        data = pickle.dumps(plan)
        with contextlib.suppress(BrokenPipeError):  # the watcher will say why
            _write(control[1].number, LENGTH.pack(len(data)) + data)
        self._watcher = threading.Thread(target=self._watch, args=(status[0],), name="gpuenvs-host-watch", daemon=True)
        self._watcher.start()

    def close_with(self, owner: object) -> None:
        """Close when `owner` is collected, or when the interpreter ends."""
        weakref.finalize(owner, self.close)

    # --- words -------------------------------------------------------------------------------------------------------
    # These return None or False where the processes have failed or were closed: an exception from in here would keep the
    # descriptors of its frame open for as long as somebody keeps the exception.

    def read(self) -> bytes | None:
        """Wait for words of finished rows; empty for a call that `wake` has ended. None: `error` says why."""
        done = self._done
        if done is None:
            return None
        reader, writer = done
        data = os.read(reader.number, READ)
        if MARK not in data:
            return data
        # Marks that are not for this call go back into the pipe, for the next.
        words = np.frombuffer(data, np.int64)
        if FAILED in words:
            os.write(writer.number, WORD.pack(FAILED))
            return None
        rows = words[words >= 0]
        for _ in range(int((words == WOKEN).sum()) - (rows.size == 0)):
            os.write(writer.number, WORD.pack(WOKEN))
        return rows.tobytes()

    def wake(self, count: int) -> None:
        """Let `count` calls of `read`, those that wait or the next ones, return no words."""
        self._mark(WOKEN, count)

    def _mark(self, word: int, count: int = 1) -> None:
        done = self._done
        if done is not None:
            for _ in range(count):
                os.write(done[1].number, WORD.pack(word))

    def send(self, words: dict[int, list[bytes]]) -> bool:
        """Send words to executors, without waiting for them. False: `error` says why."""
        with self._commands_lock:
            if self._commands is None:
                return False
            try:
                for executor, mine in words.items():
                    for first in range(0, len(mine), ATOMIC_WORDS):
                        os.write(self._commands[executor].number, b"".join(mine[first : first + ATOMIC_WORDS]))
            except BrokenPipeError:
                return False
        return True

    def read_log(self, size: int) -> bytes | None:
        """The first bytes of the log file, which is empty afterwards."""
        log = self._log
        if log is None:
            return None
        data = b""
        while len(data) < size:
            data += os.pread(log.number, size - len(data), len(data))
        os.ftruncate(log.number, 0)
        return data

    def write_log(self, data: bytes) -> bool:
        """Let the log file hold these bytes."""
        log = self._log
        if log is None:
            return False
        os.ftruncate(log.number, 0)
        os.lseek(log.number, 0, os.SEEK_SET)
        _write(log.number, data)
        return True

    # --- failures ----------------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether they have failed or were closed."""
        return self._closing or self._failure is not None

    def error(self) -> HostError:
        """Why the processes do not answer; waits until that is known."""
        if not self._closing:
            self._known.wait(timeout=10)
        return HostError(*(self._failure or (f"{self._spec.id}: the pool is closed",)))

    def _watch(self, status: Descriptor) -> None:
        """Wait for executors that end, then for the server."""
        while record := os.read(status.number, STATUS.size):
            self._fail(*STATUS.unpack(record))
        if hasattr(os, "waitid"):
            # The server has ended, but while nobody has asked for its exit code its number means no other group of processes.
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
            self._kill()
        code = self._process.wait()
        self._fail(None, -code if code < 0 else code << 8)
        self._known.set()

    def _fail(self, executor: int | None, status: int) -> None:
        """The first failure ends every `read`."""
        if self.over:
            return
        self._failure = self._explain(executor, status)
        self._known.set()
        self._mark(FAILED)

    def _explain(self, executor: int | None, status: int) -> tuple[str, str]:
        first = memory.first_error(self.arrays)
        if first is not None:
            return first
        if os.WIFSIGNALED(status):
            how = f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
        else:
            how = f"ended with exit code {os.WEXITSTATUS(status)}"
        if executor is None:
            return f"{self._spec.id}: the process that starts the executors {how}", ""
        rows = memory.split_rows(self._num_envs, self._executors)[executor]
        return f"{self._spec.id}: executor {executor} (envs {rows[0]} to {rows[-1]}) {how}", ""

    # --- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End all processes and this side's thread. A child that this process has forked leaves them alone."""
        if self._closing or self._pid != os.getpid():
            return
        self._closing = True
        self._mark(FAILED)
        self._done = self._log = None
        with self._commands_lock:
            self._commands = None  # what executors wait for: they end
        if threading.current_thread() is not self._watcher:
            self._watcher.join(CLOSING_SECONDS)
            if self._watcher.is_alive():
                self._kill()
                self._watcher.join()
        self._control = None

    def _kill(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)


def _pickled(spec: HostSpec) -> bytes:
    try:
        return pickle.dumps(spec)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(f"{spec.id}: its keywords cannot be given to another process: {error}") from error


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
