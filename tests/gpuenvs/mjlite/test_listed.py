"""Listed contacts against the C engine: slots, Jacobians, rows, and forces on bodies."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
import pytest

from gpuenvs.mjlite.listed import ContactGroup, external_forces, list_contacts
from gpuenvs.mjlite.model import Model, load
from tests.gpuenvs.mjlite import harness
from tests.gpuenvs.mjlite.contacts import Spread, engine, prepared

STATES = 80
TWO_TREES = """<mujoco><default><geom condim="3" friction="0.6"/>
    <default class="plane only"><geom contype="2" conaffinity="0"/></default></default>
  <worldbody><geom type="plane" size="1 1 1" conaffinity="3"/>
  <body pos="0 0 .3"><freejoint/><geom type="capsule" size=".1 .2"/>
    <body pos="0 .3 0"><joint axis="1 0 0"/><geom class="plane only" type="box" size=".1 .1 .1" contype="3"/></body></body>
  <body pos=".1 0 .5"><joint type="slide" axis="0 0 1"/><joint axis="0 1 0"/><geom type="sphere" size=".2" friction="0.8"/>
    <geom class="plane only" type="cylinder" size=".1 .1" pos=".4 0 0"/></body></worldbody></mujoco>"""


def sample(m: Model, n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(8)
    qpos = np.tile(m.mj.qpos0, (n, 1)) + rng.normal(size=(n, m.nq)) * 0.15
    return qpos, rng.normal(size=(n, m.nv))


def rows(m: Model, group: ContactGroup, s: int, at: Spread) -> tuple[np.ndarray, np.ndarray]:
    """Jacobian (dirs, nv) and aref (dirs,) of a slot."""
    p, dirs = group.pair.load(s), group.dirs
    jacobian = np.zeros((dirs, m.nv))
    for k in range(group.path_len.load(p)):
        for i in range(dirs):
            dof = group.path_dof.load(p * group.stride + k)
            jacobian[i, dof] = at(group.jac.load((s * group.stride + k) * dirs + i))
    return jacobian, at([group.aref.load(s * dirs + i) for i in range(dirs)])


def edges(mu: float) -> np.ndarray:
    return np.array([[1, mu, 0], [1, -mu, 0], [1, 0, mu], [1, 0, -mu]])


def compare(m: Model, group: ContactGroup, s: int, k: int, data: Any) -> tuple[np.ndarray, float]:
    """(force of the C engine along the slot's directions, largest difference of J, aref and D) in state k."""
    at, pair = Spread(k), group.pairs[group.pair.load(s)]
    pos = at([group.position.load(s * 3 + i) for i in range(3)])
    near = [c for c in data.contact if tuple(c.geom) == (pair.geom1, pair.geom2) and c.efc_address >= 0]
    other = min(near, key=lambda c: np.abs(c.pos - pos).max())
    jacobian, aref = rows(m, group, s, at)
    dim, first = group.dim, other.efc_address
    axes = at([group.axes.load(s * (dim * 3) + i) for i in range(dim * 3)]).reshape(dim, 3)
    signs = np.array([np.sign(a @ b) for a, b in zip(axes, other.frame.reshape(3, 3))])  # a tangent's sign is free
    jacobian, aref = jacobian * signs[:, None], aref * signs
    combine = edges(group.mu(group.pair.load(s))) if dim == 3 else np.eye(1)
    theirs = slice(first, first + len(combine))
    error = max(
        np.abs(pos - other.pos).max(),
        np.abs(combine @ jacobian - data.efc_J.reshape(-1, m.nv)[theirs]).max(),
        np.abs(combine @ aref - data.efc_aref[theirs]).max() / (1 + np.abs(data.efc_aref[theirs]).max()),
        np.abs(at(group.D.load(s)) / data.efc_D[theirs] - 1).max(),
    )
    return combine.T @ data.efc_force[theirs] * signs, error


def check(m: Model, qpos: np.ndarray, qvel: np.ndarray) -> int:
    """Compares everything; returns how many contacts there were."""
    n, states = len(qpos), engine(m, qpos, qvel)
    for data in states:
        mujoco.mj_forward(m.mj, data)
        mujoco.mj_rnePostConstraint(m.mj, data)
    d = prepared(m, qpos, qvel)
    with np.errstate(all="ignore"):
        list_contacts(m, d)
    compared = np.zeros(n, dtype=int)
    for group in d.listed.groups:
        assert group.count <= group.capacity
        for s in range(group.count):
            force = np.zeros((n, group.dirs))
            acting = np.nonzero(np.broadcast_to(group.D.load(s), n) > 0)[0]
            assert len(acting), "a slot without any contact"
            for k in acting:
                force[k], error = compare(m, group, s, k, states[k])
                assert error < 1e-9, f"state {k}: {error:.1e}"
            compared[acting] += 1
            for i in range(group.dirs):
                group.force.store(s * group.dirs + i, force[:, i])
    assert compared.tolist() == [sum(c.efc_address >= 0 for c in data.contact) for data in states]
    expected = np.array([data.cfrc_ext for data in states])
    found = harness.stack(external_forces(m, d), n)
    assert np.abs(found - expected)[:, 1:].max() < 1e-11 * np.abs(expected).max()
    return int(compared.sum())


@pytest.mark.parametrize("name", ["Hopper", "Ant", "Humanoid", "HumanoidStandup"])
def test_slots_of_the_tasks(name: str) -> None:
    m = harness.model(name)
    qpos, qvel, _ = harness.states(m, STATES, seed=4)
    assert check(m, qpos, qvel) > 20


def test_several_trees_frictions_and_whole_orientations() -> None:
    m = load(TWO_TREES)
    qpos, qvel = sample(m, 100)
    assert check(m, qpos, qvel) > 100


def test_no_contact_no_slot() -> None:
    m = harness.model("Ant")
    qpos = np.tile(m.mj.qpos0, (3, 1))
    qpos[:, 2] = 5.0
    d = prepared(m, qpos, np.zeros((3, m.nv)))
    list_contacts(m, d)
    assert [group.count for group in d.listed.groups] == [0]
    assert np.abs(harness.stack(external_forces(m, d), 3)).max() == 0.0


def test_recorded_program_stays_small() -> None:
    """The point of listing: a loop per kind of pair, not code per pair."""
    from gpuenvs.mjlite.inertia import com_pos
    from gpuenvs.mjlite.kinematics import Data, kinematics
    from gpuenvs.trace.graph import record, statement
    from gpuenvs.trace.liveness import statements

    m = harness.model("Humanoid")
    with record() as program:
        d = Data(
            [statement("get", "real", (), k) for k in range(m.nq)],
            [statement("get", "real", (), k) for k in range(m.nv)],
            [],
        )
        kinematics(m, d)
        com_pos(m, d)
        before = len(statements(program.root))
        list_contacts(m, d)
        added = len(statements(program.root)) - before
    assert [(group.dim, group.capacity) for group in d.listed.groups] == [(3, 29), (1, 161)]
    assert added < 3000
