"""InvertedDoublePendulum-v5: keep two poles, one on the other, upright on a cart.

Matches `gymnasium/envs/mujoco/inverted_double_pendulum_v5.py` (Gymnasium 1.4): RK4, five simulation steps of 0.01 s.

Observation (9): cart position (m); sines, then cosines of the poles' angles; velocities of cart and poles, clipped to
[-10, 10]; constraint force on the cart (its rail's ends), clipped to [-10, 10].
Action: force on the cart, [-1, 1], gear 500.
Reward: `reward_survive` (healthy_reward, 0 when the episode ends) + `distance_penalty` (tip at (x, y):
-0.01 x^2 - (y - 2)^2) + `velocity_penalty` (-0.001 and -0.005 of the poles' squared velocities).
Ends when the tip is at or below 1 m.
Start: U(-reset_noise_scale, reset_noise_scale) on positions, N(0, reset_noise_scale) on velocities.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gpuenvs import trace as T
from gpuenvs.mjlite.task import task_spec
from gpuenvs.mjlite.tasks.common import model_file, uniform_normal_start, where_healthy
from gpuenvs.spec import EnvSpec

ID = "InvertedDoublePendulum-v5"


class Params(NamedTuple):
    healthy_reward: float = 10.0
    reset_noise_scale: float = 0.1


def observation(now, params):
    angles = [T.sincos(q) for q in now.qpos[1:]]
    return [
        now.qpos[0],
        *(sine for sine, _ in angles),
        *(cosine for _, cosine in angles),
        *(T.clip(v, -10.0, 10.0) for v in now.qvel),
        T.clip(now.qfrc_constraint[0], -10.0, 10.0),
    ]


def fallen(now):
    return now.site_xpos[0][2] <= 1.0


def reward(before, action, after, params):
    x, _, y = after.site_xpos[0]
    v1, v2 = after.qvel[1:3]
    return {
        "reward_survive": where_healthy(T.logical_not(fallen(after)), params.healthy_reward),
        "distance_penalty": -(0.01 * T.square(x) + T.square(y - 2.0)),
        "velocity_penalty": -(1e-3 * T.square(v1) + 5e-3 * T.square(v2)),
    }


def terminated(after, params):
    return fallen(after)


def configure(
    *,
    xml_file: str = "inverted_double_pendulum.xml",
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
        terminated=terminated,
        reset=uniform_normal_start,
        params=Params(),
        max_episode_steps=1000,
        reward_threshold=9100.0,
        reference=ID,
        configure=configure,
        camera=default_camera_config or {"trackbodyid": 0, "distance": 4.1225, "lookat": (0.0, 0.0, 0.1225)},
        doc=__doc__ or "",
    )


SPEC = configure()
