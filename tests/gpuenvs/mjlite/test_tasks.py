"""The eleven tasks against Gymnasium's: one step from injected states, and every keyword argument."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

import gpuenvs
from gpuenvs import registry
from gpuenvs.errors import ConfigError, GpurlError, ModelError
from gpuenvs.mjlite.task import task_of
from gpuenvs.spec import EnvSpec
from tests.gpuenvs.mjlite.engine import EnginePhysics
from tests.gpuenvs.mjlite.reference import TASKS, Steps, error, gymnasium_env, gymnasium_steps, sample

every_task = pytest.mark.parametrize("env_id", TASKS)

OBS_DIM = {
    "InvertedPendulum-v5": 4,
    "InvertedDoublePendulum-v5": 9,
    "Reacher-v5": 10,
    "Swimmer-v5": 8,
    "Hopper-v5": 11,
    "HalfCheetah-v5": 17,
    "Walker2d-v5": 17,
    "Ant-v5": 105,
    "Humanoid-v5": 348,
    "HumanoidStandup-v5": 348,
    "Pusher-v5": 23,
}
CONTACT_FORCES = {"Ant-v5": 78, "Humanoid-v5": 78, "HumanoidStandup-v5": 78}  # the last entries of an observation
ENDS = [name for name in TASKS if name.startswith(("Inverted", "Hopper", "Walker2d", "Ant", "Humanoid-"))]
CONTACT_TERMS = ("reward_contact", "reward_impact")


def engine_steps(spec: EnvSpec, env: Any, states: np.ndarray, actions: np.ndarray) -> Steps:
    """The task's own functions around the C engine."""
    task = task_of(spec)
    assert task is not None
    physics, task.physics = task.physics, EnginePhysics(env.model)
    try:
        state, params = spec.state(*states.T), spec.params
        new, reward, terminated, metrics = spec.step(state, tuple(actions.T), params)
        full = np.ones(len(states))
        return Steps(
            np.stack([x * full for x in spec.observe(state, params)], axis=1),
            np.stack([x * full for x in spec.observe(new, params)], axis=1),
            reward * full,
            terminated & full.astype(bool),
            dict(zip(spec.metrics, (x * full for x in metrics), strict=True)),
        )
    finally:
        task.physics = physics


def compiled_steps(spec: EnvSpec, states: np.ndarray, actions: np.ndarray, dtype: str = "float64") -> Steps:
    """One step of the compiled kernels."""
    with gpuenvs.make(spec, len(states), device="cpu", dtype=dtype, autoreset="disabled", threads=1) as env:
        env.reset(seed=0)
        env.set_state(states.T.astype(dtype))
        first = env.obs.astype(np.float64)
        obs, reward, terminated, _, info = env.step(actions.astype(dtype))
        metrics = {name: info[name].copy() for name in spec.metrics}
        return Steps(first, obs.copy(), reward.copy(), terminated.copy(), metrics)


def compare(mine: Steps, theirs: Steps, exact: float, forces: float, contact_forces: int) -> None:
    """Within `exact`, or within `forces` for what contact forces enter."""
    split = mine.obs.shape[1] - contact_forces
    assert error(mine.first, theirs.first) <= exact
    assert error(mine.obs[:, :split], theirs.obs[:, :split]) <= exact
    if contact_forces:
        assert error(mine.obs[:, split:], theirs.obs[:, split:]) <= forces
    for name in theirs.metrics:
        assert error(mine.metrics[name], theirs.metrics[name]) <= (forces if name in CONTACT_TERMS else exact), name
    assert error(mine.reward, theirs.reward) <= (forces if contact_forces else exact)
    np.testing.assert_array_equal(mine.terminated, theirs.terminated)


@every_task
def test_observation_reward_and_flags_around_the_c_engine(env_id: str) -> None:
    """The task's functions alone: the C engine does the physics on both sides, so only rounding differs."""
    spec, env = gpuenvs.get(env_id), gymnasium_env(env_id)
    states, actions = sample(spec, env, 60, seed=1)
    theirs = gymnasium_steps(spec, env, states, actions)
    compare(engine_steps(spec, env, states, actions), theirs, 1e-11, 1e-11, 0)
    if env_id in ENDS:
        assert 0 < theirs.terminated.mean() < 1, "the sample must hold both cases"


