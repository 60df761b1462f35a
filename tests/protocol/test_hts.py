"""The hts schedule on the recorded machine: nothing races in any placement, and all learn what the CPU learns."""

import functools

import pytest
import torch

import gpuenvs
from learners.devices import CudaRuntime
from learners.schedules.hts import HTSConfig, HTSSchedule
from learners.transfer import make_transfer
from tests.protocol.runs import CASES, ENVS, parts, recorder
from tests.protocol.test_sync import CORRELATED

ITERATIONS = 6
PLACES = list(CASES)


def made(machine, case, env_id, algo, own):
    env, learner, config, _ = parts(machine, case, env_id, algo, **CORRELATED.get(env_id, {}))
    transfer = make_transfer(CASES[case][0], CudaRuntime(), env, learner, config, own.slots, apart=True)
    return HTSSchedule(env, learner, config, transfer, own)


def trained(case, env_id="CartPole-v1", algo="ppo", **own):
    with recorder(case) as machine:
        loop = made(machine, case, env_id, algo, HTSConfig(**own))
        machine.host_waits.clear()
        results = [loop.iterate() for _ in range(ITERATIONS)]
        loop.transfer.drain()
    return machine, loop, results


@functools.cache
def on_the_cpu(env_id, algo, **own):
    from learners.compat import algorithm
    from tests.protocol.runs import settings

    config = settings(algo, **CORRELATED.get(env_id, {}))
    env = gpuenvs.make(env_id, ENVS, device="cpu", seed=1, threads=1)
    learner = algorithm(algo)(config, env.single_observation_space, env.single_action_space, "cpu", 1)
    loop = HTSSchedule(env, learner, config, own=HTSConfig(**own))
    start = learner.policy.flat.clone()
    for _ in range(ITERATIONS):
        loop.iterate()
    loop.close()
    assert (learner.policy.flat - start).abs().max() > 1e-3
    return learner.policy.flat


@pytest.mark.parametrize(
    "env_id, algo, correction", [("CartPole-v1", "ppo", "vtrace"), ("Pendulum-v1", "a2c", "delayed")]
)
@pytest.mark.parametrize("case", PLACES)
def test_nothing_races_and_the_weights_are_those_of_the_cpu(case, env_id, algo, correction):
    machine, loop, _ = trained(case, env_id, algo, correction=correction)
    assert machine.checker.violations == []
    expected = on_the_cpu(env_id, algo, correction=correction)
    torch.testing.assert_close(loop.algo.policy.flat, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", ["alias", "peer", "remote", "pinned"])
def test_a_larger_lag_takes_more_storages(case):
    machine, loop, results = trained(case, lag=3)
    assert machine.checker.violations == []
    assert [result.lags for result in results[3:]] == [{3: loop.env.num_envs * 4}] * (ITERATIONS - 3)
    torch.testing.assert_close(loop.algo.policy.flat, on_the_cpu("CartPole-v1", "ppo", lag=3), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", PLACES)
def test_resuming_changes_nothing(case):
    with recorder(case) as machine:
        whole = made(machine, case, "CartPole-v1", "a2c", HTSConfig())
        for _ in range(6):
            whole.iterate()
        first = made(machine, case, "CartPole-v1", "a2c", HTSConfig())
        for _ in range(3):
            first.iterate()
        state = first.state_dict()
        second = made(machine, case, "CartPole-v1", "a2c", HTSConfig())
        second.load_state_dict(state)
        for _ in range(3):
            second.iterate()
        assert torch.equal(whole.algo.policy.flat, second.algo.policy.flat)
    assert machine.checker.violations == []


@pytest.mark.parametrize("fault", ["no wait for the horizon", "no wait for the collector", "no wait for the weights"])
def test_planted_faults_are_found(fault, monkeypatch):
    """Nothing is read back here, which would order more than the events do."""
    monkeypatch.setattr("learners.schedules.hts.episodes", lambda rollout: ([], []))
    runtime, dropped = CudaRuntime(), []
    with recorder("alias") as machine:
        env, learner, config, _ = parts(machine, "alias")
        transfer = make_transfer("alias", runtime, env, learner, config, 2, apart=True)
        loop = HTSSchedule(env, learner, config, transfer, HTSConfig())
        weights = transfer._weights
        streams, events = {
            "no wait for the horizon": ([transfer._learner_stream], [*transfer._collected, *weights._link._arrived]),
            "no wait for the collector": (weights._link._streams, transfer._collected),
            "no wait for the weights": ([transfer._env_stream], weights._link._arrived),
        }[fault]
        wait = runtime.wait

        def careless(stream, event):
            if any(event is e for e in events) and any(stream == s for s in streams):
                dropped.append(event)
            else:
                wait(stream, event)

        monkeypatch.setattr(runtime, "wait", careless)
        for _ in range(5):
            loop.iterate()
    assert dropped and machine.checker.violations, fault
