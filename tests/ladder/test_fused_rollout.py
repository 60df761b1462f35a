"""Fused CUDA rollouts, many steps and noise in numba's simulator do what the CPU does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import gpuenvs
from gpuenvs.rng import fill_gumbel, fill_normal
from gpuenvs.runtime.cuda_rollout import OUTPUTS, random_actions
from learners.collector import Collector
from learners.collectors.check import replay
from learners.collectors.loop import StepLoop
from learners.rollout import Rollout
from tests.gpuenvs.classic import CLASSIC
from tests.ladder import simulated_rollout as case

ROOT = Path(__file__).parents[2]
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """Everything the simulator computed, from one process for the whole module."""
    results = tmp_path_factory.mktemp("simulator") / "results.npz"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.ladder.simulated_rollout", str(results)],
        cwd=ROOT,
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    with np.load(results) as found:
        return dict(found)


def filled(simulated, name, horizon, spaces):
    """A rollout with what the simulator stored."""
    rollout = Rollout(case.STEPS, case.ROWS, *spaces)
    for field in OUTPUTS:
        getattr(rollout, field).copy_(torch.from_numpy(simulated[f"{name}|{horizon}|{field}"]))
    return rollout


@pytest.mark.parametrize("name", case.CASES)
def test_transitions_are_those_of_the_eager_loop_on_the_cpu(name, simulated):
    """The environment is given the fused rollout's actions, the policy its observations and noise; the end states agree."""
    env, policy, _, noise = case.make(name, "cpu")
    spaces = (env.single_observation_space, env.single_action_space)
    loop = StepLoop(env, torch.device("cpu"))
    env.reset(seed=case.SEED)
    for horizon in range(2):
        found = filled(simulated, name, horizon, spaces)
        drawn = noise.draw(case.STEPS, case.ROWS, policy, case.STEP + horizon * case.STEPS)
        agreement = replay(loop, policy, found, drawn)
        assert agreement.env <= TOLERANCE and agreement.policy <= TOLERANCE
        done = found.terminated | found.truncated
        assert done.any() and not done.all()
        after = env.snapshot()
        for key in ("elapsed", "episode", "ended", "terminated", "truncated", "episode_length"):
            assert np.array_equal(after[key], simulated[f"{name}|{horizon}|env {key}"]), key
        floats = ("state_real", "obs", "reward", "final_obs", "running_return", "episode_return")
        for key in (*floats, *(key for key in ("param_real_env", "param_int_env", "metric_totals") if key in after)):
            np.testing.assert_allclose(simulated[f"{name}|{horizon}|env {key}"], after[key], rtol=1e-4, atol=1e-4)
        env.restore({key: simulated[f"{name}|{horizon}|env {key}"] for key in after})
    if noise.last is not None:
        np.testing.assert_allclose(simulated[f"{name}|last"], noise.last, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "name", [name for name in case.CASES if case.CASES[name][0] == "CartPole-v1" or "relu" in name]
)
def test_actions_and_flags_are_those_of_the_fused_collector_on_the_cpu(name, simulated):
    env, policy, rollout, _ = case.make(name, "cpu")
    collector = Collector(env, "cpu", seed=7, collector="fused")
    collector.step = case.STEP
    for horizon in range(2):
        collector.collect(policy, rollout)
        for field in ("action", "terminated", "truncated"):
            assert np.array_equal(getattr(rollout, field), simulated[f"{name}|{horizon}|{field}"]), field
        for field in ("obs", "log_prob", "reward"):
            np.testing.assert_allclose(
                simulated[f"{name}|{horizon}|{field}"], getattr(rollout, field), rtol=1e-4, atol=2e-5
            )


@pytest.mark.parametrize("actions", ["random", "constant"])
@pytest.mark.parametrize("env_id", CLASSIC)
def test_many_steps_in_one_launch_are_those_of_many_steps(env_id, actions, simulated):
    spec = gpuenvs.get(env_id)
    drawn = random_actions(spec, case.ROWS, case.STEPS, case.SEED, case.OFFSET, case.STEP)
    if actions == "constant":
        drawn = np.ones_like(drawn)
    with gpuenvs.make(env_id, case.ROWS, device="cpu", env_offset=case.OFFSET, max_episode_steps=case.LIMIT) as env:
        env.reset(seed=case.SEED)
        for step in drawn:
            env.step(step)
        for key, value in env.snapshot().items():
            found = simulated[f"steps|{env_id}|{actions}|{key}"]
            if value.dtype.kind == "f":
                np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-4)
            else:
                assert np.array_equal(found, value), key
        assert env.snapshot()["episode"].max() > 0


@pytest.mark.parametrize("kind", ["normal", "gumbel"])
def test_noise_on_the_device_is_that_of_the_host(kind, simulated):
    fill = fill_normal if kind == "normal" else fill_gumbel
    expected = np.zeros(case.NOISE_SHAPE, np.float32)
    fill(expected, case.SEED, case.NOISE_OFFSET, case.STEP, 4)
    np.testing.assert_allclose(simulated[f"noise|{kind}"], expected, rtol=2e-6, atol=2e-6)
