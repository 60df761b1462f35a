"""States and actions that are worth testing, per environment: extremes, walls, limits and exact thresholds."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

Rng = np.random.Generator
States = np.ndarray  # (n, fields) float64


def _uniform(rng: Rng, n: int, *high: float) -> States:
    return rng.uniform(-1.0, 1.0, (n, len(high))) * np.array(high)


def _pick(rng: Rng, n: int, rows: list[tuple[float, ...]]) -> States:
    return np.array(rows)[rng.integers(0, len(rows), n)]


def _near(values: list[float], ulps: int = 2) -> list[float]:
    """Each value and its `ulps` nearest float64 and float32 neighbours on both sides."""
    found = []
    for value in values:
        for real in (np.float64, np.float32):
            up = down = real(value)
            found.append(float(up))
            for _ in range(ulps):
                up, down = np.nextafter(up, real(np.inf)), np.nextafter(down, real(-np.inf))
                found += [float(up), float(down)]
    return found


def cartpole(rng: Rng, n: int) -> States:
    """Upright, falling, at the edges, upside down and spinning."""
    calm = _uniform(rng, n // 2, 2.5, 3.0, 0.25, 3.0)
    wild = _uniform(rng, n - n // 2, 10.0, 20.0, 30.0, 20.0)
    return np.concatenate([calm, wild])


def cartpole_thresholds(rng: Rng, n: int) -> States:
    """At rest, so that position and angle after the step are exactly those before it."""
    theta = 12 * 2 * math.pi / 360
    rows = [(x, 0.0, 0.0, 0.0) for x in _near([2.4, -2.4])] + [(0.0, 0.0, t, 0.0) for t in _near([theta, -theta])]
    return _pick(rng, n, rows)


def mountain_car(rng: Rng, n: int) -> States:
    """All over the track, a quarter of the rows close to the left wall or to the goals, some at full speed."""
    position, velocity = rng.uniform(-1.2, 0.6, n), rng.uniform(-0.07, 0.07, n)
    edge = n // 4
    position[:edge] = rng.choice([-1.2, 0.45, 0.5, 0.6], edge) + rng.uniform(-0.07, 0.07, edge)
    velocity[edge : 2 * edge] = rng.choice([-0.07, 0.0, 0.07], edge)
    return np.stack([np.clip(position, -1.2, 0.6), velocity], axis=1)


def mountain_car_thresholds(goal: float) -> Callable[[Rng, int], States]:
    """So fast that the velocity is clipped to exactly +-0.07: the new position lies around the goal, or at the wall."""

    def states(rng: Rng, n: int) -> States:
        rows = [(position, 0.09) for position in _near([goal - 0.07])]
        rows += [(position, -0.09) for position in _near([-1.2 + 0.07])] + [(0.6, 0.07), (-1.2, -0.07), (-1.2, 0.0)]
        return _pick(rng, n, rows)

    return states


def pendulum(rng: Rng, n: int) -> States:
    """As many turns as an episode can make (80 rad), at all speeds; a tenth of the rows at the wrap of the angle."""
    states = _uniform(rng, n, 80.0, 8.0)
    few = n // 10
    states[:few, 0] = math.pi * rng.integers(-9, 10, few) + rng.uniform(-1e-6, 1e-6, few)
    states[few : 2 * few, 1] = rng.choice([-8.0, 8.0], few)
    return states


def acrobot(rng: Rng, n: int) -> States:
    """All angles; half of the rows at swing-up speeds, the others up to the limits; a tenth of the angles at the wrap."""
    pi = math.pi
    states = np.concatenate(
        [_uniform(rng, n // 2, pi, pi, 4.0, 6.0), _uniform(rng, n - n // 2, pi, pi, 4 * pi, 9 * pi)]
    )
    few = 1 + n // 20
    states[:few, 0] = rng.choice([-pi, pi], few)
    states[-few:, 1] = rng.choice([-pi, pi], few)
    return states


# id -> states all over the space
EXTREMES: dict[str, Callable[[Rng, int], States]] = {
    "CartPole-v1": cartpole,
    "MountainCar-v0": mountain_car,
    "MountainCarContinuous-v0": mountain_car,
    "Pendulum-v1": pendulum,
    "Acrobot-v1": acrobot,
}

# id -> states whose next state lies exactly at, just before or just beyond what ends an episode
THRESHOLDS: dict[str, Callable[[Rng, int], States]] = {
    "CartPole-v1": cartpole_thresholds,
    "MountainCar-v0": mountain_car_thresholds(0.5),
    "MountainCarContinuous-v0": mountain_car_thresholds(0.45),
}

# State fields that are angles known only up to whole turns after a step.
WRAPPED: dict[str, tuple[str, ...]] = {"Acrobot-v1": ("theta1", "theta2")}
