"""SwingUp-v0: swing a pendulum up with a motor too weak to lift it, and hold it there. A whole environment in 20 lines.

    gpurl check examples/swing_up.py:SPEC
    gpurl train examples/swing_up.py:SPEC --total-steps 400000 --set gamma=0.97 --set epochs=8 --set minibatches=8

Reward: the cosine of the angle, less a little for speed, over 200 steps. Reaches a return of more than 150.
"""

from typing import NamedTuple

from gymnasium.spaces import Box

from gpuenvs import EnvSpec, clip, lit, njit, sincos, uniform


class State(NamedTuple):
    angle: float  # rad, 0 is upright
    speed: float  # rad/s


class Params(NamedTuple):
    dt: float = 0.1  # s
    gravity: float = 2.5  # 1/s^2, what the motor would have to hold when the rod is level
    torque: float = 1.0  # 1/s^2, the most it can
    start: float = 3.14159265  # both values start in U(-start, start)


@njit
def reset(rng, params):
    return State(uniform(rng, 0, -params.start, params.start), uniform(rng, 1, -params.start, params.start))


@njit
def step(state, action, params):
    sine, cosine = sincos(state.angle)
    speed = state.speed + params.dt * (params.gravity * sine + clip(action[0], -params.torque, params.torque))
    return State(state.angle + params.dt * speed, speed), cosine - lit(0.01, speed) * speed * speed, False


@njit
def observe(state, params):
    return (*sincos(state.angle), state.speed)


SPEC = EnvSpec("SwingUp-v0", State, Params(), reset, step, observe, Box(-99, 99, (3,)), Box(-1, 1, (1,)), 200)
