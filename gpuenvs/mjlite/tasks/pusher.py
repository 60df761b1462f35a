"""Pusher-v5: an arm with seven joints pushes a cylinder to a goal on a table.

Matches `gymnasium/envs/mujoco/pusher_v5.py` (Gymnasium 1.4): Euler, five simulation steps of 0.01 s, no gravity. Three trees:
the arm, the cylinder and the goal, each of the last two on two slides.

Observation (23): angles (rad) and velocities of the arm's joints; positions (m) of fingertips, cylinder and goal.
Action: seven torques, [-2, 2].
Reward: `reward_dist` (-reward_dist_weight * distance from cylinder to goal) + `reward_ctrl` (-reward_control_weight * sum of
squared actions) + `reward_near` (-reward_near_weight * distance from fingertips to cylinder). The episode ends by its time
limit only.
Start: arm at rest in its reference position, its velocities in U(-0.005, 0.005); the slides of the goal at 0; those of the
cylinder uniform in [-0.3, 0] x [-0.2, 0.2] outside of the disc of radius 0.17 around 0.

The positions are those that MuJoCo's last forward pass left, as in Gymnasium.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from gpuenvs import trace as T
from gpuenvs.mjlite.task import task_spec
from gpuenvs.mjlite.tasks.common import difference, model_file, norm, squares
from gpuenvs.spec import EnvSpec

ID = "Pusher-v5"
_WIDTH, _HEIGHT, _NEAREST = 0.3, 0.2, 0.17  # of the half rectangle and the disc that it lacks, m
_CORNER = math.atan2(_HEIGHT, _WIDTH)


class Params(NamedTuple):
    reward_near_weight: float = 0.5
    reward_dist_weight: float = 1.0
    reward_control_weight: float = 0.1


def observation(now, params):
    return [*now.qpos[:7], *now.qvel[:7], *now.xpos["tips_arm"], *now.xpos["object"], *now.xpos["goal"]]


def reward(before, action, after, params):
    cylinder, arm, goal = (after.xpos[name] for name in ("object", "tips_arm", "goal"))
    return {
        "reward_dist": -norm(*difference(cylinder, goal)) * params.reward_dist_weight,
        "reward_ctrl": -squares(action) * params.reward_control_weight,
        "reward_near": -norm(*difference(cylinder, arm)) * params.reward_near_weight,
    }


def _squared_reach(sine, cosine, angle):
    """Squared distance from 0 to the border of [0, _WIDTH] x [0, _HEIGHT] in the direction of `angle`."""
    return T.where(angle < _CORNER, T.square(_WIDTH / cosine), T.square(_HEIGHT / sine))


def _area(sine, cosine, angle):
    """Area between that border and the disc, from direction 0 to `angle`."""
    to_side = _WIDTH * _WIDTH * sine / cosine
    to_top = 2.0 * _WIDTH * _HEIGHT - _HEIGHT * _HEIGHT * cosine / sine
    return 0.5 * (T.where(angle < _CORNER, to_side, to_top) - _NEAREST * _NEAREST * angle)


def cylinder_position(start):
    """A point of the half rectangle, uniform outside of the disc.

    Gymnasium draws points of the rectangle until one is far enough from 0. Here the direction comes from the inverse of the
    area that a ray sweeps, and the distance from the area of a ring. The area is convex in the direction below the corner
    and concave above, so Newton's iteration from the corner approaches its root from one side; eight steps reach rounding.
    """
    total = _WIDTH * _HEIGHT - 0.25 * math.pi * _NEAREST * _NEAREST
    wanted = start.uniform(0.0, total)
    angle = _CORNER
    for _ in range(8):
        sine, cosine = T.sincos(angle)
        slope = 0.5 * (_squared_reach(sine, cosine, angle) - _NEAREST * _NEAREST)
        angle = T.clip(angle + (wanted - _area(sine, cosine, angle)) / slope, 0.0, 0.5 * math.pi)
    sine, cosine = T.sincos(angle)
    nearest = _NEAREST * _NEAREST
    radius = T.sqrt(nearest + start.uniform(0.0, 1.0) * (_squared_reach(sine, cosine, angle) - nearest))
    side = T.where(start.uniform(0.0, 1.0) < 0.5, -1.0, 1.0)
    return -radius * cosine, side * radius * sine


def reset(start, params):
    start.qpos[-4], start.qpos[-3] = cylinder_position(start)
    start.qpos[-2], start.qpos[-1] = 0.0, 0.0
    start.qvel[:] = [v + start.uniform(-0.005, 0.005) for v in start.qvel[:-4]] + start.qvel[-4:]


def configure(
    *,
    xml_file: str = "pusher_v5.xml",
    frame_skip: int = 5,
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
        max_episode_steps=100,
        reward_threshold=0.0,
        reference=ID,
        configure=configure,
        camera=default_camera_config or {"trackbodyid": -1, "distance": 4.0},
        doc=__doc__ or "",
    )


SPEC = configure()
