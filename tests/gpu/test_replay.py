"""A replay on a real device: what the loop and the recorded loop store, and what is drawn from it."""

from __future__ import annotations

import types

import pytest
import torch

import gpuenvs
from gpuenvs.runtime.cuda import cuda_problem, simulated
from learners.actors import SquashedPolicy
from learners.draws import normals
from learners.replay import Replay
from learners.replay_collector import ReplayCollector

PROBLEM = "the simulator is no device" if simulated() else cuda_problem(0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(PROBLEM is not None, reason=str(PROBLEM))]
ENVS, STEPS = 512, 8


def filled(where, device, collector, horizons=6):
    env = gpuenvs.make("Pendulum-v1", ENVS, device=where, seed=1)
    spaces = env.single_observation_space, env.single_action_space
    policy = SquashedPolicy(*spaces, hidden_sizes=(64, 64), device=where, seed=2)
    replay = Replay(4 * STEPS * ENVS, ENVS, *spaces, STEPS, device)
    config = types.SimpleNamespace(collector=collector, noise_correlation=0.5)
    made = ReplayCollector(env, where, 3, config)
    for number in range(horizons):
        replay.commit(made.collect(policy, replay.begin(), number, random=number == 0))
    batch = replay.sample(replay.draw(5, 6, 4096), 3, 0.9)
    env.close()
    return replay, made, batch


def test_the_recorded_loop_stores_what_the_loop_does():
    eager, _, one = filled("cuda:0", "cuda:0", "eager")
    graph, made, two = filled("cuda:0", "cuda:0", "graph")
    assert made.choice.name == "graph", made.choice.why
    assert torch.equal(eager.data, graph.data) and all(map(torch.equal, one, two))


def test_a_random_horizon_and_what_is_drawn_are_those_of_the_cpu():
    on_gpu, _, _ = filled("cuda:0", "cuda:0", "eager", horizons=1)
    on_cpu, _, _ = filled("cpu", "cpu", "eager", horizons=1)
    torch.testing.assert_close(on_gpu.data.cpu(), on_cpu.data, rtol=1e-4, atol=1e-4)
    assert torch.equal(on_gpu.draw(1, 2, 999).cpu(), on_cpu.draw(1, 2, 999))
    torch.testing.assert_close(normals(1, 2, 0, 99, 3, "cuda:0").cpu(), normals(1, 2, 0, 99, 3), rtol=1e-5, atol=1e-5)


def test_horizons_of_the_cpu_arrive_whole():
    beside, _, one = filled("cpu", "cuda:0", "eager")
    there, _, two = filled("cpu", "cpu", "eager")
    assert torch.equal(beside.data.cpu(), there.data)
    for name, part in one._asdict().items():
        torch.testing.assert_close(part.cpu(), getattr(two, name))
