"""Presets are valid configs of environments that exist."""

import pytest

import gpuenvs
from learners import compat
from learners.config import make_config
from learners.presets import PRESETS, preset


@pytest.mark.parametrize("env_id, algo", PRESETS)
def test_a_preset_is_a_valid_config_for_its_environment(env_id, algo):
    compat.check(algo, "sync", gpuenvs.get(env_id).action_space)
    config = make_config(compat.algorithm(algo).config_class, preset(env_id, algo))
    assert config.total_steps >= config.num_envs * config.num_steps
    assert {"num_envs", "total_steps"} <= PRESETS[env_id, algo].keys()


def test_ppo_has_a_preset_for_every_builtin_environment_of_classic_control():
    expected = {"CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"}
    assert {env for env, algo in PRESETS if algo == "ppo"} >= expected


def test_ppo_has_a_preset_for_every_mujoco_task():
    from benchmarks.cases import MUJOCO_IDS

    assert {env for env, algo in PRESETS if algo == "ppo"} >= set(MUJOCO_IDS)


def test_the_shortest_mujoco_preset_reaches_its_goal_in_gymnasium(tmp_path):
    from learners.build import resolve
    from learners.session import begin, evaluate_run

    config = resolve("InvertedPendulum-v5", seed=0, device="cpu")
    with begin(config, tmp_path / "run") as session:
        session.trainer.train()
        policy = session.trainer.schedule.algo.policy
        there = evaluate_run(config, policy, 20, "gymnasium")
        here = evaluate_run(config, policy, 20, "gpuenvs", same_starts=True)
    assert there.mean >= 990
    assert here.mean == pytest.approx(there.mean, abs=10)


def test_the_caller_cannot_change_a_preset():
    preset("CartPole-v1", "ppo")["gamma"] = 0.0
    assert preset("CartPole-v1", "ppo").get("gamma") != 0.0


def test_an_unknown_pair_has_no_overrides():
    assert preset("Nothing-v0", "ppo") == {}
