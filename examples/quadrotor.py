r"""Quadrotor-v0: fly a planar quadrotor to a point and stay there, whatever it weighs and however the wind blows.

    gpurl check examples/quadrotor.py:SPEC
    gpurl train examples/quadrotor.py:SPEC --total-steps 5e5 --set gamma=0.98 --set num_steps=128 --set epochs=6 \
        --set minibatches=8

A rigid bar with a rotor at each end, in a vertical plane; semi-implicit Euler. Mass and wind are drawn anew in each episode
and are not observed (domain randomisation); evaluation uses their defaults. Others are options of a batch, such as
`gpuenvs.make("examples/quadrotor.py:SPEC", 1000, mass=0.7, wind=gpuenvs.Range(-2, 2))`. Reaches a return of more than 210.

| state | unit | reset |
|---|---|---|
| x, z, position relative to the target | m | U(-1.5, 1.5) |
| angle, 0 is level, positive to the left | rad | U(-0.5, 0.5) |
| vx, vz | m/s | U(-0.5, 0.5) |
| spin | rad/s | 0 |

Observation (7): x, z, sin angle, cos angle, vx, vz, spin.
Action (2): left and right rotor, from -1 (still) to 1 (`max_thrust`).
Reward: 1 / (1 + 4 distance^2 + 0.1 spin^2), at most 1 a step.
Ends when farther than `bound` from the target in x or z.
Metrics: `distance` to the target in m, `near` (1 within 0.2 m, else 0).
"""

from typing import NamedTuple

import numpy as np
from gymnasium.spaces import Box

from gpuenvs import EnvSpec, Range, clip, f32, lit, njit, sincos, sqrt, uniform


class State(NamedTuple):
    x: float
    z: float
    angle: float
    vx: float
    vz: float
    spin: float


class Params(NamedTuple):
    mass: float = Range(0.4, 0.6, resample="episode")  # kg
    wind: float = Range(-1.0, 1.0, resample="episode", default=0.0)  # m/s, along x
    gravity: float = 9.81  # m/s^2
    arm: float = 0.15  # m, from the middle to a rotor
    inertia: float = 0.006  # kg m^2
    max_thrust: float = 5.0  # N, of one rotor
    drag: float = 0.15  # N s/m
    dt: float = 0.02  # s
    bound: float = 4.0  # m
    start: float = 1.5  # m


@njit
def reset(rng, params):
    angle = lit(0.5, params.start)
    return State(
        uniform(rng, 0, -params.start, params.start),
        uniform(rng, 1, -params.start, params.start),
        uniform(rng, 2, -angle, angle),
        uniform(rng, 3, -angle, angle),
        uniform(rng, 4, -angle, angle),
        f32(0.0) * angle,
    )


@njit
def rotors(action, params):
    """Thrust of both rotors in N."""
    half = f32(0.5) * params.max_thrust
    left = clip(action[0], f32(-1.0), f32(1.0))
    right = clip(action[1], f32(-1.0), f32(1.0))
    return half * (f32(1.0) + left), half * (f32(1.0) + right)


@njit
def step(state, action, params):
    p = params
    left, right = rotors(action, p)
    sine, cosine = sincos(state.angle)
    force = left + right
    per_mass = f32(1.0) / p.mass

    vx = state.vx - p.dt * per_mass * (force * sine + p.drag * (state.vx - p.wind))
    vz = state.vz + p.dt * (per_mass * (force * cosine - p.drag * state.vz) - p.gravity)
    spin = state.spin + p.dt * (p.arm * (right - left) / p.inertia)
    x = state.x + p.dt * vx
    z = state.z + p.dt * vz
    angle = state.angle + p.dt * spin

    squared = x * x + z * z
    reward = f32(1.0) / (f32(1.0) + f32(4.0) * squared + lit(0.1, x) * (spin * spin))
    ended = (abs(x) > p.bound) | (abs(z) > p.bound)
    near = f32(1.0) if squared < lit(0.04, x) else f32(0.0)
    return State(x, z, angle, vx, vz, spin), reward, ended, (sqrt(squared), near)


@njit
def observe(state, params):
    sine, cosine = sincos(state.angle)
    return state.x, state.z, sine, cosine, state.vx, state.vz, state.spin


SPEC = EnvSpec(
    id="Quadrotor-v0",
    state=State,
    params=Params(),
    reset=reset,
    step=step,
    observe=observe,
    observation_space=Box(-np.inf, np.inf, (7,), np.float32),
    action_space=Box(-1.0, 1.0, (2,), np.float32),
    max_episode_steps=250,
    metrics=("distance", "near"),
    doc=__doc__,
)
