"""The hts schedule: the same bits however the work is spread over time and threads, rows one update old, resume."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import gpuenvs
from gpuenvs.errors import ConfigError
from gpuenvs.host.pool import HostPool
from gpuenvs.host.spec import host_spec
from learners.compat import algorithm
from learners.schedules.hts import HTSConfig, HTSSchedule
from learners.schedules.sync import SyncSchedule

CASES = [("CartPole-v1", "ppo"), ("CartPole-v1", "a2c"), ("Pendulum-v1", "ppo"), ("Pendulum-v1", "a2c")]
SLEEPY = f"{Path(__file__).parent / 'sleepy.py'}:Sleepy"
UPDATES = 20


def learner(env, algo, seed, **settings):
    cls = algorithm(algo)
    extra = {"epochs": 2, "minibatches": 2} if algo == "ppo" else {}
    config = cls.config_class(
        num_envs=env.num_envs, total_steps=100_000, norm_obs=True, norm_reward=True, hidden_sizes=(16,),
        **{"num_steps": 8, "engine": "torch", "collector": "eager", "ent_coef": 0.01, **extra, **settings},
    )  # fmt: skip
    return cls(config, env.single_observation_space, env.single_action_space, "cpu", seed), config


def schedule(env_id="CartPole-v1", algo="ppo", seed=0, threads=1, num_envs=64, settings=None, **own):
    env = gpuenvs.make(env_id, num_envs, device="cpu", seed=seed, threads=threads)
    return HTSSchedule(env, *learner(env, algo, seed, **(settings or {})), own=HTSConfig(**own))


def on_host(env_id=SLEEPY, algo="a2c", seed=0, executors=2, actors=1, longest_ms=2.0, **own):
    spec = host_spec(env_id, {"longest_ms": longest_ms} if env_id == SLEEPY else {})
    pool = HostPool(spec, 6, executors=executors, seed=seed)
    return HTSSchedule(pool, *learner(pool, algo, seed), own=HTSConfig(**own), actors=actors)


def fingerprint_open(loop, updates=UPDATES):
    """SHA-256 of the weights, the optimisers' and the statistics after so many updates."""
    while loop.iteration < updates + loop.lag:
        loop.iterate()
    digest = hashlib.sha256()
    for part in loop.algo.state_dict().values():
        for name, tensor in sorted(part.items()) if isinstance(part, dict) else ():
            digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def fingerprint(loop, updates=UPDATES):
    """`fingerprint_open`, and the end of the schedule."""
    try:
        return fingerprint_open(loop, updates)
    finally:
        loop.close()


@pytest.mark.parametrize("env_id, algo", CASES)
@pytest.mark.parametrize("correction", ["delayed", "ratio"])
def test_weights_depend_on_the_seed_alone(env_id, algo, correction):
    def run(**changes):
        return fingerprint(schedule(env_id, algo, correction=correction, **changes))

    expected = run()
    assert run() == expected
    assert run(overlap=False) == expected
    assert run(run_ahead=False) == expected
    assert run(threads=2, num_envs=64) == expected
    assert run(seed=1) != expected


@pytest.mark.parametrize("algo", ["ppo", "a2c"])
def test_with_fused_engine_and_collector(algo):
    def run(**changes):
        return fingerprint(schedule(algo=algo, settings={"engine": "fused", "collector": "fused"}, **changes), 6)

    expected = run(overlap=False)
    assert run() == expected and run(threads=2) == expected and run(seed=1) != expected


@pytest.mark.parametrize("correction", ["delayed", "vtrace"])
def test_host_environments_give_the_same_weights_whoever_steps_them(correction):
    def run(**changes):
        return fingerprint(on_host(correction=correction, **changes))

    expected = run(executors=1, actors=1, overlap=False, longest_ms=0.0)
    for executors in (1, 2, 4):
        for actors in (1, 2):
            assert run(executors=executors, actors=actors) == expected, (executors, actors)
    assert run(run_ahead=False, executors=4, actors=2) == expected
    assert run(seed=1) != expected


