"""CartPole-v1: balance a pole on a cart by pushing the cart left or right.

Source: Barto, Sutton and Anderson, "Neuronlike adaptive elements that can solve difficult learning control problems",
1983, with the frictionless equations of motion of Florian, "Correct equations for the dynamics of the cart-pole system",
2007. Matches Gymnasium's `gymnasium/envs/classic_control/cartpole.py`: explicit Euler with step `tau`.

| state = obs | unit | reset | ends the episode |
|---|---|---|---|
| x, cart position | m | U(-0.05, 0.05) | outside +-x_threshold (2.4) |
| x_dot, cart velocity | m/s | U(-0.05, 0.05) | |
| theta, pole angle from upright | rad | U(-0.05, 0.05) | outside +-theta_threshold_radians (12 degrees) |
| theta_dot, pole angular velocity | rad/s | U(-0.05, 0.05) | |

Action: 0 pushes the cart to the left, 1 to the right, with `force_mag` newtons.
Reward: 1 for every step, the last one included. With `sutton_barto_reward=1`: 0, and -1 for the step that ends.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpuenvs.rng import uniform
from gpuenvs.scalar import f32, lit, njit, sincos
from gpuenvs.spec import EnvSpec, Reference


class State(NamedTuple):
    x: float
    x_dot: float
    theta: float
    theta_dot: float


class Params(NamedTuple):
    gravity: float = 9.8  # m/s^2
    masscart: float = 1.0  # kg
    masspole: float = 0.1  # kg
    length: float = 0.5  # m, half of the pole
    force_mag: float = 10.0  # N
    tau: float = 0.02  # s
    theta_threshold_radians: float = 12.0 * 2.0 * math.pi / 360.0  # rad
    x_threshold: float = 2.4  # m
    reset_bound: float = 0.05  # every state value starts in U(-reset_bound, reset_bound)
    sutton_barto_reward: int = 0  # 1: the reward of the 1983 paper


@njit
def reset(rng, params):
    low, high = -params.reset_bound, params.reset_bound
    return State(
        uniform(rng, 0, low, high),
        uniform(rng, 1, low, high),
        uniform(rng, 2, low, high),
        uniform(rng, 3, low, high),
    )


@njit
def step(state, action, params):
    p = params
    force = p.force_mag if action == 1 else -p.force_mag
    sin_theta, cos_theta = sincos(state.theta)

    # One division per step: everything that depends on params alone leaves the loop.
    inv_total_mass = f32(1.0) / (p.masspole + p.masscart)
    polemass_length = p.masspole * p.length
    # Florian 2007, eq. 23 and 24 without friction; `temp` is their common term.
    temp = (force + polemass_length * (state.theta_dot * state.theta_dot) * sin_theta) * inv_total_mass
    inertia = p.length * (lit(4.0 / 3.0, state.x) - p.masspole * (cos_theta * cos_theta) * inv_total_mass)
    theta_acc = (p.gravity * sin_theta - cos_theta * temp) / inertia
    x_acc = temp - polemass_length * theta_acc * cos_theta * inv_total_mass

    x = state.x + p.tau * state.x_dot
    theta = state.theta + p.tau * state.theta_dot
    new_state = State(x, state.x_dot + p.tau * x_acc, theta, state.theta_dot + p.tau * theta_acc)
    terminated = (
        (x < -p.x_threshold)
        | (x > p.x_threshold)
        | (theta < -p.theta_threshold_radians)
        | (theta > p.theta_threshold_radians)
    )
    sutton_barto = f32(-1.0) if terminated else f32(0.0)
    reward = sutton_barto if p.sutton_barto_reward != 0 else f32(1.0)
    return new_state, reward, terminated


@njit
def observe(state, params):
    return state.x, state.x_dot, state.theta, state.theta_dot


def _to_reference(env, state) -> None:
    env.state = np.array(state, dtype=np.float64)
    env.steps_beyond_terminated = None


def _from_reference(env) -> State:
    return State(*(float(value) for value in env.state))


# Twice the thresholds, so that the observation that ends an episode still lies inside.
_HIGH = np.array([2.0 * Params().x_threshold, np.inf, 2.0 * Params().theta_threshold_radians, np.inf], np.float32)

SPEC = EnvSpec(
    id="CartPole-v1",
    state=State,
    params=Params(),
    reset=reset,
    step=step,
    observe=observe,
    observation_space=Box(-_HIGH, _HIGH, dtype=np.float32),
    action_space=Discrete(2),
    max_episode_steps=500,
    reward_threshold=475.0,
    reference=Reference("CartPole-v1", _to_reference, _from_reference),
    doc=__doc__ or "",
)
