"""The whole of the physics: forward dynamics, simulation steps, control steps (MuJoCo documentation, Computation chapter).

A control step is a loop around one forward pass, so the program holds the physics once however many simulation steps and
Runge-Kutta stages there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuenvs import trace as T
from gpuenvs.mjlite import factor, integrate, solver
from gpuenvs.mjlite.actuation import actuation
from gpuenvs.mjlite.collision import collide
from gpuenvs.mjlite.constraint import make_constraint
from gpuenvs.mjlite.inertia import com_pos, crb
from gpuenvs.mjlite.kinematics import Data, kinematics
from gpuenvs.mjlite.model import RK4, Model
from gpuenvs.mjlite.pairs import candidate_pairs
from gpuenvs.mjlite.passive import passive
from gpuenvs.mjlite.velocity import com_vel, rne

MOST_UNROLLED = 48
"""Models with more possible contact points than this have them listed as they occur instead of all unrolled."""

Watch = Callable[[Data], list[Any]]


def forward(m: Model, d: Data, start: list[Any] | None = None, cold: Any = 0.0, listed: bool | None = None) -> None:
    """Everything up to the accelerations, as mj_forward. Reads qpos, qvel, ctrl.

    Writes what the stages write, and qacc; what the constraints exert is computed by `constraint_forces` if wanted.

    Args:
        m: the model.
        d: the state.
        start: where the solver starts, (nv,) accelerations; default: at rest. The result does not depend on it.
        cold: 1.0 if the start is no good guess, else 0.0.
        listed: contacts as a list of those that occur, or (False) all unrolled; default: by their number.
    """
    kinematics(m, d)
    com_pos(m, d)
    crb(m, d)
    com_vel(m, d)
    rne(m, d)
    passive(m, d)
    actuation(m, d)
    d.qfrc_smooth = [p + a - b for p, a, b in zip(d.qfrc_passive, d.qfrc_actuator, d.qfrc_bias)]
    method = solve_method(m, listed)
    method.contacts(m, d)
    d.constraints = method.rows(m, d)
    if start is None:
        start, cold = [0.0] * m.nv, 1.0
    d.qacc = d.constraints.solve(start, cold)


def solve_method(m: Model, listed: bool | None = None) -> Any:
    """How contacts are found and solved for: `UNROLLED`, or the listed one."""
    if listed is None:
        listed = sum(pair.points for pair in candidate_pairs(m)) > MOST_UNROLLED
    if listed:
        from gpuenvs.mjlite import listed_solver

        return listed_solver
    return Unrolled


class Unrolled:
    """All contacts that can occur, each with code of its own."""

    rows = solver.TreeRows

    @staticmethod
    def contacts(m: Model, d: Data) -> None:
        collide(m, d)
        make_constraint(m, d)


def constraint_forces(m: Model, d: Data) -> None:
    """After `forward`: writes qfrc_constraint (nv,) and the force of each contact (see the solver in use)."""
    d.constraints.forces(d.qacc)


def rne_post_constraint(m: Model, d: Data) -> None:
    """cfrc_ext (nbody, 6) after `constraint_forces`, as mj_rnePostConstraint."""
    from gpuenvs.mjlite.external import rne_post_constraint

    rne_post_constraint(m, d)


def reset_forward(m: Model, qpos: list[Any], qvel: list[Any], watch: Watch, listed: bool | None = None) -> list[Any]:
    """What `watch` reads after mj_forward from a state with all controls 0."""
    d = Data(qpos, qvel, [0.0] * m.nu)
    forward(m, d, listed=listed)
    constraint_forces(m, d)
    return watch(d)


def control_step(
    m: Model,
    qpos: list[Any],
    qvel: list[Any],
    ctrl: list[Any],
    frame_skip: int,
    watch: Watch = lambda d: [],
    listed: bool | None = None,
) -> tuple[list[Any], list[Any], list[Any]]:
    """`frame_skip` simulation steps, as mj_step with these controls.

    Args:
        m: the model.
        qpos: (nq,) positions; quaternions need not be normalised.
        qvel: (nv,) velocities.
        ctrl: (nu,) controls.
        frame_skip: number of simulation steps, at least 1.
        watch: reads values from the `Data` that the last forward pass leaves; with Runge-Kutta that is its last stage.
        listed: see `forward`.

    Returns:
        qpos, qvel, what `watch` gave.
    """
    watched = _Watched(m, watch)
    advance = _runge_kutta if m.integrator == RK4 else _euler

    def step(k: Any, *values: Any) -> list[Any]:
        return advance(m, list(values), ctrl, watched, k == frame_skip - 1, listed)

    values = T.loop(frame_skip, step, [*qpos, *qvel, *[0.0] * m.nv, 1.0])
    return values[: m.nq], values[m.nq : m.nq + m.nv], watched.values()


class _Watched:
    """Values kept from within the loops."""

    def __init__(self, m: Model, watch: Watch) -> None:
        self._m, self._watch = m, watch
        self._kept, self._count = T.Array(1), 0

    def store(self, d: Data, condition: Any, qacc: list[Any]) -> None:
        """Keep what `watch` reads if the uniform `condition` holds; qacc is what the step then reports as such."""

        def keep() -> list[Any]:
            constraint_forces(self._m, d)
            d.qacc = qacc
            values = self._watch(d)
            self._count = len(values)
            self._kept.grow(self._count)
            for k, value in enumerate(values):
                self._kept.store(k, value)
            return []

        T.if_(condition, keep, [])

    def values(self) -> list[Any]:
        return [self._kept.load(k) for k in range(self._count)]


def _pass(m: Model, values: list[Any], ctrl: list[Any], listed: bool | None) -> tuple[Data, list[Any]]:
    """A forward pass from loop values qpos, qvel, the last accelerations and 1.0 if there were none; new values of these."""
    v, a = m.nq, m.nq + m.nv
    d = Data(values[:v], values[v:a], ctrl)
    forward(m, d, values[a : a + m.nv], values[a + m.nv], listed)
    return d, [*d.qacc, 0.0]


def _euler(
    m: Model, values: list[Any], ctrl: list[Any], watched: _Watched, last: Any, listed: bool | None
) -> list[Any]:
    d, start = _pass(m, values, ctrl, listed)
    watched.store(d, last, d.qacc)
    acceleration, damped = d.qacc, integrate.damped_inertia(m, d)
    if damped is not None:
        acceleration = factor.solve(factor.factorize(damped, m.nv), factor.product(d.qM, d.qacc))
    qpos, qvel = integrate.euler(m, d, acceleration)
    return [*qpos, *qvel, *start]


def _runge_kutta(
    m: Model, values: list[Any], ctrl: list[Any], watched: _Watched, last: Any, listed: bool | None
) -> list[Any]:
    qpos0, qvel0 = values[: m.nq], values[m.nq : m.nq + m.nv]
    size = len(values)

    def stage(k: Any, *carried: Any) -> list[Any]:
        d, start = _pass(m, list(carried), ctrl, listed)
        qpos, qvel, sums = integrate.rk4_stage(m, k, qpos0, qvel0, d, list(carried[size:]))
        mean = [(after - before) * (1.0 / m.timestep) for after, before in zip(qvel, qvel0)]
        watched.store(d, last & (k == 3), mean)
        return [*qpos, *qvel, *start, *sums]

    return T.loop(4, stage, [*values, *integrate.rk4_start(m)])[:size]