@pytest.mark.parametrize("lag", [1, 3])
@pytest.mark.parametrize("own", [{}, {"overlap": False}, {"run_ahead": False}, {"correction": "delayed"}])
def test_resuming_in_the_middle_changes_nothing(own, lag):
    expected = fingerprint(schedule(lag=lag, **own))
    loop = schedule(lag=lag, **own)
    for _ in range(9):
        loop.iterate()
    state = loop.state_dict()
    loop.iterate()  # what is saved does not change with what is saved from
    loop.close()
    other = schedule(lag=lag, **own)
    other.load_state_dict(state)
    assert other.iteration == 9 and other.env_steps == 9 * 8 * 64
    assert fingerprint(other) == expected


@pytest.mark.parametrize("own", [{}, {"run_ahead": False}])
def test_resuming_host_environments_in_the_middle_changes_nothing(own):
    expected = fingerprint(on_host(**own))
    loop = on_host(executors=3, **own)
    for _ in range(9):
        loop.iterate()
    state = loop.state_dict()
    loop.close()
    other = on_host(executors=4, actors=2, **own)
    other.load_state_dict(state)
    assert fingerprint(other) == expected


def test_going_on_after_a_checkpoint_changes_nothing():
    loop, expected = schedule(), fingerprint(schedule())
    for _ in range(5):
        loop.iterate()
        loop.state_dict()
    assert fingerprint(loop) == expected


@pytest.mark.parametrize("lag", [1, 2])
@pytest.mark.parametrize("make", [schedule, on_host])
def test_every_row_is_exactly_so_many_updates_old(make, lag):
    loop = make(lag=lag, correction="ratio")
    update = loop.algo.update
    seen = []

    def checked(rollout, correction):
        seen.append(set((loop.algo.version - rollout.version).flatten().tolist()))
        return update(rollout, correction)

    loop.algo.update = checked
    results = [loop.iterate() for _ in range(6)]
    loop.close()
    assert seen == [{lag}] * (6 - lag)
    rows = results[0].env_steps
    assert [result.lags for result in results] == [{}] * lag + [{lag: rows}] * (6 - lag)
    assert results[-1].metrics["lag"].item() == lag


def test_rows_of_the_sync_schedule_are_not_old():
    env = gpuenvs.make("CartPole-v1", 64, device="cpu", seed=0)
    loop = SyncSchedule(env, *learner(env, "ppo", 0))
    result = loop.iterate()
    loop.close()
    assert result.lags == {0: result.env_steps} and result.metrics["lag"].item() == 0


@pytest.mark.parametrize("make", [schedule, on_host])
def test_stored_log_probs_are_those_of_the_recorded_version(make):
    """Recomputed from copies of the weights that the test keeps itself."""
    loop = make(algo="a2c", correction="delayed")
    policy = loop.algo.policy
    copies, update = {0: policy.copy_on("cpu"), 1: policy.copy_on("cpu")}, loop.algo.update
    checked = []

    def compare(rollout, correction):
        (version,) = set(rollout.version.flatten().tolist())
        then = copies[version]
        dist = then.distribution(then.features(rollout.obs[:-1]).flatten(0, 1))
        log_prob = dist.log_prob(rollout.action.flatten(0, 1))
        torch.testing.assert_close(log_prob, rollout.log_prob.flatten(), rtol=0, atol=1e-5)
        checked.append(version)
        metrics = update(rollout, correction)
        copies[loop.algo.version] = policy.copy_on("cpu")
        return metrics

    loop.algo.update = compare
    for _ in range(8):
        loop.iterate()
    loop.close()
    assert checked == list(range(7))
    assert not torch.equal(copies[7].flat, copies[1].flat)


