"""Time stepping against mj_step, with everything that constrains the motion switched off."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from gpuenvs.mjlite.actuation import actuation
from gpuenvs.mjlite.inertia import com_pos, crb
from gpuenvs.mjlite.integrate import damped_inertia, euler, integrate_pos, rk4_stage, rk4_start
from gpuenvs.mjlite.kinematics import Data, kinematics
from gpuenvs.mjlite.model import EULER, Model, load
from gpuenvs.mjlite.passive import passive
from gpuenvs.mjlite.velocity import com_vel, rne
from tests.gpuenvs.mjlite import harness
from tests.gpuenvs.mjlite.test_smooth import random_states
from tests.gpuenvs.mjlite.trees import random_tree


def forward(m: Model, qpos: list, qvel: list, ctrl: list) -> tuple[Data, np.ndarray]:
    """Data with qacc, and the joint forces (n, nv) that cause it; solved by numpy."""
    d, n = Data(qpos, qvel, ctrl), len(qpos[0])
    for stage in (kinematics, com_pos, crb, com_vel, rne, passive, actuation):
        stage(m, d)
    force = harness.stack(d.qfrc_passive, n) - harness.stack(d.qfrc_bias, n) + harness.stack(d.qfrc_actuator, n)
    d.qacc = accelerate(m, d.qM, force)
    return d, force


def accelerate(m: Model, inertia: dict, force: np.ndarray) -> list:
    return list(np.linalg.solve(harness.dense(m, inertia, len(force)), force[..., None])[..., 0].T)


def step(m: Model, qpos: np.ndarray, qvel: np.ndarray, ctrl: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    q0, v0, u = list(qpos.T), list(qvel.T), list(ctrl.T)
    if m.integrator == EULER:
        d, force = forward(m, q0, v0, u)
        damped = damped_inertia(m, d)
        q, v = euler(m, d, d.qacc if damped is None else accelerate(m, damped, force))
    else:
        q, v, carry = q0, v0, rk4_start(m)
        for stage in range(4):
            d, _ = forward(m, q, v, u)
            q, v, carry = rk4_stage(m, stage, q0, v0, d, carry)
        assert all(np.all(x == y) for x, y in zip(carry, rk4_start(m), strict=True))
    return harness.stack(q, len(qpos)), harness.stack(v, len(qpos))


def check(m: Model, states: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    q, v = step(m, *states)
    after = harness.each(m, *states, lambda data: {"qpos": data.qpos, "qvel": data.qvel}, run=mujoco.mj_step)
    scale = max(1.0, np.abs(after["qvel"]).max())
    assert np.abs(q - after["qpos"]).max() < 1e-14 * scale
    assert np.abs(v - after["qvel"]).max() < 1e-12 * scale


@pytest.mark.parametrize("integrator", ["Euler", "RK4"])
@pytest.mark.parametrize("seed", range(12))
def test_random_trees(seed: int, integrator: str) -> None:
    rng = np.random.default_rng(100 + seed)
    m = harness.exact(load(random_tree(rng, integrator=integrator, fluid=seed % 3 == 0)).mj)
    check(m, random_states(m, rng, 20))


ROTATING = """
<mujoco><option integrator="RK4" timestep="0.05"><flag gravity="disable"/></option><worldbody>
  <body><freejoint/><geom type="box" size=".1 .2 .3"/>
    <body pos="0 0 .5"><joint type="ball"/><geom type="box" size=".3 .1 .05"/></body></body>
</worldbody></mujoco>
"""


@pytest.mark.parametrize("speed", [0.0, 1e-9, 1e-3, 0.3, 30.0])
def test_rotations_of_every_size(speed: float) -> None:
    m = harness.exact(load(ROTATING).mj)
    qpos, qvel, ctrl = random_states(m, np.random.default_rng(0), 30)
    check(m, (qpos, qvel * speed / 3.0, ctrl))


@pytest.mark.parametrize("flag", ["eulerdamp", "damper", "spring", "gravity", "actuation", "clampctrl"])
def test_disabled_flags(flag: str) -> None:
    rng = np.random.default_rng(7)
    text = random_tree(rng, integrator="Euler", fluid=True).replace("<flag", f'<flag {flag}="disable"')
    m = harness.exact(load(text).mj)
    check(m, random_states(m, rng, 10))


def test_no_damping_needs_no_second_solve() -> None:
    m = harness.model("Hopper")
    undamped = load("<mujoco><worldbody><body><joint/><geom size='.1'/></body></worldbody></mujoco>")
    d = Data([0.1], [0.2], [])
    for stage in (kinematics, com_pos, crb):
        stage(undamped, d)
    assert damped_inertia(undamped, d) is None
    assert m.timestep * max(m.dof_damping) > 0


def test_integrate_pos_returns_new_lists() -> None:
    m = harness.model("Ant")
    qpos, _, _ = harness.states(m, 5)
    before = [x.copy() for x in qpos.T]
    moved = integrate_pos(m, list(qpos.T), [np.full(5, 0.1)] * m.nv)
    assert all((x == y).all() for x, y in zip(qpos.T, before))
    norm = sum(x * x for x in moved[3:7])
    assert np.abs(norm - 1.0).max() < 1e-14