@every_task
def test_a_step_is_gymnasiums(env_id: str) -> None:
    """The compiled float64 kernels: 1e-9, contact forces 1e-6, flags exact."""
    spec, env = gpuenvs.get(env_id), gymnasium_env(env_id)
    states, actions = sample(spec, env, 96, seed=2)
    theirs = gymnasium_steps(spec, env, states, actions)
    compare(compiled_steps(spec, states, actions), theirs, 1e-9, 1e-6, CONTACT_FORCES.get(env_id, 0))


@pytest.mark.parametrize("env_id", ["InvertedDoublePendulum-v5", "Reacher-v5", "Hopper-v5", "Walker2d-v5"])
def test_whole_episodes_are_gymnasiums(env_id: str) -> None:
    """From the same start under the same random actions: length, flags and return, with Gymnasium's time limit."""
    spec, env, rows = gpuenvs.get(env_id), gymnasium_env(env_id), 8
    limit, rng = gymnasium.spec(env_id).max_episode_steps, np.random.default_rng(5)
    with gpuenvs.make(spec, rows, device="cpu", dtype="float64", threads=1) as batch:
        batch.reset(seed=2)
        first = np.array(batch.get_state()).T
        actions, ended = [], np.zeros(rows, bool)
        mine: dict[int, tuple[Any, ...]] = {}
        while not ended.all():
            actions.append(rng.uniform(-1.0, 1.0, (rows, spec.action_dim)) * spec.action_space.high)  # type: ignore[union-attr]
            _, _, terminated, truncated, info = batch.step(actions[-1])
            for row in np.flatnonzero((terminated | truncated) & ~ended):
                mine[row] = (info["episode_length"][row], terminated[row], truncated[row], info["episode_return"][row])
            ended |= terminated | truncated
    for row, (length, terminated, truncated, total) in mine.items():
        spec.reference.to_reference(env, spec.state(*first[row].tolist()))  # type: ignore[union-attr]
        expected = 0.0
        for action in actions[:length]:
            _, reward, flag, _, _ = env.step(action[row])
            expected += float(reward)
        assert (terminated, truncated) == (flag, length == limit)
        assert total == pytest.approx(expected, rel=1e-6)


