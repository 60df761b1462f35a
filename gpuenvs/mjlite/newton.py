"""Newton's method for the constraint problem, over a list of row blocks.

The acceleration a minimises  1/2 a'M a - a'q + sum of row costs s(J a - aref),  with M the inertia matrix and q the smooth
force (MuJoCo documentation, Computation chapter, "Constraint solver", primal problem). Each s is quadratic with weight D
where the row is active and flat (one-sided rows: limits, edges of friction pyramids) or linear (friction loss) elsewhere.
So for a given set of active rows the minimum is one Newton step away from any point c,

    (M + J'D J) (b - c) = q + J'f(c) - M c,    f(c) = -D (J c - aref) on the active rows,

and if the rows active at b are that very set, b is the minimum of the whole problem: no tolerance is involved. Otherwise the
next set is taken from b, or, after a few turns, from the point of least cost on the line to it.

In float64 steps are taken from c = 0, which is least work. What rounding leaves is proportional to the terms on the right,
large ones that cancel if contacts are stiff; so in float32 each step is taken from the point before, and a start far from the
minimum is followed by a second step at least. That is worth more than a digit.

Every env of a vector runs through the same turns; one that has its minimum keeps it, bit for bit, so what an env gets does
not depend on its neighbours. A NaN makes every row inactive, which counts as unchanged, so it does not keep others waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from gpuenvs import trace as T
from gpuenvs.trace.elementary import working_dtype

LIMIT = 30
"""Most turns; well-posed states need less than ten."""
PLAIN = 4
"""Turns that take the full step untested: a search along the line costs as much as a turn and seldom saves one."""
SEARCH = 3
"""Steps of one line search."""


class Rows(Protocol):
    """The constraint rows as the iteration sees them. x = J a - aref, (any number of scalars); a: accelerations, (nv,)."""

    decides_alone: bool
    """A simulation step is made of one solution (Euler), not of several (Runge-Kutta)."""

    def residual(self, a: list[Any]) -> list[Any]:
        """x at a; what belongs to rows that exist in no env is of no matter."""
        ...

    def minimum(self, x: list[Any], c: list[Any] | None) -> list[Any]:
        """The point of least cost for the set of rows active at x, by a step from c, where the residual is x too; None: from
        rest."""
        ...

    def follow(self, x: list[Any], b: list[Any]) -> tuple[list[Any], Any]:
        """x at b, and the condition that its set of active rows differs from that at the given x."""
        ...

    def retreat(self, searching: Any, t: Any) -> None:
        """After `follow`, where `searching` holds: go on from x + t (y - x) instead of y. For rows that keep x themselves."""
        ...

    def slope(self, a: list[Any], b: list[Any], x: list[Any], y: list[Any]) -> Callable[[Any], tuple[Any, Any]]:
        """First and second derivative of the cost along a + t (b - a) as a function of t; x, y: residuals at a, b."""
        ...


def minimise(
    rows: Rows,
    start: list[Any],
    again: Any = 0.0,
    *,
    limit: int = LIMIT,
    plain: int = PLAIN,
    search: int = SEARCH,
    careful: bool | None = None,
) -> list[Any]:
    """The minimum, (nv,) scalars.

    Args:
        rows: the problem.
        start: any acceleration; a good one saves turns.
        again: 1.0 if the start is far from good, else 0.0.
        limit: most turns.
        plain: turns without line search.
        search: steps of a line search.
        careful: steps from the point before rather than from rest, which leaves less of the rounding and costs a twelfth of
            the speed; default: in float32 where one solution decides a whole simulation step. Runge-Kutta's mean of four
            rounds well enough without.
    """
    n = len(start)
    careful = working_dtype() == "float32" and rows.decides_alone if careful is None else careful
    first = rows.residual(start)
    zero = [T.is_zero(x) for x in first]  # across the plane of motion, if there is one: known to every turn

    def carried(x: list[Any]) -> list[Any]:
        return [y for y, z in zip(x, zero) if not z]

    def turn(count: Any, unfinished: Any, *state: Any) -> tuple[list[Any], Any]:
        a, left = list(state[:n]), iter(state[n:])
        x = [0.0 if z else next(left) for z in zero]
        b = rows.minimum(x, a if careful else None)
        if careful:  # a step from rest ends at the very same point when repeated; one from a does not quite
            b = [T.where(unfinished > 0.5, v, u) for u, v in zip(a, b)]
        y, changed = rows.follow(x, b)
        searching = changed & (count >= float(plain))

        def between() -> list[Any]:
            t = line_minimum(rows.slope(a, b, x, y), search)
            rows.retreat(searching, t)
            return [T.where(searching, u + t * (v - u), v) for u, v in zip((*a, *carried(x)), (*b, *carried(y)))]

        after = T.if_(T.any_lane(searching), between, [*b, *carried(y)])
        more = changed | ((count < again) & (unfinished > 0.5)) if careful else changed
        return [count + 1.0, T.where(more, 1.0, 0.0), *after], T.any_lane(more & (count < float(limit - 1)))

    return T.do_while(turn, [0.0, 1.0, *start, *carried(first)])[2 : n + 2]


def line_minimum(slope: Callable[[Any], tuple[Any, Any]], steps: int) -> Any:
    """t > 0 near the minimum of a convex, piecewise quadratic function that falls at t = 0.

    Newton's method on the slope from t = 1, kept inside the bracket known so far. With no upper end yet the step is the
    plain one, which is finite: the slope's own derivative is at least that of the smooth part.
    """

    def step(_k: Any, t: Any, low: Any, high: Any) -> list[Any]:
        first, second = slope(t)
        falling = first < 0.0
        low, high = T.where(falling, t, low), T.where(falling, high, t)
        bracketed = high > 0.0
        t = t - first / second
        outside = bracketed & T.where(falling, t >= high, t <= low)
        return [T.where(outside, 0.5 * (low + high), t), low, high]

    return T.loop(steps, step, [1.0, 0.0, 0.0])[0]
