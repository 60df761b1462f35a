r"""RingRoad-v0: 22 cars on a ring road brake each other into a jam; you drive one of them and can dissolve it.

    gpurl check examples/ring_road.py:SPEC
    gpurl train examples/ring_road.py:SPEC --total-steps 1e6 --set num_steps=128 --set epochs=8 --set minibatches=8 \
        --set log_std_init=-1

A state of 44 values and loops over cars. Such functions are written for tracing (`traced=True`): plain Python that is run
once to record what it computes, so lists, comprehensions and `for` loops of fixed length cost nothing afterwards, and the
state's fields can be made in a loop as well. What they cannot do is branch on a value: `T.where` chooses instead.

The drivers follow the intelligent driver model (Treiber, Hennecke and Helbing 2000), the experiment is that of Sugiyama et
al. 2008: at this density the slightest unevenness grows into a wave of stopping cars. Explicit Euler.

| state | unit | reset |
|---|---|---|
| gap_0 ... gap_21, from each car's front to the car ahead | m | uneven, together what the ring has |
| speed_0 ... speed_21 | m/s | U(0, start_speed) |

Car k + 1 is ahead of car k; car 0 is yours. Observation (44): gaps and speeds, each about 1 in even traffic.
Action (1): your acceleration, in units of `reach`. Reward: the mean speed of all cars, over `even_speed`.
Ends when you touch the car ahead. Metrics: `mean_speed`, `slowest` (m/s).

Reaches a return of about 500; driving like everybody else ends in a standing wave and gives about 430.
"""

from typing import NamedTuple

import numpy as np
from gymnasium.spaces import Box

from gpuenvs import EnvSpec
from gpuenvs import trace as T
from gpuenvs.trace.random import uniform

CARS = 22
FIELDS = [f"{what}_{k}" for what in ("gap", "speed") for k in range(CARS)]
State = NamedTuple("State", [(name, float) for name in FIELDS])


class Params(NamedTuple):
    ring: float = 260.0  # m
    car: float = 5.0  # m, length
    dt: float = 0.2  # s
    free_speed: float = 30.0  # m/s, wanted on an empty road
    headway: float = 1.0  # s, wanted to the car ahead
    min_gap: float = 2.0  # m
    push: float = 0.6  # m/s^2, a driver's strongest acceleration
    brake: float = 1.5  # m/s^2, a driver's comfortable braking
    reach: float = 3.0  # m/s^2, your strongest acceleration and braking
    even_speed: float = 4.8  # m/s, if all drove alike
    start_speed: float = 4.0  # m/s


def driver(gap, speed, ahead, p):
    """Acceleration of a driver at `speed` with `gap` to a car at speed `ahead`."""
    closing = speed * (speed - ahead) / (2.0 * T.sqrt(p.push * p.brake))
    wanted = p.min_gap + T.maximum(0.0, speed * p.headway + closing)
    crowd, ratio = wanted / gap, speed / p.free_speed
    return p.push * (1.0 - ratio * ratio * ratio * ratio - crowd * crowd)


def reset(rng, params):
    shares = [uniform(rng, k, 0.6, 1.4) for k in range(CARS)]
    per_share = (params.ring - CARS * params.car) / sum(shares)
    speeds = [uniform(rng, CARS + k, 0.0, params.start_speed) for k in range(CARS)]
    return State(*(share * per_share for share in shares), *speeds)


def step(state, action, params):
    p = params
    gaps, speeds = state[:CARS], state[CARS:]
    ahead = [speeds[(k + 1) % CARS] for k in range(CARS)]
    rates = [driver(gap, speed, front, p) for gap, speed, front in zip(gaps, speeds, ahead)]
    rates[0] = p.reach * T.clip(action[0], -1.0, 1.0)

    moved = [T.maximum(0.0, speed + p.dt * rate) for speed, rate in zip(speeds, rates)]
    left = [T.maximum(0.1, gap + p.dt * (moved[(k + 1) % CARS] - moved[k])) for k, gap in enumerate(gaps)]
    mean, slowest = sum(moved) / CARS, moved[0]
    for speed in moved[1:]:
        slowest = T.minimum(slowest, speed)
    return State(*left, *moved), mean / p.even_speed, left[0] < 0.5, (mean, slowest)


def observe(state, params):
    even_gap = params.ring / CARS - params.car
    return [gap / even_gap for gap in state[:CARS]] + [speed / params.even_speed for speed in state[CARS:]]


SPEC = EnvSpec(
    id="RingRoad-v0",
    state=State,
    params=Params(),
    reset=reset,
    step=step,
    observe=observe,
    observation_space=Box(-np.inf, np.inf, (2 * CARS,), np.float32),
    action_space=Box(-1.0, 1.0, (1,), np.float32),
    max_episode_steps=600,
    metrics=("mean_speed", "slowest"),
    traced=True,
    doc=__doc__,
)
