"""Acrobot-v1: swing the free end of a two-link chain above a line by a motor in the middle joint.

Source: Sutton, "Generalization in reinforcement learning: successful examples using sparse coarse coding", NIPS 1995;
the equations are those of Sutton and Barto's book (section 11.3 of the 1st edition), which keep a term that the paper
leaves out. Matches Gymnasium's `gymnasium/envs/classic_control/acrobot.py`: one Runge-Kutta step of 4th order over `dt`.

| state | unit | reset | range |
|---|---|---|---|
| theta1, angle of link 1 from straight down | rad | U(-0.1, 0.1) | wrapped to [-pi, pi] |
| theta2, angle of link 2 from link 1 | rad | U(-0.1, 0.1) | wrapped to [-pi, pi] |
| theta1_dot | rad/s | U(-0.1, 0.1) | clipped to +-MAX_VEL_1 (4 pi) |
| theta2_dot | rad/s | U(-0.1, 0.1) | clipped to +-MAX_VEL_2 (9 pi) |

Observation: (cos theta1, sin theta1, cos theta2, sin theta2, theta1_dot, theta2_dot).
Action: 0, 1, 2 apply a torque of -torque, 0, +torque N m between the links. Reward: -1, and 0 for the step that ends.
Ends when the free end is more than 1 m (one link) above the pivot: -cos theta1 - cos(theta1 + theta2) > 1.
Gymnasium's `torque_noise_max` (0 by default) is left out: env functions draw random numbers at reset only.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpuenvs.rng import uniform
from gpuenvs.scalar import clip, f32, floor, lit, njit, sincos
from gpuenvs.spec import EnvSpec, Reference


class State(NamedTuple):
    theta1: float
    theta2: float
    theta1_dot: float
    theta2_dot: float


class Params(NamedTuple):
    dt: float = 0.2  # s
    LINK_LENGTH_1: float = 1.0  # m
    LINK_MASS_1: float = 1.0  # kg
    LINK_MASS_2: float = 1.0  # kg
    LINK_COM_POS_1: float = 0.5  # m from the joint
    LINK_COM_POS_2: float = 0.5  # m from the joint
    LINK_MOI: float = 1.0  # kg m^2, both links
    MAX_VEL_1: float = 4.0 * math.pi  # rad/s
    MAX_VEL_2: float = 9.0 * math.pi  # rad/s
    g: float = 9.8  # m/s^2
    torque: float = 1.0  # N m, what actions 0 and 2 apply
    reset_bound: float = 0.1  # every state value starts in U(-reset_bound, reset_bound)
    book_or_nips: int = 0  # 0: the book's equations, 1: those of the paper


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
def _wrap(angle):
    """`angle` brought into [-pi, pi] by whole turns; both ends stay as they are."""
    size = -angle if angle < f32(0.0) else angle
    turns = floor((lit(math.pi, angle) - size) * lit(0.5 / math.pi, angle))  # minus the whole turns beyond pi
    excess = turns * lit(2.0 * math.pi, angle)
    return angle - excess if angle < f32(0.0) else angle + excess


@njit
def _accelerations(theta1, theta2, theta1_dot, theta2_dot, torque, params):
    """(theta1_ddot, theta2_ddot) in rad/s^2.

    The book's two equations are the 2x2 linear system ((d1, d2), (d2, m2_inertia)) theta_ddot = (-phi1, tau2), solved
    here with one division; the determinant is written so that nothing cancels.
    """
    p = params
    sin1, cos1 = sincos(theta1)
    sin2, cos2 = sincos(theta2)
    coupling = p.LINK_MASS_2 * p.LINK_LENGTH_1 * p.LINK_COM_POS_2
    inertia2 = p.LINK_MASS_2 * (p.LINK_COM_POS_2 * p.LINK_COM_POS_2) + p.LINK_MOI
    inertia1 = (
        p.LINK_MASS_1 * (p.LINK_COM_POS_1 * p.LINK_COM_POS_1)
        + p.LINK_MASS_2 * (p.LINK_LENGTH_1 * p.LINK_LENGTH_1)
        + p.LINK_MOI
    )
    torque1_max = (p.LINK_MASS_1 * p.LINK_COM_POS_1 + p.LINK_MASS_2 * p.LINK_LENGTH_1) * p.g
    torque2_max = p.LINK_MASS_2 * p.LINK_COM_POS_2 * p.g
    book_coupling = f32(0.0) * coupling if p.book_or_nips != 0 else coupling

    d2 = inertia2 + coupling * cos2
    phi2 = torque2_max * (sin1 * cos2 + cos1 * sin2)
    coriolis = coupling * sin2 * (theta2_dot * (theta2_dot + f32(2.0) * theta1_dot))
    phi1 = torque1_max * sin1 + phi2 - coriolis
    tau2 = torque - phi2 - book_coupling * sin2 * (theta1_dot * theta1_dot)
    d1 = inertia1 + d2 + coupling * cos2
    inv_det = f32(1.0) / (inertia1 * inertia2 - (coupling * cos2) * (coupling * cos2))
    theta1_ddot = -(inertia2 * phi1 + d2 * tau2) * inv_det
    theta2_ddot = (d1 * tau2 + d2 * phi1) * inv_det
    return theta1_ddot, theta2_ddot


@njit
def _integrate(state, torque, params):
    """One Runge-Kutta step of 4th order over `dt`, neither wrapped nor clipped.

    The derivative of an angle is a velocity, so the angles' slopes are the velocities of the stages.
    """
    q1, q2, v1, v2 = state.theta1, state.theta2, state.theta1_dot, state.theta2_dot
    dt = params.dt
    half = f32(0.5) * dt
    a1, a2 = _accelerations(q1, q2, v1, v2, torque, params)
    v1_b, v2_b = v1 + half * a1, v2 + half * a2
    b1, b2 = _accelerations(q1 + half * v1, q2 + half * v2, v1_b, v2_b, torque, params)
    v1_c, v2_c = v1 + half * b1, v2 + half * b2
    c1, c2 = _accelerations(q1 + half * v1_b, q2 + half * v2_b, v1_c, v2_c, torque, params)
    v1_d, v2_d = v1 + dt * c1, v2 + dt * c2
    d1, d2 = _accelerations(q1 + dt * v1_c, q2 + dt * v2_c, v1_d, v2_d, torque, params)
    sixth = dt / f32(6.0)
    two = f32(2.0)
    return State(
        q1 + sixth * (v1 + two * (v1_b + v1_c) + v1_d),
        q2 + sixth * (v2 + two * (v2_b + v2_c) + v2_d),
        v1 + sixth * (a1 + two * (b1 + c1) + d1),
        v2 + sixth * (a2 + two * (b2 + c2) + d2),
    )


@njit
def step(state, action, params):
    p = params
    torque = (f32(action) - f32(1.0)) * p.torque
    moved = _integrate(state, torque, p)
    new_state = State(
        _wrap(moved.theta1),
        _wrap(moved.theta2),
        clip(moved.theta1_dot, -p.MAX_VEL_1, p.MAX_VEL_1),
        clip(moved.theta2_dot, -p.MAX_VEL_2, p.MAX_VEL_2),
    )
    # The same sines and cosines as `observe` needs: the compiler computes them once.
    sin1, cos1 = sincos(new_state.theta1)
    sin2, cos2 = sincos(new_state.theta2)
    height = -cos1 - (cos1 * cos2 - sin1 * sin2)
    terminated = height > f32(1.0)
    reward = f32(0.0) if terminated else f32(-1.0)
    return new_state, reward, terminated


@njit
def observe(state, params):
    sin1, cos1 = sincos(state.theta1)
    sin2, cos2 = sincos(state.theta2)
    return cos1, sin1, cos2, sin2, state.theta1_dot, state.theta2_dot


def _to_reference(env, state) -> None:
    env.state = np.array(state, dtype=np.float64)


def _from_reference(env) -> State:
    return State(*(float(value) for value in env.state))


_HIGH = np.array([1.0, 1.0, 1.0, 1.0, Params().MAX_VEL_1, Params().MAX_VEL_2], np.float32)

SPEC = EnvSpec(
    id="Acrobot-v1",
    state=State,
    params=Params(),
    reset=reset,
    step=step,
    observe=observe,
    observation_space=Box(-_HIGH, _HIGH, dtype=np.float32),
    action_space=Discrete(3),
    max_episode_steps=500,
    reward_threshold=-100.0,
    reference=Reference("Acrobot-v1", _to_reference, _from_reference),
    doc=__doc__ or "",
)
