"""Everything without constraints, quantity by quantity against the C engine in float64."""

from __future__ import annotations

import numpy as np
import pytest

from gpuenvs import trace as T
from gpuenvs.mjlite.actuation import actuation
from gpuenvs.mjlite.inertia import com_pos, crb
from gpuenvs.mjlite.kinematics import Data, kinematics
from gpuenvs.mjlite.model import Model, load
from gpuenvs.mjlite.passive import passive
from gpuenvs.mjlite.velocity import com_vel, rne
from gpuenvs.trace.graph import Value, record
from tests.gpuenvs.mjlite import harness
from tests.gpuenvs.mjlite.trees import random_tree

STATES = 300
TOLERANCE = 2e-14
"""Times the largest value of the quantity (at least 1): rounding, and quaternion residue that `load` removes."""

QUANTITIES = (
    "xpos", "xquat", "xmat", "xipos", "ximat", "xanchor", "xaxis", "geom_xpos", "geom_xmat", "site_xpos", "site_xmat",
    "subtree_com", "cinert", "cdof", "qM", "cvel", "cdof_dot", "qfrc_bias", "qfrc_passive", "actuator_force", "qfrc_actuator",
)  # fmt: skip


def smooth(m: Model, d: Data, n: int) -> dict[str, np.ndarray]:
    """All quantities of `n` states, as arrays."""
    for stage in (kinematics, com_pos, crb, com_vel, rne, passive, actuation):
        stage(m, d)
    found = {name: harness.stack(getattr(d, name), n) for name in QUANTITIES if name != "qM"}
    return found | {"qM": harness.dense(m, d.qM, n)}


def errors(m: Model, qpos: np.ndarray, qvel: np.ndarray, ctrl: np.ndarray) -> dict[str, tuple[float, float]]:
    """Quantity -> (largest difference from the C engine, largest value)."""
    found = smooth(m, harness.data_of(qpos, qvel, ctrl), len(qpos))
    expected = harness.reference(m, qpos, qvel, ctrl)
    out = {}
    for name in QUANTITIES:
        if expected[name].size:
            difference = np.abs(found[name].reshape(expected[name].shape) - expected[name])
            out[name] = float(difference.max()), float(np.abs(expected[name]).max())
    return out


def check(found: dict[str, tuple[float, float]]) -> None:
    wrong = {name: pair for name, pair in found.items() if not pair[0] <= TOLERANCE * max(1.0, pair[1])}
    assert not wrong, f"(largest error, largest value): {wrong}"


@pytest.mark.parametrize("name", harness.MODELS)
def test_gymnasium_models(name: str) -> None:
    m = harness.model(name)
    check(errors(m, *harness.states(m, STATES, seed=1)))


@pytest.mark.parametrize("seed", range(25))
def test_random_trees(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m = harness.exact(load(random_tree(rng, fluid=seed % 3 == 0)).mj)
    check(errors(m, *random_states(m, rng, 20)))


def random_states(m: Model, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """States that need not be reachable; quaternions of any length, the first one at rest."""
    qpos = m.mj.qpos0 + 0.5 * rng.normal(size=(n, m.nq))
    qvel = 3.0 * rng.normal(size=(n, m.nv))
    qpos[0], qvel[0] = m.mj.qpos0, 0.0
    return qpos, qvel, rng.normal(size=(n, m.nu))


ATTACHED = """
<mujoco><option density="20"><flag contact="disable"/></option><worldbody>
  <body name="base" pos="0 0 1"><geom size=".1"/>
    <body name="arm" pos=".1 0 0"><joint axis="0 1 0"/><geom size=".1 .2" type="capsule" euler="30 0 0"/>
      <body name="plate" pos="0 .2 0" euler="0 0 20"><geom type="box" size=".1 .02 .3"/>
        <body name="tip" pos="0 0 .3"><geom size=".03"/>
          <body name="finger" pos="0 0 .1"><joint type="slide" axis="1 1 0"/><geom size=".02"/></body>
        </body></body></body></body>
</worldbody></mujoco>
"""


def test_welded_bodies_are_merged_but_observed_one_by_one() -> None:
    m = harness.exact(load(ATTACHED).mj)
    check(errors(m, *random_states(m, np.random.default_rng(0), 30)))


def test_a_planar_model_keeps_its_constants() -> None:
    """What cannot change in a model that moves in the x-z plane is a known number when traced."""
    m = harness.model("Walker2d")
    with record():
        unknown = T.Array(m.nq + m.nv)
        values = [unknown.load(k) for k in range(m.nq + m.nv)]
        d = Data(values[: m.nq], values[m.nq :], [])
        for stage in (kinematics, com_pos, crb, com_vel):
            stage(m, d)
        foot, last = m.id("body", "foot"), m.nv - 1
        assert known(d.xpos[foot]) == [None, 0.0, None]
        assert known(d.xmat[foot]) == [None, 0.0, None, 0.0, 1.0, 0.0, None, 0.0, None]
        assert known(d.motion[last]) == [0.0, -1.0, 0.0, None, 0.0, None]
        assert known(d.twist[foot]) == [0.0, None, 0.0, None, 0.0, None]
        assert [known(d.inertia[foot])[k] for k in (3, 5, 7)] == [0.0, 0.0, 0.0]
        assert known([d.qM[1, 0], d.qM[0, 0]]) == [0.0, pytest.approx(sum(m.body_mass))]


def known(values: list) -> list:
    return [x.constant if isinstance(x, Value) else x for x in values]


@pytest.mark.parametrize("name", ["HalfCheetah", "Ant"])
def test_single_precision_does_not_suffer_from_distance(name: str) -> None:
    """The inertia and bias force of a robot 10 km away from the start are those of one at the start, to the bit."""
    m = harness.model(name)
    qpos, qvel, ctrl = (x.astype(np.float32) for x in harness.states(m, 20))
    near, far = [], []
    for distance, out in ((0.0, near), (1e4, far)):
        qpos[:, 0] = distance
        d = harness.data_of(qpos, qvel, ctrl)
        for stage in (kinematics, com_pos, crb, com_vel, rne):
            stage(m, d)
        out += [*d.qM.values(), *d.qfrc_bias]
    assert all(np.array_equal(a, b) for a, b in zip(near, far, strict=True))


def test_quantities_for_observers_are_computed_where_they_are_read() -> None:
    d = harness.data_of(*harness.states(harness.model("Hopper"), 2))
    calls = []
    d.later("answer", lambda: calls.append(1) or 42)
    assert calls == [] and (d.answer, d.answer) == (42, 42) and calls == [1]
    with pytest.raises(AttributeError, match="no 'xpos' yet"):
        _ = d.xpos
