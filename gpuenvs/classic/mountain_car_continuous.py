"""MountainCarContinuous-v0: the mountain car with a force that the agent chooses and pays for.

Source: Moore, "Efficient memory-based learning for robot control", 1990; matches Gymnasium's
`gymnasium/envs/classic_control/continuous_mountain_car.py`.

| state = obs | unit | reset | range |
|---|---|---|---|
| position | m | U(-0.6, -0.4) | clipped to [min_position, max_position] = [-1.2, 0.6] |
| velocity | m/step | 0 | clipped to [-max_speed, max_speed] = [-0.07, 0.07] |

The hill is sin(3 position); the left wall stops a car that runs into it.
Action: one force; the motion uses it clipped to [min_action, max_action] = [-1, 1], the cost takes it as given.
Reward: -0.1 action^2, and 100 more for the step that reaches the goal.
Ends when position >= goal_position (0.45) with velocity >= goal_velocity (0).

Gymnasium rounds the state to float32 after every step and nothing else; here the whole step has the working dtype, so
a float64 run is the more exact one and an episode agrees with Gymnasium's to float32 rounding.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from gymnasium.spaces import Box

from gpuenvs.rng import uniform
from gpuenvs.scalar import clip, cos, f32, lit, njit, select
from gpuenvs.spec import EnvSpec, Reference


class State(NamedTuple):
    position: float
    velocity: float


class Params(NamedTuple):
    min_action: float = -1.0
    max_action: float = 1.0
    min_position: float = -1.2  # m
    max_position: float = 0.6  # m
    max_speed: float = 0.07  # m/step
    goal_position: float = 0.45  # m
    goal_velocity: float = 0.0  # m/step
    power: float = 0.0015  # m/step^2, what a force of 1 adds to the velocity
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
    force = clip(action[0], p.min_action, p.max_action)
    velocity = state.velocity + (force * p.power - p.gravity * cos(f32(3.0) * state.position))
    velocity = clip(velocity, -p.max_speed, p.max_speed)
    position = clip(state.position + velocity, p.min_position, p.max_position)
    # The clipped position equals the wall's exactly: an inelastic collision.
    hit_wall = (position == p.min_position) & (velocity < f32(0.0))
    velocity = select(hit_wall, f32(0.0), velocity)
    terminated = (position >= p.goal_position) & (velocity >= p.goal_velocity)
    bonus = f32(100.0) if terminated else f32(0.0)
    # Unclipped on purpose, as in Gymnasium: asking for more than the motor gives costs more.
    reward = bonus - action[0] * action[0] * lit(0.1, position)
    return State(position, velocity), reward, terminated


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
    id="MountainCarContinuous-v0",
    state=State,
    params=Params(),
    reset=reset,
    step=step,
    observe=observe,
    observation_space=Box(_LOW, _HIGH, dtype=np.float32),
    action_space=Box(Params().min_action, Params().max_action, shape=(1,), dtype=np.float32),
    max_episode_steps=999,
    reward_threshold=90.0,
    reference=Reference("MountainCarContinuous-v0", _to_reference, _from_reference),
    doc=__doc__ or "",
)
