"""Pendulum-v1: swing a rod up and hold it there with a weak motor.

Matches Gymnasium's `gymnasium/envs/classic_control/pendulum.py`: a uniform rod (moment of inertia m l^2 / 3 about its
pivot) under gravity and torque, semi-implicit Euler with step `dt`.

| state | unit | reset | range |
|---|---|---|---|
| theta, angle from upright | rad | U(-pi, pi) | not wrapped |
| theta_dot, angular velocity | rad/s | U(-1, 1) | clipped to [-max_speed, max_speed] = [-8, 8] |

Observation: (cos theta, sin theta, theta_dot).
Action: one torque in N m, clipped to [-max_torque, max_torque] = [-2, 2].
Reward: -(angle^2 + 0.1 theta_dot^2 + 0.001 torque^2) of the state before the step, the angle in [-pi, pi) and the
torque clipped. The episode ends by its time limit only.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from gymnasium.spaces import Box

from gpuenvs.rng import uniform
from gpuenvs.scalar import clip, f32, lit, njit, sin, sincos, wrap_angle
from gpuenvs.spec import EnvSpec, Reference


class State(NamedTuple):
    theta: float
    theta_dot: float


class Params(NamedTuple):
    max_speed: float = 8.0  # rad/s
    max_torque: float = 2.0  # N m
    dt: float = 0.05  # s
    g: float = 10.0  # m/s^2
    m: float = 1.0  # kg
    l: float = 1.0  # m
    reset_theta: float = math.pi  # rad, theta starts in U(-reset_theta, reset_theta)
    reset_theta_dot: float = 1.0  # rad/s


@njit
def reset(rng, params):
    p = params
    return State(
        uniform(rng, 0, -p.reset_theta, p.reset_theta),
        uniform(rng, 1, -p.reset_theta_dot, p.reset_theta_dot),
    )


@njit
def step(state, action, params):
    p = params
    torque = clip(action[0], -p.max_torque, p.max_torque)
    angle = wrap_angle(state.theta)
    speed_cost = lit(0.1, angle) * (state.theta_dot * state.theta_dot)
    torque_cost = lit(0.001, angle) * (torque * torque)
    reward = -(angle * angle + speed_cost + torque_cost)

    gravity_term = f32(3.0) * p.g / (f32(2.0) * p.l) * sin(state.theta)
    torque_term = f32(3.0) / (p.m * (p.l * p.l)) * torque
    theta_dot = clip(state.theta_dot + (gravity_term + torque_term) * p.dt, -p.max_speed, p.max_speed)
    theta = state.theta + theta_dot * p.dt
    return State(theta, theta_dot), reward, False


@njit
def observe(state, params):
    sin_theta, cos_theta = sincos(state.theta)
    return cos_theta, sin_theta, state.theta_dot


def _to_reference(env, state) -> None:
    env.state = np.array(state, dtype=np.float64)
    env.last_u = None  # the renderer draws the last torque


def _from_reference(env) -> State:
    return State(*(float(value) for value in env.state))


_HIGH = np.array([1.0, 1.0, Params().max_speed], np.float32)

SPEC = EnvSpec(
    id="Pendulum-v1",
    state=State,
    params=Params(),
    reset=reset,
    step=step,
    observe=observe,
    observation_space=Box(-_HIGH, _HIGH, dtype=np.float32),
    action_space=Box(-Params().max_torque, Params().max_torque, shape=(1,), dtype=np.float32),
    max_episode_steps=200,
    reference=Reference("Pendulum-v1", _to_reference, _from_reference),
    doc=__doc__ or "",
)
