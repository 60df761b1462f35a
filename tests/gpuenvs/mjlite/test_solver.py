"""The solver on small random problems against plain minimisation of the same cost, row by row."""

from types import SimpleNamespace

import numpy as np
import pytest

from gpuenvs.mjlite import newton
from gpuenvs.mjlite.contact_blocks import Block
from gpuenvs.mjlite.model import RK4
from gpuenvs.mjlite.solver import TreeRows
from tests.gpuenvs.mjlite.harness import stack
from tests.gpuenvs.mjlite.test_factor import BRANCHES, ancestors, random_matrix

pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # 0 / 0 in rows that need no search
COUNT = 50
NV = len(BRANCHES)


class Cost:
    """1/2 a'M a - a'q + rows, dense; every row is (J, aref, D, limit of the force or None)."""

    def __init__(self, inertia, smooth):
        self.inertia, self.smooth = inertia, smooth
        self.rows = []

    def gradient(self, a):
        """(count, nv)"""
        out = np.einsum("cij,cj->ci", self.inertia, a) - self.smooth
        for jac, aref, D, most in self.rows:
            x = np.einsum("ci,ci->c", jac, a) - aref
            force = -D * (np.minimum(x, 0) if most is None else x)
            out -= jac * (force if most is None else np.clip(force, -most, most))[:, None]
        return out


def spatial(rng):
    """Motions of the dofs and a contact's place: about one point, as in one kinematic tree."""
    return [[rng.normal(size=COUNT) for _ in range(6)] for _ in range(NV)]


def point_jacobian(cdof, dofs, pos, axis):
    out = np.zeros((COUNT, NV))
    for i in dofs:
        velocity = np.stack(cdof[i][3:], 1) + np.cross(np.stack(cdof[i][:3], 1), np.stack(pos, 1))
        out[:, i] = np.einsum("ck,ck->c", velocity, np.stack(axis, 1))
    return out


def frame(rng):
    q, _ = np.linalg.qr(rng.normal(size=(COUNT, 3, 3)))
    return [[q[:, k, i] for i in range(3)] for k in range(3)]


def problem(seed, contacts):
    """(m, d, cost): a body per dof; `contacts` are (first body or 0, second body, dim). Some rows are absent (D = 0)."""
    rng = np.random.default_rng(seed)
    dense, sparse = random_matrix(BRANCHES, [], rng, COUNT)
    smooth = rng.normal(size=(COUNT, NV)) * 5
    cost = Cost(dense, smooth)
    m = SimpleNamespace(
        integrator=RK4,
        dof_parentid=BRANCHES, dof_bodyid=[i + 1 for i in range(NV)], body_parentid=[0, *(p + 1 for p in BRANCHES)],
        body_dofadr=[-1, *range(NV)], body_dofnum=[0] + [1] * NV, body_weldid=list(range(NV + 1)),
        body_rootid=[0, *(list(ancestors(BRANCHES, i))[-1] + 1 for i in range(NV))],
    )  # fmt: skip
    cdof = spatial(rng)
    d = SimpleNamespace(
        qM=sparse, qfrc_smooth=list(smooth.T), motion=cdof, origin=[[0.0] * 3] * (NV + 1),
        contact=[], limits=[], friction=[],
    )  # fmt: skip

    def weights():
        return rng.uniform(0.1, 300, COUNT) * (rng.random(COUNT) < 0.8)

    for first, second, dim in contacts:
        axes, pos, D = frame(rng), [rng.normal(size=COUNT) for _ in range(3)], weights()
        aref = [rng.normal(size=COUNT) * 3 for _ in range(dim)]
        pair = SimpleNamespace(moving1=first, moving2=second)
        d.contact.append(SimpleNamespace(pair=pair, dim=dim, pos=pos, frame=axes, mu=0.7, D=D, aref=aref))
        chains = [set(ancestors(BRANCHES, b - 1)) if b else set() for b in (first, second)]
        jac = [
            point_jacobian(cdof, chains[1] - chains[0], pos, axis)
            - point_jacobian(cdof, chains[0] - chains[1], pos, axis)
            for axis in axes[:dim]
        ]
        edges = [(1.0, 0.0, 0.0)] if dim == 1 else [(1, 0.7, 0), (1, -0.7, 0), (1, 0, 0.7), (1, 0, -0.7)]
        for edge in edges:
            cost.rows.append((sum(e * j for e, j in zip(edge, jac)), sum(e * r for e, r in zip(edge, aref)), D, None))
    for dof, sign in ((2, 1.0), (7, -1.0)):
        D, aref = weights(), rng.normal(size=COUNT)
        d.limits.append(SimpleNamespace(dofs=[dof], jac=[sign], D=D, aref=aref))
        cost.rows.append((sign * np.eye(NV)[[dof] * COUNT], aref, D, None))
    jac, D, aref = rng.normal(size=(COUNT, 3)), weights(), rng.normal(size=COUNT)
    d.limits.append(SimpleNamespace(dofs=[0, 1, 2], jac=list(jac.T), D=D, aref=aref))
    cost.rows.append((np.pad(jac, ((0, 0), (0, NV - 3))), aref, D, None))
    for dof in (4, 8):
        aref = rng.normal(size=COUNT)
        d.friction.append(SimpleNamespace(dof=dof, loss=0.8, D=3.0, aref=aref))
        cost.rows.append((np.eye(NV)[[dof] * COUNT], aref, np.full(COUNT, 3.0), 0.8))
    return m, d, cost


