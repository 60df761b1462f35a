"""Constraint rows that touch one dof: joint limits and friction loss (MuJoCo documentation, Computation, "Constraint model")."""

from __future__ import annotations

import dataclasses
from typing import Any

from gpuenvs import trace as T


@dataclasses.dataclass(frozen=True)
class LimitRow:
    """One-sided: x = sign * a[dof] - aref costs D/2 min(x, 0)^2. D is 0 where the limit is away."""

    dof: int
    sign: float
    D: Any
    aref: Any

    def residual(self, a: list[Any]) -> Any:
        return a[self.dof] - self.aref if self.sign > 0 else -(a[self.dof] + self.aref)

    def stiffness(self, x: Any) -> Any:
        """Second derivative of the cost by x."""
        return T.where(x < 0.0, self.D, 0.0)

    def push(self, x: Any) -> Any:
        """What the row adds to the right-hand side of the system, on the dof."""
        push = self.stiffness(x) * self.aref
        return push if self.sign > 0 else -push

    def force(self, x: Any) -> Any:
        """Minus the first derivative of the cost by x."""
        return -(self.stiffness(x) * x)

    def changed(self, x: Any, y: Any) -> Any:
        return self.stiffness(x) != self.stiffness(y)


@dataclasses.dataclass(frozen=True)
class FrictionRow:
    """Huber: x = a[dof] - aref costs D/2 x^2 while D |x| < loss, beyond that it pushes back with `loss`, newton (metre)."""

    dof: int
    loss: float
    D: Any
    aref: Any
    sign: float = 1.0

    def residual(self, a: list[Any]) -> Any:
        return a[self.dof] - self.aref

    def _sliding(self, x: Any) -> Any:
        return self.D * T.absolute(x) >= self.loss

    def stiffness(self, x: Any) -> Any:
        return T.where(self._sliding(x), 0.0, self.D)

    def push(self, x: Any) -> Any:
        return T.where(self._sliding(x), T.where(x < 0.0, self.loss, -self.loss), self.D * self.aref)

    def force(self, x: Any) -> Any:
        return T.clip(-(self.D * x), -self.loss, self.loss)

    def changed(self, x: Any, y: Any) -> Any:
        return self.push(x) != self.push(y)
