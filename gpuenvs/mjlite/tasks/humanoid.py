"""Humanoid-v5: a two-legged humanoid walks to the right.

Matches `gymnasium/envs/mujoco/humanoid_v5.py` (Gymnasium 1.4): RK4, five simulation steps of 0.003 s.

Observation (348): positions without x and y (22), velocities (23); of the 13 bodies inertia `cinert` (130), velocity `cvel`
(78); actuator forces on the 17 hinges `qfrc_actuator`; contact forces `cfrc_ext` (78). Each block from `cinert` on has an
option `include_..._in_observation`; with `exclude_current_positions_from_observation=False` x and y come first.
Action: 17 torques, [-0.4, 0.4], gears of the model.
Reward: `reward_forward` (forward_reward_weight * x velocity of the centre of mass) + `reward_survive` (healthy_reward while
healthy) + `reward_ctrl` (-ctrl_cost_weight * sum of squared actions) + `reward_contact` (-contact_cost_weight * sum of
squared contact forces, clipped to contact_cost_range).
Healthy: torso height in healthy_z_range (open interval). The episode ends when it is not, unless
`terminate_when_unhealthy=False`.
Start: U(-reset_noise_scale, reset_noise_scale) on everything.

Centre of mass, `cinert`, `cvel`, `qfrc_actuator` and `cfrc_ext` are what MuJoCo's last forward pass left, as in Gymnasium.
Gymnasium's info has `tendon_length` and `tendon_velocity` as well; the tendons have no effect and are left out here.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from gpuenvs import trace as T
from gpuenvs.mjlite.task import task_spec
from gpuenvs.mjlite.tasks.common import flag, model_file, norm, pair, squares, uniform_start, where_healthy
from gpuenvs.spec import EnvSpec

ID = "Humanoid-v5"


class Params(NamedTuple):
    forward_reward_weight: float = 1.25
    ctrl_cost_weight: float = 0.1
    contact_cost_weight: float = 5e-7
    contact_cost_range_low: float = -math.inf
    contact_cost_range_high: float = 10.0
    healthy_reward: float = 5.0
    healthy_z_range_low: float = 1.0  # m
    healthy_z_range_high: float = 2.0
    reset_noise_scale: float = 1e-2


def humanoid_observation(hidden: int, cinert: bool, cvel: bool, qfrc_actuator: bool, cfrc_ext: bool):
    """The observation of both humanoid tasks: `hidden` positions are left out, each block is there or not."""

    def observation(now, params):
        return [
            *now.qpos[hidden:],
            *now.qvel,
            *(now.cinert[1:] if cinert else ()),
            *(now.cvel[1:] if cvel else ()),
            *(now.qfrc_actuator[6:] if qfrc_actuator else ()),
            *(now.cfrc_ext[1:] if cfrc_ext else ()),
        ]

    return observation


def velocity(before, after, axis):
    return (after.subtree_com[0][axis] - before.subtree_com[0][axis]) / after.dt


def healthy(now, params):
    z = now.qpos[2]
    return (params.healthy_z_range_low < z) & (z < params.healthy_z_range_high)


def unhealthy(after, params):
    return T.logical_not(healthy(after, params))


def reward(before, action, after, params):
    contact_cost = params.contact_cost_weight * squares(force for body in after.cfrc_ext for force in body)
    return {
        "reward_survive": where_healthy(healthy(after, params), params.healthy_reward),
        "reward_forward": params.forward_reward_weight * velocity(before, after, 0),
        "reward_ctrl": -params.ctrl_cost_weight * squares(action),
        "reward_contact": -T.clip(contact_cost, params.contact_cost_range_low, params.contact_cost_range_high),
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
    xml_file: str = "humanoid.xml",
    frame_skip: int = 5,
    contact_cost_range: tuple[float, float] = (-math.inf, 10.0),
    terminate_when_unhealthy: bool = True,
    healthy_z_range: tuple[float, float] = (1.0, 2.0),
    exclude_current_positions_from_observation: bool = True,
    include_cinert_in_observation: bool = True,
    include_cvel_in_observation: bool = True,
    include_qfrc_actuator_in_observation: bool = True,
    include_cfrc_ext_in_observation: bool = True,
    default_camera_config: dict[str, Any] | None = None,
) -> EnvSpec:
    """The task with Gymnasium's options of these names."""
    z = pair(ID, "healthy_z_range", healthy_z_range)
    cost = pair(ID, "contact_cost_range", contact_cost_range)
    return task_spec(
        ID,
        model_file(xml_file),
        frame_skip=frame_skip,
        observation=humanoid_observation(
            2 * flag(ID, "exclude_current_positions_from_observation", exclude_current_positions_from_observation),
            flag(ID, "include_cinert_in_observation", include_cinert_in_observation),
            flag(ID, "include_cvel_in_observation", include_cvel_in_observation),
            flag(ID, "include_qfrc_actuator_in_observation", include_qfrc_actuator_in_observation),
            flag(ID, "include_cfrc_ext_in_observation", include_cfrc_ext_in_observation),
        ),
        reward=reward,
        terminated=unhealthy if flag(ID, "terminate_when_unhealthy", terminate_when_unhealthy) else None,
        info=info,
        reset=uniform_start,
        params=Params(
            contact_cost_range_low=cost[0],
            contact_cost_range_high=cost[1],
            healthy_z_range_low=z[0],
            healthy_z_range_high=z[1],
        ),
        max_episode_steps=1000,
        reference=ID,
        configure=configure,
        camera=default_camera_config
        or {"trackbodyid": 1, "distance": 4.0, "lookat": (0.0, 0.0, 2.0), "elevation": -20.0},
        doc=__doc__ or "",
    )


SPEC = configure()
