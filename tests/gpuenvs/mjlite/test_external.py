"""Contact wrenches on bodies against mj_rnePostConstraint."""

from __future__ import annotations

import numpy as np
import pytest

from gpuenvs.mjlite.external import rne_post_constraint
from gpuenvs.mjlite.forward import constraint_forces, forward
from gpuenvs.mjlite.model import load
from tests.gpuenvs.mjlite import harness

COUNT = 100


@pytest.mark.parametrize(
    ("name", "listed"),
    [("Hopper", False), ("Walker2d", False), ("Ant", False), ("Ant", True), ("HumanoidStandup", True)],
)
def test_cfrc_ext(name: str, listed: bool) -> None:
    m = harness.model(name)
    states = harness.states(m, COUNT, seed=3)
    d = harness.data_of(*states)
    with np.errstate(all="ignore"):
        forward(m, d, listed=listed)
        constraint_forces(m, d)
        rne_post_constraint(m, d)
    expected = harness.reference(m, *states)["cfrc_ext"]
    assert (np.abs(expected).max(axis=(1, 2)) > 0).sum() > COUNT // 10
    assert np.abs(harness.stack(d.cfrc_ext, COUNT) - expected).max() < 1e-10 * np.abs(expected).max()


TWO_TREES = """
<mujoco><option integrator="Euler" timestep="0.005"/><worldbody><geom type="plane" size="5 5 1"/>
  <body name="shelf" pos="0 0 .3"><geom name="shelf" size=".1 .2" type="capsule" euler="90 0 0"/></body>
  <body name="a" pos=".3 .02 .3"><freejoint/><geom size=".1"/><geom size=".05" pos=".1 .1 .05"/></body>
  <body name="b" pos=".3 0 .49"><freejoint/><geom size=".06 .1" type="capsule"/></body>
</worldbody></mujoco>
"""


def test_bodies_of_two_trees_and_a_body_that_cannot_move() -> None:
    m = harness.exact(load(TWO_TREES).mj)
    rng = np.random.default_rng(0)
    qpos = m.mj.qpos0 + 0.05 * rng.normal(size=(COUNT, m.nq))
    qpos[:, 0] -= 0.12 * rng.random(COUNT)
    states = qpos, rng.normal(size=(COUNT, m.nv)), np.zeros((COUNT, 0))
    d = harness.data_of(*states)
    with np.errstate(all="ignore"):
        forward(m, d)
        constraint_forces(m, d)
        rne_post_constraint(m, d)
    expected = harness.reference(m, *states)["cfrc_ext"]
    pushed = (np.abs(expected).max(axis=2) > 0).sum(axis=0)
    assert pushed[0] == 0 and min(pushed[1:]) > 10  # the world's row stays zero
    assert np.abs(harness.stack(d.cfrc_ext, COUNT) - expected).max() < 1e-9 * np.abs(expected).max()
