"""The training's side of one observer: a process of its own that is handed copies of the weights when it asks for them.

Whatever goes to it waits in a slot, the newest in place of the one before, and a thread writes it into a pipe; another thread
reads the lines that come back. So the training never waits for an observer, and all of these sleep until there is something
to do. The process ends with the training's, in whatever way that ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuenvs.errors import GpurlError
from learners.observers.wire import FINISH, WEIGHTS, pack

if TYPE_CHECKING:
    from torch import Tensor

RESTARTS = 3
_ROOT = Path(__file__).resolve().parents[2]
# What it computes with: one thread beside a training that has all the others, and no GPU.
_SMALL = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"),
    "CUDA_VISIBLE_DEVICES": "",
}
# A training's launcher has told it about other processes, with which an observer has nothing to do.
_NOT_FOR_IT = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class ObserverError(GpurlError, RuntimeError):
    """The evaluator or the viewer raised.

    Attributes:
        traceback: of the error in its process, or `""` where none came.
    """

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback


class Observer:
    """One child process, `python -m MODULE`, started at once. Its methods are for one thread.

    An error in it is raised by `results`. When it was killed by a signal that is no error: `say` gets a line, and `results`
    starts it again, `RESTARTS` times at most.

    Args:
        name: for people: "evaluator".
        module: what the child runs; see `learners.observers.child`.
        plan: what it is told first; JSON can hold it.
        say: gets lines for people.
        on_failure: called with the error by another thread, as soon as it is known.
    """

    def __init__(
        self,
        name: str,
        module: str,
        plan: Mapping[str, Any],
        say: Callable[[str], None],
        on_failure: Callable[[ObserverError], None] = lambda error: None,
    ) -> None:
        self.name, self._module, self._plan = name, module, dict(plan)
        self._say, self._on_failure = say, on_failure
        self._restarts = 0
        self._child: _Child | None = None
        self._start()

    def _start(self) -> None:
        self._child = _Child(self.name, self._module, self._plan, self._on_failure)

    @property
    def pid(self) -> int | None:
        """Its process number; None when it is given up."""
        return self._child.process.pid if self._child else None

    @property
    def wants(self) -> bool:
        """Whether it waits for weights. They are not worth copying before."""
        return self._child is not None and self._child.wants

    def offer(self, state: Mapping[str, Tensor], version: int, step: int, **more: Any) -> None:
        """Hand over a policy's state dict. The tensors are copied here; nothing waits."""
        if self._child is not None:
            copies = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in state.items()}
            self._child.wants = False
            self._child.send(WEIGHTS, {"version": version, "step": step, **more}, copies)

    def tell(self, kind: str, message: Mapping[str, Any]) -> None:
        """Send something small, in place of what has not been sent yet of this kind."""
        if self._child is not None:
            self._child.send(kind, message)

    def configure(self, **plan: Any) -> None:
        """What the child is told from its next start on."""
        self._plan.update(plan)

    def results(self) -> list[dict[str, Any]]:
        """What came back since the last call.

        Raises:
            ObserverError: the child raised, or ended by itself.
        """
        child = self._child
        if child is None:
            return []
        found = child.take()
        if child.ended.is_set():
            found += child.take()
            child.close()
            if child.error is not None:
                self._child = None
                raise child.error
            self._replace(child)
        return found

    def _replace(self, child: _Child) -> None:
        """After a death that is nobody's error."""
        how = f"warning: the {self.name} was killed by {signal.Signals(child.signum).name}; training goes on"
        if self._restarts >= RESTARTS:
            self._child = None
            self._say(f"{how} without it (it has been started again {RESTARTS} times)")
            return
        self._restarts += 1
        self._say(f"{how}, and it is started again ({self._restarts} of {RESTARTS} times)")
        self._start()

    def finish(self, seconds: float) -> list[dict[str, Any]]:
        """Let it complete what it is doing for so long, then end it. Raises as `results` does."""
        child = self._child
        if child is None:
            return []
        child.finishing = True
        child.send(FINISH, {})
        child.ended.wait(seconds)
        child.close()
        self._child = None
        if child.error is not None:
            raise child.error
        return child.take()

    def close(self) -> None:
        """End it at once, whatever it is doing."""
        if self._child is not None:
            self._child.close()
            self._child = None


