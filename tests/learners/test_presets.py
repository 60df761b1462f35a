"""Presets are valid configs of environments that exist."""

import pytest

import gpuenvs
from learners import compat
from learners.config import make_config
from learners.presets import ATARI, IMAGES, PRESETS, RUNNING, preset

GAMES = [(f"ALE/{game}-v5", algo) for game in ("Pong", "Breakout", "Tennis") for algo in ("ppo", "a2c")]


@pytest.mark.parametrize("env_id, algo", [*dict.fromkeys([*PRESETS, *RUNNING, *GAMES])])
def test_a_preset_is_a_valid_config_for_its_environment(env_id, algo):
    if (env_id, algo) not in GAMES:
        compat.check(algo, "sync", gpuenvs.get(env_id).action_space)
    values = preset(env_id, algo)
    config = make_config(compat.algorithm(algo).config_class, values)
    assert config.total_steps >= config.num_envs * config.num_steps
    assert {"num_envs", "total_steps"} <= values.keys()


def test_games_and_images_get_an_encoder_of_their_own_size():
    assert preset("ALE/Breakout-v5", "ppo", image=True) == preset("ALE/Tennis-v5", "ppo") == ATARI["ppo"]
    assert preset("ALE/Pong-v5", "ppo") == {**ATARI["ppo"], **PRESETS["ALE/Pong-v5", "ppo"]} != ATARI["ppo"]
    assert preset("my_envs.py:Maze", "a2c", image=True) == IMAGES and preset("my_envs.py:Maze", "a2c") == {}
    assert {"hidden_sizes": (512,), "activation": "relu"}.items() <= IMAGES.items()


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
