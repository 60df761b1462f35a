"""InvertedPendulum-v5: keep a pole upright on a cart.

Matches `gymnasium/envs/mujoco/inverted_pendulum_v5.py` (Gymnasium 1.4): RK4, two simulation steps of 0.02 s per action.

Observation (4): cart position (m), pole angle (rad), their velocities.
Action: force on the cart, [-3, 3], gear 100.
Reward: `reward_survive`, 1 while the pole's angle is within 0.2 rad, else 0, which also ends the episode.
Start: U(-reset_noise_scale, reset_noise_scale) on everything.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gpuenvs import trace as T
from gpuenvs.mjlite.task import task_spec
from gpuenvs.mjlite.tasks.common import model_file, uniform_start
from gpuenvs.spec import EnvSpec

ID = "InvertedPendulum-v5"


class Params(NamedTuple):
    reset_noise_scale: float = 0.01


def observation(now, params):
    return [*now.qpos, *now.qvel]


def upright(now):
    return T.absolute(now.qpos[1]) <= 0.2


def reward(before, action, after, params):
    return {"reward_survive": T.where(upright(after), 1.0, 0.0)}


def terminated(after, params):
    return T.logical_not(upright(after))


def configure(
    *,
    xml_file: str = "inverted_pendulum.xml",
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
        terminated=terminated,
        reset=uniform_start,
        params=Params(),
        max_episode_steps=1000,
        reward_threshold=950.0,
        reference=ID,
        configure=configure,
        camera=default_camera_config or {"trackbodyid": 0, "distance": 2.04},
        doc=__doc__ or "",
    )


SPEC = configure()
