"""The collector on real executor processes."""

import os
import signal
import threading
import time

import pytest
import torch

from gpuenvs.errors import HostError
from gpuenvs.host import HostPool, host_spec
from tests.gpuenvs.host.envs import ME
from tests.gpuenvs.host.watching import executors_of, nothing_left, server_of, wait_gone
from tests.learners.host.test_collector import collecting, contents, horizons, pipelined, policy_for, same, storage


@pytest.fixture(scope="module", params=["Walk", "Push"])
def spec(request):
    return host_spec(f"{ME}{request.param}", {"sleep": 0.002})


def test_the_bits_do_not_depend_on_processes_and_threads(spec):
    def run(executors, actors, lockstep, opened):
        pool = HostPool(spec, 6, executors=executors, seed=5)
        return horizons(pool, policy_for(pool), 4, opened, actors=actors, lockstep=lockstep)

    first = run(1, 1, False, 1)
    for way in ((2, 2, False, 2), (4, 1, False, 2), (4, 2, True, 1)):
        assert same(first, run(*way)), way
    assert any(len(horizon["episode_length"]) for horizon in first)


def test_resuming_in_the_middle_of_episodes(spec):
    def fresh():
        return HostPool(spec, 6, executors=3, seed=5)

    pool = fresh()
    policy = policy_for(pool)
    with collecting(pool, actors=2) as collector:
        begun = list(pipelined(collector, pool, policy, 2, 2))
        state = collector.state_dict()
        rest = list(pipelined(collector, pool, policy, 2, 2, first=2))
    pool = fresh()
    with collecting(pool, actors=2) as collector:
        collector.load_state_dict(state)
        assert same(rest, list(pipelined(collector, pool, policy, 2, 2, first=2)))
        collector.load_state_dict(state)  # also in the middle of a run
        assert same(rest, list(pipelined(collector, pool, policy, 2, 2, first=2)))
    assert not same(begun, rest)


def test_images_of_processes():
    spec = host_spec(f"{ME}Spaces", {"obs": "first", "act": "plain"})

    def run(executors, actors):
        pool = HostPool(spec, 5, executors=executors)
        policy = policy_for(pool, (8,))
        with collecting(pool, actors=actors) as collector:
            return contents(collector.collect(policy, storage(pool, 4)))

    one, two = run(1, 1), run(3, 2)
    assert one["obs"].dtype == torch.uint8 and same([one], [two])


@pytest.mark.parametrize("lockstep", [False, True])
def test_what_goes_wrong_in_a_process_is_raised_and_leaves_nothing(lockstep):
    with nothing_left():
        pool = HostPool(host_spec(f"{ME}Faulty", {"where": "step"}), 4, executors=2)
        session = server_of(pool)
        with collecting(pool, actors=2, lockstep=lockstep) as collector:
            with pytest.raises(HostError, match="planted"):
                collector.collect(policy_for(pool), storage(pool, 50))
            del collector
        assert wait_gone(session)
        del pool


def test_a_killed_executor_ends_the_wait():
    pool = HostPool(host_spec(f"{ME}Walk", {"sleep": 0.01}), 4, executors=2)
    killed = []

    def kill():
        killed.append(time.monotonic())
        os.kill(executors_of(pool)[0], signal.SIGKILL)

    with collecting(pool, actors=2) as collector:
        collector.collect(policy_for(pool), storage(pool, 3))
        timer = threading.Timer(0.2, kill)
        timer.start()
        with pytest.raises(HostError, match="killed by SIGKILL"):
            collector.collect(policy_for(pool), storage(pool, 10_000))
        assert time.monotonic() - killed[0] < 5  # the machine may be busy; else it is at once
        timer.join()


@pytest.mark.parametrize("pool_first", [False, True])
def test_the_end_in_the_middle_in_either_order(pool_first):
    with nothing_left():
        pool = HostPool(host_spec(f"{ME}Walk", {"sleep": 0.05}), 4, executors=2)
        session = server_of(pool)
        with collecting(pool, actors=2) as collector:
            collector.open(policy_for(pool), storage(pool, 1000))
            if pool_first:
                pool.close()
        assert wait_gone(session)
        del pool, collector
