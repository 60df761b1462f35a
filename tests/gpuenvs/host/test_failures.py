"""Whatever goes wrong in an executor is told at once, with its first traceback, and leaves nothing behind."""

import dataclasses
import os
import signal
import threading
import time

import numpy as np
import pytest

from gpuenvs.errors import ConfigError, HostError
from gpuenvs.host import HostPool, HostSpec, host_spec
from tests.gpuenvs.host.envs import ME
from tests.gpuenvs.host.watching import executors_of, nothing_left, server_of, step_all, wait_gone

FAULTY = f"{ME}Faulty"


@pytest.fixture(scope="module")
def plain():
    return host_spec(FAULTY)


def planted(spec: HostSpec, where: str, how: str) -> HostSpec:
    """The spec of an environment that goes wrong; one whose constructor does cannot be asked for its spaces."""
    return dataclasses.replace(spec, keywords={"where": where, "how": how})


def drive(pool):
    """Start the pool and step it until something fails."""
    pool.start()
    for action in (0, 1, 0, 1, 0, 1, 2, 0, 0):
        step_all(pool, action)


@pytest.mark.parametrize(
    "where, how, message",
    [
        ("init", "raise", r"making it raised RuntimeError: planted in init$"),
        ("init", "kill", r"executor \d \(envs \d to \d\) was killed by SIGKILL$"),
        ("reset", "raise", r"reset of env \d \(episode 0, step 0\) raised RuntimeError: planted in reset$"),
        (
            "second reset",
            "raise",
            r"reset of env \d \(episode 1, step 0\) raised RuntimeError: planted in second reset$",
        ),
        ("step", "raise", r"step of env \d \(episode 1, step 1\) raised RuntimeError: planted in step$"),
        ("step", "sys.exit", r"step of env \d \(episode 1, step 1\) raised SystemExit: planted$"),
        ("step", "shape", r"step of env \d \(episode 1, step 2\) raised ValueError: an observation has shape \(4,\), "),
        ("step", "exit", r"executor \d \(envs \d to \d\) ended with exit code 7$"),
        ("step", "exit 0", r"executor \d \(envs \d to \d\) ended with exit code 0$"),
        ("step", "segfault", r"executor \d \(envs \d to \d\) was killed by SIGSEGV$"),
    ],
)
def test_every_failure_is_told(plain, where, how, message):
    with nothing_left():
        with HostPool(planted(plain, where, how), 4, executors=2) as pool:
            session = server_of(pool)
            with pytest.raises(HostError, match=message) as caught:
                drive(pool)
            text = caught.value.traceback
            if "raised" in message:
                assert text.startswith("Traceback") and ("envs.py" in text or how == "shape")
            else:
                assert text == ""
            with pytest.raises(HostError, match=message):  # and so is every later call
                pool.step([0])
            with pytest.raises(HostError, match=message):
                pool.ready()
            with pytest.raises(HostError, match=message):
                pool.state_dict()
        assert wait_gone(session)
        del pool, caught


def test_all_waiting_threads_hear_of_it(plain):
    with HostPool(planted(plain, "step", "raise"), 3, executors=3) as pool:
        pool.start()
        heard = []

        def wait():
            try:
                while True:
                    pool.ready()
            except HostError as error:
                heard.append(str(error))

        threads = [threading.Thread(target=wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        pool.action[:] = (0, 2, 0)
        pool.step(np.arange(3))
        for thread in threads:
            thread.join(timeout=5)
        assert len(heard) == 3 and len(set(heard)) == 1


def test_the_first_of_several_errors(plain):
    """Two executors raise, one 0.8 s after the other."""
    with HostPool(host_spec(f"{ME}Late"), 2, executors=2) as pool:
        pool.start()
        pool.action[:] = (9, 1)
        pool.step(np.arange(2))
        time.sleep(1.2)
        with pytest.raises(HostError, match=r"step of env 1 .* raised RuntimeError: after 1"):
            pool.ready()


def test_an_executor_that_is_killed_while_it_waits(plain):
    with nothing_left():
        with HostPool(plain, 4, executors=2) as pool:
            pool.start()
            os.kill(executors_of(pool)[1], signal.SIGKILL)
            with pytest.raises(HostError, match=r"executor 1 \(envs 2 to 3\) was killed by SIGKILL"):
                pool.ready()
        del pool


def test_a_killed_server_takes_its_executors_along(plain):
    with nothing_left():
        with HostPool(planted(plain, "step", "hang"), 4, executors=2) as pool:
            pool.start()
            session = server_of(pool)
            pool.action[:] = 2
            pool.step(np.arange(4))
            os.kill(session, signal.SIGKILL)
            with pytest.raises(HostError, match="the process that starts the executors was killed by SIGKILL"):
                pool.ready()
            assert wait_gone(session)
        del pool


def test_executors_that_hang_do_not_hold_up_the_end(plain):
    with nothing_left():
        pool = HostPool(planted(plain, "step", "hang"), 2, executors=2)
        pool.start()
        session = server_of(pool)
        pool.action[:] = 2
        pool.step(np.arange(2))
        pool.close()
        assert wait_gone(session)
        del pool


def test_children_of_environments_end_too():
    pool = HostPool(host_spec(f"{ME}Parent"), 2, executors=1)
    pool.start()
    session = server_of(pool)
    assert len(executors_of(pool)) == 3  # the executor and two children that sleep for ever
    pool.close()
    assert wait_gone(session)


def test_a_module_that_is_gone_by_then(tmp_path):
    file = tmp_path / "vanishing_env.py"
    file.write_text("from tests.gpuenvs.host.envs import make_walk\n")
    spec = host_spec(f"{file}:make_walk")
    file.write_text("raise OSError('gone')\n")
    with (
        pytest.raises(HostError, match=r"vanishing_env\.py, line 1: OSError: gone") as caught,
        HostPool(spec, 2) as pool,
    ):
        pool.start()
    assert "vanishing_env.py" in caught.value.traceback


def test_an_exception_that_is_kept_keeps_no_process(plain):
    with HostPool(planted(plain, "step", "raise"), 2, executors=2) as pool:
        pool.start()
        with pytest.raises(HostError) as caught:
            step_all(pool, 2)
    assert pool._processes._process.returncode == 0  # it could end by itself, and was not killed
    assert caught.value is not None


def test_keywords_that_cannot_travel(plain):
    spec = dataclasses.replace(plain, keywords={"where": lambda: None})
    with nothing_left(), pytest.raises(ConfigError, match="keywords"):
        HostPool(spec, 2)


def test_nothing_is_left_of_pools_that_never_started(plain):
    with nothing_left():
        for _ in range(4):
            with HostPool(plain, 2, executors=1) as pool:
                pass
        del pool
