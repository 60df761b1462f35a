"""MountainCar-v0: rock an underpowered car out of a valley.

Source: Moore, "Efficient memory-based learning for robot control", 1990; Sutton and Barto, "Reinforcement learning: an
introduction", 2nd edition, example 10.1. Matches Gymnasium's `gymnasium/envs/classic_control/mountain_car.py`.

| state = obs | unit | reset | range |
|---|---|---|---|
| position | m | U(-0.6, -0.4) | clipped to [min_position, max_position] = [-1.2, 0.6] |
| velocity | m/step | 0 | clipped to [-max_speed, max_speed] = [-0.07, 0.07] |

The hill is sin(3 position); the left wall stops a car that runs into it.
Action: 0 accelerates to the left, 1 not at all, 2 to the right. Reward: -1 for every step.
Ends when position >= goal_position (0.5) with velocity >= goal_velocity (0).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpuenvs.rng import uniform
from gpuenvs.scalar import clip, cos, f32, lit, njit, select
from gpuenvs.spec import EnvSpec, Reference


class State(NamedTuple):
    position: float
    velocity: float


class Params(NamedTuple):
    min_position: float = -1.2  # m
    max_position: float = 0.6  # m
    max_speed: float = 0.07  # m/step
    goal_position: float = 0.5  # m
    goal_velocity: float = 0.0  # m/step
    force: float = 0.001  # m/step^2, what one action adds to the velocity
    gravity: float = 0.0025  # m/step^2
    reset_low: float = -0.6  # m, the position starts in U(reset_low, reset_high)
    reset_high: float = -0.4  # m


@njit
def reset(rng, params):
    position = uniform(rng, 0, params.reset_low, params.reset_high)
    return State(position, lit(0.0, position))


@njit
def step(state, action, params):
    p = params
    push = (f32(action) - f32(1.0)) * p.force
    velocity = state.velocity + (push - p.gravity * cos(f32(3.0) * state.position))
    velocity = clip(velocity, -p.max_speed, p.max_speed)
    position = clip(state.position + velocity, p.min_position, p.max_position)
    # The clipped position equals the wall's exactly: an inelastic collision.
    hit_wall = (position == p.min_position) & (velocity < f32(0.0))
    velocity = select(hit_wall, f32(0.0), velocity)
    terminated = (position >= p.goal_position) & (velocity >= p.goal_velocity)
    return State(position, velocity), f32(-1.0), terminated


@njit
def observe(state, params):
    return state.position, state.velocity


def _to_reference(env, state) -> None:
    env.state = np.array(state, dtype=np.float64)


def _from_reference(env) -> State:
    return State(*(float(value) for value in env.state))


_LOW = np.array([Params().min_position, -Params().max_speed], np.float32)
_HIGH = np.array([Params().max_position, Params().max_speed], np.float32)

SPEC = EnvSpec(
    id="MountainCar-v0",
    state=State,
    params=Params(),
    reset=reset,
    step=step,
    observe=observe,
    observation_space=Box(_LOW, _HIGH, dtype=np.float32),
    action_space=Discrete(3),
    max_episode_steps=200,
    reward_threshold=-110.0,
    reference=Reference("MountainCar-v0", _to_reference, _from_reference),
    doc=__doc__ or "",
)
