"""No process outlives the one that made the pool, however that ends."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.gpuenvs.host.watching import session_members, wait_gone

ROOT = Path(__file__).resolve().parents[3]

START = """
import os, signal, sys, threading, time
import numpy as np
from gpuenvs.errors import HostError
from gpuenvs.host import HostPool, host_spec
from tests.gpuenvs.host.envs import ME
from tests.gpuenvs.host.watching import executors_of, server_of, step_all

signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that run in the background leave it ignored

def make(**keywords):
    pool = HostPool(host_spec(f"{ME}Faulty", keywords), 3, executors=3)
    pool.start()
    print(server_of(pool), flush=True)
    sys.stdin.readline()
    return pool
"""


@contextlib.contextmanager
def program(code):
    """A running program that makes a pool; gives the program and the session of the pool's processes."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", START + textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=ROOT,
        start_new_session=True,  # so that signals can be sent to its whole group, as a terminal does
    )
    session = 0
    try:
        assert process.stdout is not None
        session = int(process.stdout.readline() or 0)
        assert session, process.stderr.read()
        assert len(session_members(session)) == 4
        process.stdin.write("\n")
        process.stdin.flush()
        yield process, session
    finally:
        for group in filter(None, (process.pid, session)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        process.communicate()
        process.wait()


HANGING = """
pool = make(where="step", how="hang")
pool.action[:] = 2
pool.step(np.arange(3))
print("stepping", flush=True)
"""

IN_THREAD = """
thread = threading.Thread(target=lambda: globals().update(pool=make()))
thread.start()
thread.join()
while threading.active_count() > 2:  # the main thread and the pool's
    pass
time.sleep(0.1)  # for the system's thread to end too
step_all(pool, 1)
"""


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("pool = make()\nprint(flush=True)\ntime.sleep(1000)", id="idle"),
        pytest.param(f"{HANGING}\ntime.sleep(1000)", id="stepping"),
        pytest.param(f"{HANGING}\npool.ready()", id="waiting"),
        pytest.param(f"{IN_THREAD}\nprint(flush=True)\ntime.sleep(1000)", id="made in a thread that has ended"),
        pytest.param(
            f"{IN_THREAD}\nif os.fork() == 0: time.sleep(60); os._exit(0)\nprint(flush=True)\ntime.sleep(1000)",
            id="with a child that holds the pipes",
        ),
    ],
)
def test_the_parent_is_killed(code):
    with program(code) as (process, session):
        assert process.stdout.readline()
        process.kill()
        process.wait()
        assert wait_gone(session)


def test_the_server_is_killed_while_the_parent_cannot_act():
    with program(f"{HANGING}\npool.ready()") as (process, session):
        assert process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        os.kill(session, signal.SIGKILL)
        assert wait_gone(session)


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_the_parent(signal_number):
    with program(f"{HANGING}\npool.ready()") as (process, session):
        process.stdout.readline()
        os.kill(process.pid, signal_number)
        assert process.wait(timeout=10) == -signal_number
        assert wait_gone(session)


def test_the_interpreter_ends_without_close():
    with program("pool = make()\nstep_all(pool, 1)") as (process, session):
        assert process.wait(timeout=10) == 0
        assert process.stderr.read() == ""
        assert wait_gone(session)


def test_an_error_ends_the_interpreter():
    with program("pool = make(where='step')\nstep_all(pool, 2)") as (process, session):
        assert process.wait(timeout=10) == 1
        assert "HostError" in process.stderr.read()
        assert wait_gone(session)


def test_a_terminals_interrupt_does_not_reach_executors():
    code = """
    pool = make()
    signal.signal(signal.SIGINT, lambda *_: None)
    print(*executors_of(pool), flush=True)
    sys.stdin.readline()
    for _ in range(20):
        step_all(pool, 1)
    assert len(executors_of(pool)) == 3
    pool.close()
    print("unharmed", flush=True)
    """
    with program(code) as (process, session):
        executors = [int(word) for word in process.stdout.readline().split()]
        os.killpg(process.pid, signal.SIGINT)
        for executor in executors:  # nor does one that is sent to them
            os.kill(executor, signal.SIGINT)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "unharmed\n", process.stderr.read()
        assert wait_gone(session)


def test_a_forked_child_leaves_the_processes_alone():
    code = """
    pool = make()
    child = os.fork()
    if child == 0:
        pool.close()
        del pool
        sys.exit(0)  # with all that is done at exit
    assert os.waitpid(child, 0)[1] == 0
    step_all(pool, 1)
    print("unharmed", flush=True)
    """
    with program(code) as (process, _):
        assert process.stdout.readline() == "unharmed\n", process.stderr.read()


def test_executors_have_no_threads_and_no_output_of_their_own():
    """What an environment prints goes to stderr; a library that would start threads has been told not to."""
    code = """
    pool = make()
    print(*(len(os.listdir(f"/proc/{pid}/task")) for pid in executors_of(pool)), flush=True)
    spec = host_spec(f"{ME}Printing")
    with HostPool(spec, 1) as printing:
        printing.start()
    print("end", flush=True)
    """
    with program(code) as (process, _):
        assert process.stdout.readline() == "1 1 1\n"
        assert process.stdout.readline() == "end\n"
        assert process.wait(timeout=10) == 0
        assert process.stderr.read() == "printed with OMP_NUM_THREADS=1\n"
