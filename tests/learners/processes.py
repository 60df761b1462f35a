"""Runs a function in several processes that train together, each forked from a server that has imported everything."""

import contextlib
import multiprocessing
import os
import socket
import time
import traceback

import torch

from learners import distributed

SECONDS = 240  # for a busy machine that has to compile first; nothing here takes long

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["learners.session", "learners.ppo", "learners.a2c", "tests.learners.parallel_jobs"])


class Team:
    """`size` processes running `job(*arguments)`. Context manager; none of them outlives it."""

    def __init__(self, job, *arguments, size=2):
        port = free_port()
        self._pipes = [_context.Pipe() for _ in range(size)]
        self.processes = [
            _context.Process(target=_run, args=(pipe[1], rank, size, port, job, arguments), daemon=True)
            for rank, pipe in enumerate(self._pipes)
        ]

    def __enter__(self):
        for process in self.processes:
            process.start()
        for _, theirs in self._pipes:
            theirs.close()  # a process that dies is an end of file here
        return self

    def __exit__(self, *error):
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join()

    def receive(self, rank):
        """The next thing that the process sent."""
        pipe = self._pipes[rank][0]
        if not pipe.poll(SECONDS):
            raise TimeoutError(f"process {rank} has said nothing for {SECONDS} s")
        return pipe.recv()

    def results(self):
        """What the job returned in each process, or the error it raised; None for a process that was killed."""
        found = []
        for rank in range(len(self.processes)):
            try:
                found.append(self.receive(rank))
            except EOFError:
                found.append(None)
        return found

    def exit_codes(self):
        """How the processes ended, all within the time."""
        deadline = time.monotonic() + SECONDS
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        return [process.exitcode for process in self.processes]


def together(job, *arguments, size=2):
    """The results of `job(*arguments)` in all processes; the first error is raised here."""
    with Team(job, *arguments, size=size) as team:
        results = team.results()
        for result in results:
            if isinstance(result, BaseException):
                raise result
        assert team.exit_codes() == [0] * size
    return results


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _run(pipe, rank, size, port, job, arguments):
    place = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()}, MASTER_ADDR="127.0.0.1")
    torch.set_num_threads(1)
    code = 0
    try:
        result = job(*arguments)
    except BaseException as error:
        if os.environ.get("GPURL_TEST_TRACEBACKS"):
            traceback.print_exc()
        result, code = error, 1
    with contextlib.suppress(BrokenPipeError):
        pipe.send(result)
    if distributed.broken:
        os._exit(code)  # as `gpurl` does
    raise SystemExit(code)
