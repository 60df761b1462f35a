"""The synchronous schedule with every transfer, on the recorded machine: nothing races, and all learn the same."""

import functools

import numpy as np
import pytest
import torch

import gpuenvs
from learners.compat import algorithm
from learners.rollout import Rollout
from learners.schedules.sync import SyncSchedule
from tests.protocol.runs import CASES, ENVS, recorder, schedule, settings

ITERATIONS = 4
TASKS = [("CartPole-v1", "ppo"), ("CartPole-v1", "a2c"), ("Pendulum-v1", "ppo")]
CORRELATED = {"Pendulum-v1": {"noise_correlation": 0.5}}


def trained(case, env_id="CartPole-v1", algo="ppo", iterations=ITERATIONS):
    with recorder(case) as machine:
        loop = schedule(machine, case, env_id=env_id, algo=algo, **CORRELATED.get(env_id, {}))
        machine.host_waits.clear()
        machine.copies.clear()
        results = [loop.iterate() for _ in range(iterations)]
    return machine, loop, results


@functools.cache
def on_one_device(env_id, algo):
    return trained("alias", env_id, algo)[1].algo.policy.flat


@pytest.mark.parametrize("env_id, algo", TASKS)
@pytest.mark.parametrize("case", CASES)
def test_nothing_races_and_the_weights_are_those_of_one_device(case, env_id, algo):
    machine, loop, results = trained(case, env_id, algo)
    assert machine.checker.violations == []
    assert torch.equal(loop.algo.policy.flat, on_one_device(env_id, algo))
    assert loop.env_steps == sum(result.env_steps for result in results)


@pytest.mark.parametrize("env_id, algo", TASKS)
def test_the_recorded_machine_learns_what_the_cpu_learns(env_id, algo):
    config = settings(algo, **CORRELATED.get(env_id, {}))
    env = gpuenvs.make(env_id, ENVS, device="cpu", seed=1, threads=1)
    spaces = env.single_observation_space, env.single_action_space
    loop = SyncSchedule(env, algorithm(algo)(config, *spaces, "cpu", 1), config)
    start = loop.algo.policy.flat.clone()
    for _ in range(ITERATIONS):
        loop.iterate()
    found, expected = on_one_device(env_id, algo), loop.algo.policy.flat
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert (expected - start).abs().max() > 1e-3


@pytest.mark.parametrize("case", CASES)
def test_the_host_waits_to_read_episodes_and_for_nothing_else(case):
    """Two selections per iteration, and two copies where an episode ended; with environments on the CPU instead for new
    weights (from the second iteration on) and for a chunk that is free (from the third on)."""
    machine, _, _ = trained(case)
    if case == "pinned":
        assert machine.host_waits == ["an event"] * (2 * ITERATIONS - 3)
    else:
        copies = [why for why in machine.host_waits if why == "a blocking copy"]
        assert [why for why in machine.host_waits if why not in copies] == ["aten::index"] * 2 * ITERATIONS
        assert len(copies) in range(2, 2 * ITERATIONS + 1, 2)


@pytest.mark.parametrize("case", CASES)
def test_a_horizon_moves_in_one_copy(case):
    machine, loop, results = trained(case)
    rollout = loop.rollout
    size = rollout.learner_bytes
    moved = [(origin, to) for origin, to, nbytes in machine.copies if nbytes == size]
    hops = {"peer": [(0, 1)], "staged": [(0, None), (None, 1)], "pinned": [(None, 0)]}
    hops |= {"staged, one card": [(0, None), (None, 0)]}
    assert moved == hops.get(case, []) * ITERATIONS
    per_step = 0.0 if case == "alias" else size / rollout.rows
    assert all(result.metrics["transfer_bytes_per_step"] == per_step for result in results)
    assert size < rollout.chunk.nbytes


@pytest.mark.parametrize("case", ["peer", "staged", "pinned"])
def test_rates_are_read_from_events_that_have_happened(case):
    with recorder(case) as machine:
        loop = schedule(machine, case)
        assert "transfer_gb_s" not in loop.iterate().metrics  # nothing is known to be over yet
        machine.events_done = True
        metrics = loop.iterate().metrics
    assert metrics["transfer_gb_s"] > 0
    assert 0 <= metrics["transfer_overlap"] <= 1


@pytest.mark.parametrize("case", CASES)
def test_resuming_continues_bit_for_bit(case):
    with recorder(case) as machine:
        first = schedule(machine, case, env_id="Pendulum-v1", noise_correlation=0.5)
        for _ in range(2):
            first.iterate()
        state = first.state_dict()
    with recorder(case) as machine:
        second = schedule(machine, case, env_id="Pendulum-v1", noise_correlation=0.5)
        second.iterate()  # whatever it has done is replaced
        second.load_state_dict(_plain(state))
        for _ in range(ITERATIONS - 2):
            second.iterate()
        second.close()
    assert machine.checker.violations == []
    assert torch.equal(second.algo.policy.flat, on_one_device("Pendulum-v1", "ppo"))


def _plain(tree):
    """A state as a checkpoint gives it back: on the host, in memory of its own."""
    if isinstance(tree, dict):
        return {key: _plain(value) for key, value in tree.items()}
    if isinstance(tree, torch.Tensor):
        return torch.tensor(tree.tolist(), dtype=tree.dtype)
    return tree.copy() if isinstance(tree, np.ndarray) else tree


def test_the_values_of_a_collector_that_computes_them_travel_too():
    """A native CPU collector gives V(obs) and V(final_obs); a GPU learner then takes them over."""
    with recorder("pinned") as machine:
        loop = schedule(machine, "pinned", collector="fused")
        loop.iterate()
        rollout = loop.transfer._learner_side[0]
        assert rollout.has_value
        assert any(nbytes == rollout.learner_bytes for _, _, nbytes in machine.copies)
    assert machine.checker.violations == []
    assert torch.equal(rollout.value, loop.transfer._env_side[0].value)
    assert rollout.value.abs().sum() > 0
    assert (
        rollout.learner_bytes
        > Rollout(4, ENVS, loop.env.single_observation_space, loop.env.single_action_space).learner_bytes
    )
