"""The synchronous schedule with every transfer, on the recorded machine: nothing races, and all learn the same."""

import pytest
import torch

from tests.protocol.runs import CASES, COPYING, recorder, schedule

ITERATIONS = 5


def trained(case, **changes):
    with recorder(case) as machine:
        loop = schedule(machine, case, **changes)
        results = [loop.iterate() for _ in range(ITERATIONS)]
    return machine, loop, results


@pytest.mark.parametrize("algo", ["ppo", "a2c"])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("case", CASES)
def test_nothing_races_and_the_weights_are_those_of_one_device(case, env_id, algo):
    more = {"noise_correlation": 0.5} if env_id == "Pendulum-v1" else {}
    machine, loop, results = trained(case, env_id=env_id, algo=algo, **more)
    assert machine.checker.violations == []
    _, expected, _ = trained("alias", env_id=env_id, algo=algo, **more)
    assert torch.equal(loop.algo.policy.flat, expected.algo.policy.flat)
    assert not torch.equal(loop.algo.policy.flat[:40], torch.zeros(40))
    assert loop.env_steps == sum(result.env_steps for result in results)
