"""The async schedule: lags within their bound and counted per row, every horizon learned from once, resume."""

import itertools
import threading

import pytest
import torch

import gpuenvs
from gpuenvs.errors import ConfigError
from learners.schedules.async_ import AsyncConfig, AsyncSchedule
from tests.learners.schedules.test_hts import learner, on_host

ROWS = 64 * 8


def schedule(**own):
    env = gpuenvs.make("CartPole-v1", 64, device="cpu", seed=0, threads=1)
    return AsyncSchedule(env, *learner(env, "a2c", 0), own=AsyncConfig(**own))


def on_hosts(**own):
    host = on_host()
    loop = AsyncSchedule(host.env, host.algo, host.config, own=AsyncConfig(**own))
    host.sampler.close()
    return loop


@pytest.mark.parametrize("make", [schedule, on_hosts])
@pytest.mark.parametrize("max_lag", [1, 3])
def test_no_row_is_older_than_the_bound(make, max_lag):
    loop = make(max_lag=max_lag)
    lags = []
    for _ in range(30):
        result = loop.iterate()
        assert sum(result.lags.values()) == result.env_steps
        lags += result.lags
    loop.close()
    assert set(lags) <= set(range(max_lag + 1)) and max(lags) > 0


def test_a_bound_that_the_collector_reaches_is_kept():
    """Updates wait until every storage is full: the collector would be far ahead if it could."""
    loop, update = schedule(max_lag=2), None
    update = loop.algo.update

    def slow(*args):
        threading.Event().wait(0.05)
        return update(*args)

    loop.algo.update = slow
    lags = [set(loop.iterate().lags) for _ in range(10)]
    loop.close()
    assert lags[-1] == {2}


@pytest.mark.parametrize("make", [schedule, on_hosts])
def test_without_a_bound_lag_grows_while_the_learner_is_slower(make):
    loop = make(max_lag=0)
    update = loop.algo.update

    def slow(*args):
        threading.Event().wait(0.2)
        return update(*args)

    loop.algo.update = slow
    lags = [max(loop.iterate().lags) for _ in range(12)]
    loop.close()
    assert lags[-1] > 4


def test_rows_of_host_environments_carry_the_version_that_chose_them():
    """A horizon of slow environments sees more than one version."""
    loop = on_hosts(max_lag=3)
    mixed = 0
    for _ in range(20):
        mixed += len(loop.iterate().lags) > 1
    loop.close()
    assert mixed > 0


def test_every_horizon_is_learned_from_once_and_in_order():
    loop = schedule(max_lag=3)
    update, seen = loop.algo.update, []

    def look(rollout, correction):
        seen.append((rollout.obs[0].clone(), rollout.obs[-1].clone()))
        return update(rollout, correction)

    loop.algo.update = look
    for _ in range(12):
        loop.iterate()
    loop.close()
    for (_, last), (first, _) in itertools.pairwise(seen):
        assert torch.equal(last, first)


def test_going_on_from_a_checkpoint():
    loop = schedule()
    for _ in range(5):
        loop.iterate()
    state = loop.state_dict()
    flat = loop.algo.policy.flat.clone()
    loop.iterate()
    loop.close()
    other = schedule()
    other.load_state_dict(state)
    assert torch.equal(other.algo.policy.flat, flat) and other.iteration == 5 and other.env_steps == 5 * ROWS
    assert set(other.iterate().lags) == {0}  # collected by the loaded weights
    other.close()


def test_an_error_while_collecting_reaches_the_learner():
    loop = schedule()

    def failing(*args):
        raise ZeroDivisionError("planted")

    loop.collector.collect = failing
    with pytest.raises(ZeroDivisionError, match="planted"):
        loop.iterate()
    loop.close()


def test_only_the_cpu(monkeypatch):
    env = gpuenvs.make("CartPole-v1", 64, device="cpu", seed=0, threads=1)
    algo, config = learner(env, "a2c", 0)
    monkeypatch.setattr(env, "device", "cuda:0")
    with pytest.raises(ConfigError, match="--device cpu"):
        AsyncSchedule(env, algo, config)
