"""Hopper-v5: a planar one-legged hopper.

Matches `gymnasium/envs/mujoco/hopper_v5.py` (Gymnasium 1.4): RK4, four simulation steps of 0.002 s.

Observation (11): positions without x (m, rad), velocities clipped to [-10, 10]; with
`exclude_current_positions_from_observation=False` x first.
Action: three torques, [-1, 1], gear 200.
Reward: `reward_forward` (forward_reward_weight * x velocity) + `reward_ctrl` (-ctrl_cost_weight * sum of squared actions) +
`reward_survive` (healthy_reward while healthy).
Healthy: torso height in healthy_z_range, torso angle in healthy_angle_range, the angles and all velocities in
healthy_state_range (open intervals). The episode ends when it is not, unless `terminate_when_unhealthy=False`.
Start: U(-reset_noise_scale, reset_noise_scale) on everything.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from gpuenvs import trace as T
from gpuenvs.mjlite.task import task_spec
from gpuenvs.mjlite.tasks.common import (
    flag,
    model_file,
    pair,
    squares,
    uniform_start,
    upright_info,
    where_healthy,
    x_velocity,
)
from gpuenvs.spec import EnvSpec

ID = "Hopper-v5"


class Params(NamedTuple):
    forward_reward_weight: float = 1.0
    ctrl_cost_weight: float = 1e-3
    healthy_reward: float = 1.0
    healthy_state_range_low: float = -100.0
    healthy_state_range_high: float = 100.0
    healthy_z_range_low: float = 0.7  # m
    healthy_z_range_high: float = math.inf
    healthy_angle_range_low: float = -0.2  # rad
    healthy_angle_range_high: float = 0.2
    reset_noise_scale: float = 5e-3


def healthy(now, params):
    z, angle = now.qpos[1:3]
    p = params
    return T.all_of(
        *((p.healthy_state_range_low < x) & (x < p.healthy_state_range_high) for x in [*now.qpos[2:], *now.qvel]),
        (p.healthy_z_range_low < z) & (z < p.healthy_z_range_high),
        (p.healthy_angle_range_low < angle) & (angle < p.healthy_angle_range_high),
    )


def reward(before, action, after, params):
    return {
        "reward_forward": params.forward_reward_weight * x_velocity(before, after),
        "reward_ctrl": -params.ctrl_cost_weight * squares(action),
        "reward_survive": where_healthy(healthy(after, params), params.healthy_reward),
    }


def unhealthy(after, params):
    return T.logical_not(healthy(after, params))


def configure(
    *,
    xml_file: str = "hopper.xml",
    frame_skip: int = 4,
    terminate_when_unhealthy: bool = True,
    healthy_state_range: tuple[float, float] = (-100.0, 100.0),
    healthy_z_range: tuple[float, float] = (0.7, math.inf),
    healthy_angle_range: tuple[float, float] = (-0.2, 0.2),
    exclude_current_positions_from_observation: bool = True,
    default_camera_config: dict[str, Any] | None = None,
) -> EnvSpec:
    """The task with Gymnasium's options of these names."""
    hidden = 1 * flag(ID, "exclude_current_positions_from_observation", exclude_current_positions_from_observation)

    def observation(now, params):
        return [*now.qpos[hidden:], *(T.clip(v, -10.0, 10.0) for v in now.qvel)]

    state, z, angle = (
        pair(ID, "healthy_state_range", healthy_state_range),
        pair(ID, "healthy_z_range", healthy_z_range),
        pair(ID, "healthy_angle_range", healthy_angle_range),
    )
    return task_spec(
        ID,
        model_file(xml_file),
        frame_skip=frame_skip,
        observation=observation,
        reward=reward,
        terminated=unhealthy if flag(ID, "terminate_when_unhealthy", terminate_when_unhealthy) else None,
        info=upright_info,
        reset=uniform_start,
        params=Params(
            healthy_state_range_low=state[0],
            healthy_state_range_high=state[1],
            healthy_z_range_low=z[0],
            healthy_z_range_high=z[1],
            healthy_angle_range_low=angle[0],
            healthy_angle_range_high=angle[1],
        ),
        max_episode_steps=1000,
        reward_threshold=3800.0,
        reference=ID,
        configure=configure,
        camera=default_camera_config
        or {"trackbodyid": 2, "distance": 3.0, "lookat": (0.0, 0.0, 1.15), "elevation": -20.0},
        doc=__doc__ or "",
    )


SPEC = configure()