def test_the_entropy_bonus_raises_entropy():
    def entropy(ent_coef):
        loop = schedule(algo="a2c", correction="delayed", settings={"ent_coef": ent_coef, "learning_rate": 1e-2})
        found = [loop.iterate().metrics.get("entropy") for _ in range(40)]
        loop.close()
        return float(found[-1])

    assert entropy(1.0) > entropy(0.0) + 0.01


def test_the_first_update_is_made_from_the_first_horizon():
    """theta_1 = theta_0: the first horizon of hts is that of sync, and so are the weights after one update."""
    env = gpuenvs.make("CartPole-v1", 64, device="cpu", seed=0)
    sync = SyncSchedule(env, *learner(env, "a2c", 0, lr_end=1.0))
    loop = schedule(algo="a2c", correction="delayed", settings={"lr_end": 1.0})
    sync.iterate()
    loop.iterate()
    assert not torch.equal(sync.algo.policy.flat, loop.algo.policy.flat)
    loop.iterate()
    torch.testing.assert_close(sync.algo.policy.flat, loop.algo.policy.flat, rtol=0, atol=1e-7)
    sync.close(), loop.close()


def test_reports():
    loop = schedule()
    result = [loop.iterate() for _ in range(4)][-1]
    loop.close()
    for name in ("overlap", "sampler_idle", "learner_idle"):
        assert 0 <= float(result.metrics[name]) <= 1, name
    serial = schedule(overlap=False)
    result = [serial.iterate() for _ in range(4)][-1]
    serial.close()
    assert result.metrics["overlap"] == 0 and result.metrics["sampler_idle"] > 0


@pytest.mark.parametrize("ahead", [True, False])
def test_an_error_while_collecting_reaches_the_learner_and_ends_the_thread(ahead):
    loop = schedule(run_ahead=ahead)
    collect, calls = loop.collector.collect, []

    def failing(*args):
        calls.append(1)
        if len(calls) == 3:
            raise ZeroDivisionError("planted")
        return collect(*args)

    loop.collector.collect = failing
    with pytest.raises(ZeroDivisionError, match="planted"):
        for _ in range(5):
            loop.iterate()
    with pytest.raises(ZeroDivisionError, match="planted"):
        loop.sampler.wait()
    thread = loop.sampler._thread
    loop.close()
    assert not thread.is_alive()


def test_wrong_settings_are_refused():
    with pytest.raises(ConfigError, match="lag"):
        HTSConfig(lag=0)
    with pytest.raises(ConfigError, match="correction"):
        HTSConfig(correction="both")


def test_episodes_are_reported_once():
    """The same number of episodes and rows as the serial schedule, iteration by iteration."""
    found = []
    for own in ({}, {"overlap": False}, {"run_ahead": False}):
        loop = schedule(**own)
        results = [loop.iterate() for _ in range(8)]
        loop.close()
        found.append([(result.env_steps, *np.sort(result.episode_returns)) for result in results])
    assert found[0] == found[1] == found[2] and sum(map(len, found[0])) > 40


def test_cores_of_their_own():
    """The sampler's thread and the learner's have no core in common, and the learner's thread gets all back."""
    everything = os.sched_getaffinity(0)
    if len(everything) < 2:
        pytest.skip("one core")
    seen = {}
    loop = schedule(sampler_cores=1)
    collect = loop.collector.collect

    def look(*args):
        seen["sampler"] = os.sched_getaffinity(0)
        return collect(*args)

    loop.collector.collect = look
    found = fingerprint_open(loop, 4)
    seen["learner"] = os.sched_getaffinity(0)
    loop.close()
    assert not seen["sampler"] & seen["learner"] and seen["sampler"] | seen["learner"] == everything
    assert os.sched_getaffinity(0) == everything
    assert found == fingerprint(schedule(), 4)
    with pytest.raises(ConfigError, match="sampler_cores=99"):
        schedule(sampler_cores=99)
