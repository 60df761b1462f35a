"""Swimmer-v5: three links in a viscous fluid swim to the right.

Matches `gymnasium/envs/mujoco/swimmer_v5.py` (Gymnasium 1.4): RK4, four simulation steps of 0.01 s, no contacts.

Observation (8): angles of the first link and the two joints (rad), all five velocities; with
`exclude_current_positions_from_observation=False` x and y (m) first.
Action: torques on the joints, [-1, 1], gear 150.
Reward: `reward_forward` (forward_reward_weight * x velocity) + `reward_ctrl` (-ctrl_cost_weight * sum of squared
actions). The episode ends by its time limit only.
Start: U(-reset_noise_scale, reset_noise_scale) on everything.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gpuenvs.mjlite.task import task_spec
from gpuenvs.mjlite.tasks.common import flag, model_file, norm, squares, uniform_start
from gpuenvs.spec import EnvSpec

ID = "Swimmer-v5"


class Params(NamedTuple):
    forward_reward_weight: float = 1.0
    ctrl_cost_weight: float = 1e-4
    reset_noise_scale: float = 0.1


def velocity(before, after, axis):
    return (after.qpos[axis] - before.qpos[axis]) / after.dt


def reward(before, action, after, params):
    return {
        "reward_forward": params.forward_reward_weight * velocity(before, after, 0),
        "reward_ctrl": -params.ctrl_cost_weight * squares(action),
    }


def info(before, action, after, params):
    x, y = after.qpos[:2]
    return {
        "x_position": x,
        "y_position": y,
        "distance_from_origin": norm(x, y),
        "x_velocity": velocity(before, after, 0),
        "y_velocity": velocity(before, after, 1),
    }


def configure(
    *,
    xml_file: str = "swimmer.xml",
    frame_skip: int = 4,
    exclude_current_positions_from_observation: bool = True,
    default_camera_config: dict[str, Any] | None = None,
) -> EnvSpec:
    """The task with Gymnasium's options of these names."""
    hidden = 2 * flag(ID, "exclude_current_positions_from_observation", exclude_current_positions_from_observation)

    def observation(now, params):
        return [*now.qpos[hidden:], *now.qvel]

    return task_spec(
        ID,
        model_file(xml_file),
        frame_skip=frame_skip,
        observation=observation,
        reward=reward,
        info=info,
        reset=uniform_start,
        params=Params(),
        max_episode_steps=1000,
        reward_threshold=360.0,
        reference=ID,
        configure=configure,
        camera=default_camera_config,
        doc=__doc__ or "",
    )


SPEC = configure()
