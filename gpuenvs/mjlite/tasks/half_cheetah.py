"""HalfCheetah-v5: a two-legged planar runner.

Matches `gymnasium/envs/mujoco/half_cheetah_v5.py` (Gymnasium 1.4): Euler, five simulation steps of 0.01 s.

Observation (17): positions without x (m, rad), all velocities; with `exclude_current_positions_from_observation=False`
x first.
Action: six torques, [-1, 1], gears 120, 90, 60, 120, 60, 30.
Reward: `reward_forward` (forward_reward_weight * x velocity) + `reward_ctrl` (-ctrl_cost_weight * sum of squared
actions). The episode ends by its time limit only.
Start: U(-reset_noise_scale, reset_noise_scale) on positions, N(0, reset_noise_scale) on velocities.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gpuenvs.mjlite.task import task_spec
from gpuenvs.mjlite.tasks.common import flag, model_file, squares, uniform_normal_start, x_velocity
from gpuenvs.spec import EnvSpec

ID = "HalfCheetah-v5"


class Params(NamedTuple):
    forward_reward_weight: float = 1.0
    ctrl_cost_weight: float = 0.1
    reset_noise_scale: float = 0.1


def reward(before, action, after, params):
    return {
        "reward_forward": params.forward_reward_weight * x_velocity(before, after),
        "reward_ctrl": -params.ctrl_cost_weight * squares(action),
    }


def info(before, action, after, params):
    return {"x_position": after.qpos[0], "x_velocity": x_velocity(before, after)}


def configure(
    *,
    xml_file: str = "half_cheetah.xml",
    frame_skip: int = 5,
    exclude_current_positions_from_observation: bool = True,
    default_camera_config: dict[str, Any] | None = None,
) -> EnvSpec:
    """The task with Gymnasium's options of these names."""
    hidden = 1 * flag(ID, "exclude_current_positions_from_observation", exclude_current_positions_from_observation)

    def observation(now, params):
        return [*now.qpos[hidden:], *now.qvel]

    return task_spec(
        ID,
        model_file(xml_file),
        frame_skip=frame_skip,
        observation=observation,
        reward=reward,
        info=info,
        reset=uniform_normal_start,
        params=Params(),
        max_episode_steps=1000,
        reward_threshold=4800.0,
        reference=ID,
        configure=configure,
        camera=default_camera_config or {"distance": 4.0},
        doc=__doc__ or "",
    )


SPEC = configure()
