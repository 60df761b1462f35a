"""A replay on a GPU, on the recorded machine: nothing races, nobody waits, and what is in it is what a CPU has."""

import contextlib
import types

import pytest
import torch

import gpuenvs
from learners import replay_collector
from learners.actors import SquashedPolicy
from learners.draws import normals
from learners.replay import Replay
from learners.replay_collector import ReplayCollector
from tests.protocol.fake_env import FakeCudaEnv
from tests.protocol.recorder import Recorder

ENVS, STEPS, HORIZONS = 6, 4, 9
# name -> (environments' device, policy's, replay's)
CASES = {
    "one GPU": ("cuda:0", "cuda:0", "cuda:0"),
    "environments on the CPU": ("cpu", "cpu", "cuda:0"),
    "environments on the CPU, policy on the GPU": ("cpu", "cuda:0", "cuda:0"),
    "two GPUs": ("cuda:0", "cuda:0", "cuda:1"),
    "CPU": ("cpu", "cpu", "cpu"),
}


def horizons(machine, case, collector="eager"):
    """(replay, sum of what samples hold) after some horizons, the first of them random, with a sample after each."""
    where, acting, learning = CASES[case]
    if where == "cpu":
        env = gpuenvs.make("Pendulum-v1", ENVS, device="cpu", seed=1, threads=1)
    else:
        env = FakeCudaEnv(machine, "Pendulum-v1", ENVS, 0, seed=1)
    spaces = env.single_observation_space, env.single_action_space
    policy = SquashedPolicy(*spaces, hidden_sizes=(16,), device=acting, seed=2)
    replay = Replay(5 * STEPS * ENVS, ENVS, *spaces, STEPS, learning)
    config = types.SimpleNamespace(collector=collector, noise_correlation=0.5)
    made = ReplayCollector(env, acting, 3, config, check=False)
    total = torch.zeros((), device=learning)
    for number in range(HORIZONS):
        if machine is not None and number == 2:
            machine.host_waits.clear()
        replay.commit(made.collect(policy, replay.begin(), number, random=number == 0))
        batch = replay.sample(replay.draw(7, number, 64), 3, 0.9)
        noise = normals(7, number, 0, 64, 1, learning)
        for part in batch:
            total += (part.view(64, -1) * noise).sum()
    return replay, total


@pytest.fixture(scope="module")
def on_the_cpu():
    return horizons(None, "CPU")


@pytest.mark.parametrize("case", list(CASES)[:-1])
def test_nothing_races_and_the_replay_holds_what_a_cpu_has(case, on_the_cpu):
    with Recorder(gpus=2) as machine, torch.cuda.stream(torch.cuda.Stream("cuda:0")):
        replay, total = horizons(machine, case)
        assert str(replay.data.device) == CASES[case][2]
    assert machine.checker.violations == []
    torch.testing.assert_close(replay.data, on_the_cpu[0].data, rtol=1e-5, atol=1e-5)
    assert torch.equal(replay.version, on_the_cpu[0].version)
    torch.testing.assert_close(total, on_the_cpu[1], rtol=1e-4, atol=1e-3)


def test_environments_that_launch_on_a_stream_of_their_own_are_noticed(monkeypatch):
    monkeypatch.setattr(replay_collector, "on_torch_stream", lambda device: contextlib.nullcontext())
    with Recorder(gpus=2) as machine, torch.cuda.stream(torch.cuda.Stream("cuda:0")):
        horizons(machine, "one GPU")
    assert machine.checker.violations


def test_the_host_waits_for_nothing_on_one_gpu():
    with Recorder(gpus=2) as machine:
        horizons(machine, "one GPU")
    assert machine.host_waits == []