class _Child:
    """One life of the process, with the two threads that talk to it.

    Attributes:
        wants: it has asked for weights.
        finishing: it has been told to end.
        ended: it is gone, and `error` or `signum` say how.
    """

    def __init__(
        self, name: str, module: str, plan: Mapping[str, Any], on_failure: Callable[[ObserverError], None]
    ) -> None:
        self.wants, self.finishing, self.ended = False, False, threading.Event()
        self.error: ObserverError | None = None
        self.signum = 0
        self._name, self._on_failure = name, on_failure
        self._closing = False
        self._found: deque[dict[str, Any]] = deque()
        self._slots: dict[str, tuple[Mapping[str, Any], Mapping[str, Tensor]]] = {}
        self._news = threading.Condition()
        orders, results = os.pipe(), os.pipe()
        plan = {
            **plan,
            "parent": os.getpid(),
            # The system can tie a child to the thread that started it, which must not end before the process does.
            "bound": threading.current_thread() is threading.main_thread(),
            "path": [os.getcwd() if entry == "" else entry for entry in sys.path],
        }
        self._writer, self._reader = orders[1], results[0]
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, str(orders[0]), str(results[1])],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what it prints must not get into what the command prints
                pass_fds=(orders[0], results[1]),
                start_new_session=True,  # a terminal's Ctrl-C is for the training
                env=_environment(),
            )
        finally:
            os.close(orders[0])
            os.close(results[1])
        self.send("plan", plan)
        threads = ((self._send, "send"), (self._read, "read"))
        self._threads = [
            threading.Thread(target=job, name=f"gpurl-{name}-{what}", daemon=True) for job, what in threads
        ]
        for thread in self._threads:
            thread.start()

    def send(self, kind: str, message: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> None:
        """Have the thread write this next, in place of an earlier message of the kind."""
        with self._news:
            self._slots[kind] = message, tensors or {}
            self._news.notify()

    def take(self) -> list[dict[str, Any]]:
        """The lines read so far, without those that are about the talk itself."""
        found = []
        while self._found:
            found.append(self._found.popleft())
        return found

    def _send(self) -> None:
        try:
            while True:
                with self._news:
                    self._news.wait_for(lambda: self._slots or self._closing)
                    if self._closing:
                        return
                    kind = next(iter(self._slots))
                    message, tensors = self._slots.pop(kind)
                data = memoryview(pack(kind, message, tensors))
                while data:
                    data = data[os.write(self._writer, data) :]
        except OSError:
            return  # it is gone; the other thread knows how
        finally:
            os.close(self._writer)

    def _read(self) -> None:
        error = None
        with os.fdopen(self._reader, "rb") as lines:
            for line in lines:
                with contextlib.suppress(ValueError):  # cut by a kill
                    message = json.loads(line)
                    if "error" in message:
                        error = ObserverError(f"the {self._name} failed: {message['error']}", message["traceback"])
                    elif "wants" in message:
                        self.wants = True
                    else:
                        self._found.append(message)
        code = self.process.wait()
        if error is None and not self._closing and (code > 0 or (code == 0 and not self.finishing)):
            error = ObserverError(f"the {self._name} ended with exit code {code}")
        self.error, self.signum = error, max(0, -code)
        self.ended.set()
        if error is not None:
            self._on_failure(error)

    def close(self) -> None:
        """Kill it if it still lives, and wait for both threads."""
        with self._news:
            self._closing = True
            self._news.notify()
        if not self.ended.is_set():
            self.process.kill()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_IT}
    return {**kept, **_SMALL, "PYTHONPATH": path}
