"""Ant-v5: a four-legged walker with a free torso.

Matches `gymnasium/envs/mujoco/ant_v5.py` (Gymnasium 1.4): RK4, five simulation steps of 0.01 s.

Observation (105): positions without x and y (m, quaternion, rad), all velocities, contact forces `cfrc_ext` of the 13 bodies
(6 each, torque and force) clipped to contact_force_range; with `exclude_current_positions_from_observation=False` x and y
first, with `include_cfrc_ext_in_observation=False` no contact forces.
Action: eight torques, [-1, 1], gear 150.
Reward: `reward_forward` (forward_reward_weight * x velocity of `main_body`) + `reward_ctrl` (-ctrl_cost_weight * sum of
squared actions) + `reward_contact` (-contact_cost_weight * sum of squared clipped contact forces) + `reward_survive`
(healthy_reward while healthy).
Healthy: torso height in healthy_z_range (closed interval). The episode ends when it is not, unless
`terminate_when_unhealthy=False`.
Start: U(-reset_noise_scale, reset_noise_scale) on positions, N(0, reset_noise_scale) on velocities.

`main_body`'s position is the one that MuJoCo's last forward pass left, as in Gymnasium.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gpuenvs import trace as T
from gpuenvs.mjlite.task import task_spec
from gpuenvs.mjlite.tasks.common import flag, model_file, norm, pair, squares, uniform_normal_start, where_healthy
from gpuenvs.spec import EnvSpec

ID = "Ant-v5"


class Params(NamedTuple):
    forward_reward_weight: float = 1.0
    ctrl_cost_weight: float = 0.5
    contact_cost_weight: float = 5e-4
    healthy_reward: float = 1.0
    healthy_z_range_low: float = 0.2  # m
    healthy_z_range_high: float = 1.0
    contact_force_range_low: float = -1.0
    contact_force_range_high: float = 1.0
    reset_noise_scale: float = 0.1


def contact_forces(bodies, params):
    return [
        T.clip(force, params.contact_force_range_low, params.contact_force_range_high)
        for body in bodies
        for force in body
    ]


def healthy(now, params):
    z = now.qpos[2]
    return (params.healthy_z_range_low <= z) & (z <= params.healthy_z_range_high)


def unhealthy(after, params):
    return T.logical_not(healthy(after, params))


def configure(
    *,
    xml_file: str = "ant.xml",
    frame_skip: int = 5,
    main_body: int | str = 1,
    terminate_when_unhealthy: bool = True,
    healthy_z_range: tuple[float, float] = (0.2, 1.0),
    contact_force_range: tuple[float, float] = (-1.0, 1.0),
    exclude_current_positions_from_observation: bool = True,
    include_cfrc_ext_in_observation: bool = True,
    default_camera_config: dict[str, Any] | None = None,
) -> EnvSpec:
    """The task with Gymnasium's options of these names."""
    hidden = 2 * flag(ID, "exclude_current_positions_from_observation", exclude_current_positions_from_observation)
    forces_shown = flag(ID, "include_cfrc_ext_in_observation", include_cfrc_ext_in_observation)
    z = pair(ID, "healthy_z_range", healthy_z_range)
    forces = pair(ID, "contact_force_range", contact_force_range)

    def observation(now, params):
        shown = contact_forces(now.cfrc_ext[1:], params) if forces_shown else []
        return [*now.qpos[hidden:], *now.qvel, *shown]

    def velocity(before, after, axis):
        return (after.xpos[main_body][axis] - before.xpos[main_body][axis]) / after.dt

    def reward(before, action, after, params):
        contact_cost = params.contact_cost_weight * squares(contact_forces(after.cfrc_ext, params))
        return {
            "reward_forward": params.forward_reward_weight * velocity(before, after, 0),
            "reward_ctrl": -params.ctrl_cost_weight * squares(action),
            "reward_contact": -contact_cost,
            "reward_survive": where_healthy(healthy(after, params), params.healthy_reward),
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

    return task_spec(
        ID,
        model_file(xml_file),
        frame_skip=frame_skip,
        observation=observation,
        reward=reward,
        terminated=unhealthy if flag(ID, "terminate_when_unhealthy", terminate_when_unhealthy) else None,
        info=info,
        reset=uniform_normal_start,
        params=Params(
            healthy_z_range_low=z[0],
            healthy_z_range_high=z[1],
            contact_force_range_low=forces[0],
            contact_force_range_high=forces[1],
        ),
        max_episode_steps=1000,
        reward_threshold=6000.0,
        reference=ID,
        configure=configure,
        camera=default_camera_config or {"distance": 4.0},
        doc=__doc__ or "",
    )


SPEC = configure()
