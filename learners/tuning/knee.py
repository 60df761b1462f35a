"""Where a rate stops growing with size."""

from __future__ import annotations

from collections.abc import Sequence

SHARE = 0.9


def knee(points: Sequence[tuple[int, float]], share: float = SHARE) -> int:
    """The smallest size whose rate is at least `share` of the highest; `points` are (size, rate) in any order.

    Raises:
        ValueError: no points.
    """
    if not points:
        raise ValueError("a knee needs at least one point")
    enough = share * max(rate for _, rate in points)
    return min(size for size, rate in points if rate >= enough)


def saturated(points: Sequence[tuple[int, float]], gain: float = 1.05, after: int = 2) -> bool:
    """Whether the last `after` sizes, in their order, brought less than `gain` over the best one before: measuring on is
    no use."""
    rates = [rate for _, rate in points]
    return len(rates) > after and max(rates[-after:]) < gain * max(rates[:-after])