# Every keyword argument of Gymnasium's version 5 is in one of these, with a value other than its default.
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("InvertedPendulum-v5", {"frame_skip": 3, "reset_noise_scale": 0.2}),
    ("InvertedDoublePendulum-v5", {"frame_skip": 1, "healthy_reward": 3.5, "reset_noise_scale": 0.3}),
    ("Reacher-v5", {"frame_skip": 4, "reward_dist_weight": 2.0, "reward_control_weight": 0.25}),
    (
        "Pusher-v5",
        {"frame_skip": 2, "reward_near_weight": 2.0, "reward_dist_weight": 3.0, "reward_control_weight": 0.5},
    ),
    (
        "Swimmer-v5",
        {
            "frame_skip": 2,
            "forward_reward_weight": 2.0,
            "ctrl_cost_weight": 0.1,
            "reset_noise_scale": 0.5,
            "exclude_current_positions_from_observation": False,
        },
    ),
    (
        "Hopper-v5",
        {
            "frame_skip": 2,
            "forward_reward_weight": 2.0,
            "ctrl_cost_weight": 0.1,
            "healthy_reward": 3.0,
            "healthy_state_range": (-2.0, 2.0),
            "healthy_z_range": (0.9, 1.4),
            "healthy_angle_range": (-0.1, 0.3),
            "reset_noise_scale": 0.1,
            "exclude_current_positions_from_observation": False,
        },
    ),
    ("Hopper-v5", {"terminate_when_unhealthy": False}),
    (
        "HalfCheetah-v5",
        {
            "frame_skip": 2,
            "forward_reward_weight": 2.0,
            "ctrl_cost_weight": 0.5,
            "reset_noise_scale": 0.3,
            "exclude_current_positions_from_observation": False,
        },
    ),
    (
        "Walker2d-v5",
        {
            "xml_file": "walker2d.xml",
            "frame_skip": 2,
            "forward_reward_weight": 2.0,
            "ctrl_cost_weight": 0.1,
            "healthy_reward": 3.0,
            "healthy_z_range": (0.9, 1.4),
            "healthy_angle_range": (-0.1, 0.3),
            "reset_noise_scale": 0.1,
            "exclude_current_positions_from_observation": False,
        },
    ),
    ("Walker2d-v5", {"terminate_when_unhealthy": False}),
    (
        "Ant-v5",
        {
            "frame_skip": 2,
            "forward_reward_weight": 2.0,
            "ctrl_cost_weight": 0.1,
            "contact_cost_weight": 0.01,
            "healthy_reward": 3.0,
            "main_body": "front_left_leg",
            "healthy_z_range": (0.3, 0.6),
            "contact_force_range": (-0.25, 0.5),
            "reset_noise_scale": 0.2,
            "exclude_current_positions_from_observation": False,
        },
    ),
    ("Ant-v5", {"terminate_when_unhealthy": False, "include_cfrc_ext_in_observation": False, "main_body": 3}),
    (
        "Humanoid-v5",
        {
            "frame_skip": 2,
            "forward_reward_weight": 2.0,
            "ctrl_cost_weight": 0.2,
            "contact_cost_weight": 1e-3,
            "contact_cost_range": (0.5, 5.0),
            "healthy_reward": 3.0,
            "healthy_z_range": (1.2, 1.5),
            "reset_noise_scale": 0.1,
            "exclude_current_positions_from_observation": False,
            "include_cinert_in_observation": False,
            "include_qfrc_actuator_in_observation": False,
        },
    ),
    (
        "Humanoid-v5",
        {
            "terminate_when_unhealthy": False,
            "include_cvel_in_observation": False,
            "include_cfrc_ext_in_observation": False,
        },
    ),
    (
        "HumanoidStandup-v5",
        {
            "frame_skip": 2,
            "uph_cost_weight": 2.0,
            "ctrl_cost_weight": 0.2,
            "impact_cost_weight": 1e-3,
            "impact_cost_range": (0.5, 5.0),
            "reset_noise_scale": 0.1,
            "exclude_current_positions_from_observation": False,
            "include_cinert_in_observation": False,
            "include_cvel_in_observation": False,
            "include_qfrc_actuator_in_observation": False,
            "include_cfrc_ext_in_observation": False,
        },
    ),
]


@every_task
def test_every_keyword_argument_is_there_and_tried(env_id: str) -> None:
    theirs = set(inspect.signature(type(gymnasium_env(env_id)).__init__).parameters) - {"self", "kwargs"}
    spec = gpuenvs.get(env_id)
    assert theirs <= {*spec.options, *spec.params._fields}
    tried = {name for other, options in OPTIONS if other == env_id for name in options}
    assert theirs - tried <= {"xml_file", "default_camera_config"}


@pytest.mark.parametrize(("env_id", "options"), OPTIONS, ids=[env_id for env_id, _ in OPTIONS])
def test_keyword_arguments_do_what_gymnasiums_do(env_id: str, options: dict[str, Any]) -> None:
    """One step with the options, around the C engine."""
    env = gymnasium_env(env_id, **options)
    spec, numbers = gpuenvs.get(env_id).with_options(options)
    spec = dataclasses.replace(spec, params=spec.with_params(numbers)[0])
    states, actions = sample(spec, env, 40, seed=3)
    theirs = gymnasium_steps(spec, env, states, actions)
    mine = engine_steps(spec, env, states, actions)
    assert mine.obs.shape == theirs.obs.shape == (40, spec.obs_dim)
    compare(mine, theirs, 1e-11, 1e-11, 0)


