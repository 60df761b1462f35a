"""Reacher-v5: bring the tip of a two-joint arm to a target in the plane.

Matches `gymnasium/envs/mujoco/reacher_v5.py` (Gymnasium 1.4): RK4, two simulation steps of 0.01 s. Two trees: the arm, and
the target, which is a body on two slides that nothing moves.

Observation (10): cosines, then sines of the two angles; target x, y (m); angular velocities; tip minus target, x and y.
Action: torques on the joints, [-1, 1], gear 200.
Reward: `reward_dist` (-reward_dist_weight * distance from tip to target) + `reward_ctrl` (-reward_control_weight * sum of
squared actions). The episode ends by its time limit only.
Start: angles in U(-0.1, 0.1), angular velocities in U(-0.005, 0.005), target uniform in the disc of radius 0.2.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from gpuenvs import trace as T
from gpuenvs.mjlite.task import task_spec
from gpuenvs.mjlite.tasks.common import difference, model_file, norm, squares
from gpuenvs.spec import EnvSpec

ID = "Reacher-v5"
_RADIUS = 0.2  # of the disc of targets, m


class Params(NamedTuple):
    reward_dist_weight: float = 1.0
    reward_control_weight: float = 1.0


def observation(now, params):
    angles = [T.sincos(q) for q in now.qpos[:2]]
    return [
        *(cosine for _, cosine in angles),
        *(sine for sine, _ in angles),
        *now.qpos[2:],
        *now.qvel[:2],
        *difference(now.xpos["fingertip"][:2], now.xpos["target"][:2]),
    ]


def reward(before, action, after, params):
    return {
        "reward_dist": -norm(*difference(after.xpos["fingertip"], after.xpos["target"])) * params.reward_dist_weight,
        "reward_ctrl": -squares(action) * params.reward_control_weight,
    }


def reset(start, params):
    start.qpos[:] = [q + start.uniform(-0.1, 0.1) for q in start.qpos[:2]] + start.qpos[2:]
    start.qvel[:] = [v + start.uniform(-0.005, 0.005) for v in start.qvel[:2]] + start.qvel[2:]
    # Gymnasium draws points of the square until one lies in the disc. Area grows with the square of the radius.
    radius = _RADIUS * T.sqrt(start.uniform(0.0, 1.0))
    sine, cosine = T.sincos(start.uniform(-math.pi, math.pi))
    start.qpos[-2], start.qpos[-1] = radius * cosine, radius * sine


def configure(
    *,
    xml_file: str = "reacher.xml",
    frame_skip: int = 2,
    default_camera_config: dict[str, Any] | None = None,
) -> EnvSpec:
    """The task with Gymnasium's options of these names."""
    return task_spec(
        ID,
        model_file(xml_file),
        frame_skip=frame_skip,
        observation=observation,
        reward=reward,
        reset=reset,
        params=Params(),
        max_episode_steps=50,
        reward_threshold=-3.75,
        reference=ID,
        configure=configure,
        camera=default_camera_config or {"trackbodyid": 0},
        doc=__doc__ or "",
    )


SPEC = configure()
