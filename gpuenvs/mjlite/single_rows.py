"""Constraint rows of one joint: its limit and friction loss (MuJoCo documentation, Computation, "Constraint model")."""

from __future__ import annotations

from typing import Any

from gpuenvs import trace as T
from gpuenvs.mjlite import linalg as la


class LimitRow:
    """One-sided: x = jac . a[dofs] - aref costs D/2 min(x, 0)^2. D is 0 where the limit is away; |jac| is 1 for one dof."""

    def __init__(self, limit: Any) -> None:
        self.dofs, self.jac, self.D, self.aref = limit.dofs, limit.jac, limit.D, limit.aref

    def residual(self, a: list[Any]) -> Any:
        return la.dot(self.jac, [a[i] for i in self.dofs]) - self.aref

    def stiffness(self, x: Any) -> Any:
        """Second derivative of the cost by x."""
        return T.where(x < 0.0, self.D, 0.0)

    def terms(self, x: Any, rest: bool) -> tuple[list[Any], list[list[Any]]]:
        """What the row adds to the linear system on its dofs: force and second derivative.

        `rest`: the force that the row's parabola at x has at a = 0, else that at x.
        """
        weight = self.stiffness(x)
        force = weight * self.aref if rest else -(weight * x)
        if len(self.dofs) == 1:
            return [self.jac[0] * force], [[weight]]
        return la.scale(self.jac, force), [[u * v for v in self.jac] for u in la.scale(self.jac, weight)]

    def force(self, x: Any) -> Any:
        """Minus the first derivative of the cost by x."""
        return -(self.stiffness(x) * x)

    def changed(self, x: Any, y: Any) -> Any:
        return self.stiffness(x) != self.stiffness(y)


class FrictionRow:
    """Huber: x = a[dof] - aref costs D/2 x^2 while D |x| < loss, beyond that it pushes back with `loss`, N or N m."""

    jac = (1.0,)

    def __init__(self, friction: Any) -> None:
        self.dofs, self.loss, self.D, self.aref = [friction.dof], friction.loss, friction.D, friction.aref

    def residual(self, a: list[Any]) -> Any:
        return a[self.dofs[0]] - self.aref

    def _sliding(self, x: Any) -> Any:
        return self.D * T.absolute(x) >= self.loss

    def stiffness(self, x: Any) -> Any:
        return T.where(self._sliding(x), 0.0, self.D)

    def terms(self, x: Any, rest: bool) -> tuple[list[Any], list[list[Any]]]:
        """As `LimitRow.terms`; beyond the parabola the force is the same everywhere."""
        force = T.where(self._sliding(x), self.force(x), self.D * self.aref) if rest else self.force(x)
        return [force], [[self.stiffness(x)]]

    def force(self, x: Any) -> Any:
        return T.clip(-(self.D * x), -self.loss, self.loss)

    def changed(self, x: Any, y: Any) -> Any:
        return (self.stiffness(x) != self.stiffness(y)) | (self._sliding(x) & ((x < 0.0) ^ (y < 0.0)))