def test_make_takes_the_keyword_arguments() -> None:
    """Options, params and params per env together, through the compiled kernels."""
    env = gymnasium_env("Swimmer-v5", exclude_current_positions_from_observation=False, frame_skip=2)
    weights = np.array([0.5, 1.0, 4.0])
    options = {"exclude_current_positions_from_observation": False, "frame_skip": 2}
    with gpuenvs.make(
        "Swimmer-v5", 3, device="cpu", dtype="float64", **options, ctrl_cost_weight=0.0, forward_reward_weight=weights
    ) as batch:
        assert batch.obs.shape == (3, 10)
        states, actions = sample(batch.spec, env, 3, seed=4)
        batch.reset(seed=0)
        batch.set_state(states.T)
        _, reward, _, _, info = batch.step(actions)
        theirs = gymnasium_steps(batch.spec, env, states, actions)
        assert error(info["x_velocity"], theirs.metrics["x_velocity"]) < 1e-9
        assert error(reward, weights * theirs.metrics["x_velocity"]) < 1e-9


@every_task
def test_sizes_limits_and_spaces(env_id: str) -> None:
    spec, entry, env = gpuenvs.get(env_id), registry.BUILTIN[env_id], gymnasium_env(env_id)
    assert spec.obs_dim == OBS_DIM[env_id]
    assert spec.observation_space == env.observation_space
    np.testing.assert_array_equal(spec.action_space.low, env.action_space.low)  # type: ignore[union-attr]
    np.testing.assert_array_equal(spec.action_space.high, env.action_space.high)  # type: ignore[union-attr]
    assert (spec.max_episode_steps, spec.reward_threshold) == (entry.max_episode_steps, entry.reward_threshold)
    theirs = gymnasium.spec(env_id)
    assert (spec.max_episode_steps, spec.reward_threshold) == (theirs.max_episode_steps, theirs.reward_threshold)


@pytest.mark.parametrize(
    ("env_id", "options", "words"),
    [
        ("Ant-v5", {"healthy_z_range": (1.0, 0.2)}, "healthy_z_range must be two numbers with low <= high"),
        ("Ant-v5", {"healthy_z_range": 0.5}, "two numbers"),
        ("Ant-v5", {"main_body": "tors"}, "no body of this name .did you mean torso"),
        ("Ant-v5", {"include_cfrc_ext_in_observation": "yes"}, "must be True or False"),
        ("Ant-v5", {"healthy_z_rnge": (0.0, 1.0)}, "did you mean healthy_z_range"),
        ("Hopper-v5", {"frame_skip": 0}, "frame_skip must be a whole number of at least 1"),
        ("Hopper-v5", {"xml_file": "no_such.xml"}, "there is no MJCF file"),
        ("Hopper-v5", {"xml_file": "./no_such.xml"}, "there is no MJCF file"),
    ],
)
def test_wrong_options_are_refused_in_one_line(env_id: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(GpurlError, match=words) as caught:
        gpuenvs.make(env_id, 2, device="cpu", **options)
    assert "\n" not in str(caught.value)


def test_without_mujoco_or_its_models_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    spec = gpuenvs.get("Swimmer-v5")
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(ModelError, match=r"pip install 'gpurl\[mujoco\]'"):
        spec.configure()  # type: ignore[misc]
    monkeypatch.undo()
    monkeypatch.setattr(gymnasium, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(ModelError, match="MuJoCo models are missing"):
        spec.configure()  # type: ignore[misc]


def test_importing_gpuenvs_imports_no_environment_and_no_mujoco() -> None:
    code = "import sys, gpuenvs; print([m for m in sys.modules if m == 'mujoco' or 'mjlite' in m or 'classic.' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "gpuenvs" not in done.stdout and "'mujoco'" not in done.stdout


def test_params_are_checked(env_id: str = "Ant-v5") -> None:
    with pytest.raises(ConfigError, match="must be finite"):
        gpuenvs.make(env_id, 2, device="cpu", ctrl_cost_weight=float("nan"))
