"""HumanoidStandup-v5: a humanoid that lies on its back stands up.

Matches `gymnasium/envs/mujoco/humanoidstandup_v5.py` (Gymnasium 1.4): RK4, five simulation steps of 0.003 s.

Observation (348): as Humanoid-v5's, with the same options.
Action: 17 torques, [-0.4, 0.4], gears of the model.
Reward: `reward_linup` (torso height / simulation step) + `reward_quadctrl` (-ctrl_cost_weight * sum of squared actions) +
`reward_impact` (-impact_cost_weight * sum of squared contact forces, clipped to impact_cost_range) + 1. The episode ends by
its time limit only. `uph_cost_weight` is a param because Gymnasium has it; it changes nothing there either.
Start: U(-reset_noise_scale, reset_noise_scale) on everything.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from gpuenvs import trace as T
from gpuenvs.mjlite.task import task_spec
from gpuenvs.mjlite.tasks.common import flag, model_file, pair, squares, uniform_start
from gpuenvs.mjlite.tasks.humanoid import humanoid_observation
from gpuenvs.spec import EnvSpec

ID = "HumanoidStandup-v5"


class Params(NamedTuple):
    uph_cost_weight: float = 1.0
    ctrl_cost_weight: float = 0.1
    impact_cost_weight: float = 0.5e-6
    impact_cost_range_low: float = -math.inf
    impact_cost_range_high: float = 10.0
    reset_noise_scale: float = 1e-2


def reward(before, action, after, params):
    impact_cost = params.impact_cost_weight * squares(force for body in after.cfrc_ext for force in body)
    terms = {
        "reward_linup": after.qpos[2] / after.timestep,
        "reward_quadctrl": -params.ctrl_cost_weight * squares(action),
        "reward_impact": -T.clip(impact_cost, params.impact_cost_range_low, params.impact_cost_range_high),
    }
    return sum(terms.values()) + 1.0, terms


def info(before, action, after, params):
    x, y, z = after.qpos[:3]
    return {"x_position": x, "y_position": y, "z_distance_from_origin": z - after.initial_qpos[2]}


def configure(
    *,
    xml_file: str = "humanoidstandup.xml",
    frame_skip: int = 5,
    impact_cost_range: tuple[float, float] = (-math.inf, 10.0),
    exclude_current_positions_from_observation: bool = True,
    include_cinert_in_observation: bool = True,
    include_cvel_in_observation: bool = True,
    include_qfrc_actuator_in_observation: bool = True,
    include_cfrc_ext_in_observation: bool = True,
    default_camera_config: dict[str, Any] | None = None,
) -> EnvSpec:
    """The task with Gymnasium's options of these names."""
    cost = pair(ID, "impact_cost_range", impact_cost_range)
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
        info=info,
        reset=uniform_start,
        params=Params(impact_cost_range_low=cost[0], impact_cost_range_high=cost[1]),
        max_episode_steps=1000,
        reference=ID,
        configure=configure,
        camera=default_camera_config
        or {"trackbodyid": 1, "distance": 4.0, "lookat": (0.0, 0.0, 0.8925), "elevation": -20.0},
        doc=__doc__ or "",
    )


SPEC = configure()