CONTACTS = {
    "joints only": [],
    "with the ground": [(0, 4, 3), (0, 6, 3), (0, 6, 1), (10, 0, 3)],
    "between branches": [(4, 6, 3), (6, 8, 1), (0, 4, 3)],
    "between trees": [(4, 10, 3), (8, 9, 3)],
    "along one branch": [(2, 4, 3), (1, 8, 1)],
}


@pytest.mark.parametrize("careful", [False, True], ids=["from rest", "step by step"])
@pytest.mark.parametrize("contacts", CONTACTS.values(), ids=CONTACTS.keys())
def test_the_gradient_vanishes(contacts, careful):
    for seed in range(3):
        m, d, cost = problem(seed, contacts)
        rows = TreeRows(m, d)
        a = rows.solve([0.0] * NV, limit=60, careful=careful)
        gradient = cost.gradient(np.stack(a, axis=1))
        assert np.abs(gradient).max() < 1e-9

        rows.forces(a)
        force = np.einsum("cij,cj->ci", cost.inertia, np.stack(a, 1)) - cost.smooth
        assert np.abs(stack(d.qfrc_constraint, COUNT) - force).max() < 1e-9


def test_steps_from_the_point_before_leave_less_rounding():
    """Stiff contacts in float32, against the solution in float64."""
    errors = []
    for careful in (False, True):
        m, d, _ = problem(9, CONTACTS["with the ground"])
        for contact in d.contact:
            contact.D = contact.D * 1e3
        exact = np.stack(TreeRows(m, d).solve([0.0] * NV, limit=60))
        single(d)
        start = [np.zeros(COUNT, np.float32)] * NV
        found = np.stack(TreeRows(m, d).solve(start, 1.0, limit=60, careful=careful))
        errors.append(np.median(np.abs(found - exact)))
    assert errors[1] < 0.3 * errors[0]


def single(d):
    """Round the problem's arrays to float32."""

    def rounded(x):
        if isinstance(x, np.ndarray):
            return x.astype(np.float32)
        if isinstance(x, list):
            return [rounded(y) for y in x]
        return {key: rounded(y) for key, y in x.items()} if isinstance(x, dict) else x

    for holder in (d, *d.contact, *d.limits, *d.friction):
        for name, value in vars(holder).items():
            if name not in ("contact", "limits", "friction"):
                setattr(holder, name, rounded(value))


def test_the_start_does_not_matter():
    m, d, _ = problem(5, CONTACTS["between branches"])
    rng = np.random.default_rng(6)
    rows = TreeRows(m, d)
    found = [
        np.stack(rows.solve([scale * rng.normal(size=COUNT) for _ in range(NV)], limit=60)) for scale in (0, 1, 100)
    ]
    assert np.abs(found[0] - found[1]).max() < 1e-9
    assert np.abs(found[0] - found[2]).max() < 1e-9


def test_a_search_from_the_first_turn_ends_at_the_same_point():
    m, d, _ = problem(7, CONTACTS["with the ground"])
    start = [np.zeros(COUNT)] * NV
    plain = newton.minimise(TreeRows(m, d), start, limit=60)
    searched = newton.minimise(TreeRows(m, d), start, limit=60, plain=0)
    assert np.abs(np.stack(plain) - np.stack(searched)).max() < 1e-9


def test_line_minimum_finds_the_kink_of_a_piecewise_quadratic():
    """Slope -1 + t for t < 2, then 50 (t - 2) more: zero at t = 1; and slope -10 + t with a wall at 3."""
    walls = np.array([2.0, 3.0])
    offsets = np.array([-1.0, -10.0])

    def slope(t):
        beyond = np.maximum(t - walls, 0.0)
        return offsets + t + 50 * beyond, 1 + 50.0 * (t > walls)

    found = newton.line_minimum(slope, 30)
    assert np.abs(found - [1.0, 3 + 7 / 51]).max() < 1e-12


def test_without_an_upper_end_the_search_stays_finite():
    found = newton.line_minimum(lambda t: (np.array([-1e30]), np.array([1.0])), 3)
    assert np.isfinite(found).all()


def test_a_tangent_that_cannot_move_counts_twice_on_the_normal():
    contact = SimpleNamespace(
        dim=3, frame=[[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], mu=0.5, D=2.0, aref=[0.0] * 3
    )
    block = Block(contact)
    assert block.edge_weights([-1.0, 0.0, 3.0]) == [4.0, 0.0, 2.0]
    assert block.stiffness([-1.0, 0.0, 3.0]) == [(6.0, 0.0), (0.0, 0.0), (-2.0, 2.0)]


def test_a_nan_ends_at_once():
    m, d, _ = problem(8, CONTACTS["between branches"])
    d.qfrc_smooth = [x.copy() for x in d.qfrc_smooth]
    clean = np.stack(TreeRows(m, d).solve([0.0] * NV))
    d.qfrc_smooth[3][7] = np.nan
    turns = []
    rows = TreeRows(m, d)
    minimum = rows.minimum
    rows.minimum = lambda x, c: turns.append(1) or minimum(x, c)  # type: ignore[method-assign]
    spoiled = np.stack(rows.solve([0.0] * NV))
    others = np.arange(COUNT) != 7
    assert (spoiled[:, others] == clean[:, others]).all()
    assert len(turns) < newton.LIMIT
