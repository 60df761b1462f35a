"""Range: a parameter that differs between environments, drawn from an interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from gpuenvs.errors import ConfigError

RESAMPLE = ("env", "episode")


@dataclass(frozen=True)
class Range:
    """Values of a parameter that are drawn for each environment (domain randomisation).

    What is drawn is a function of (seed, env) or of (seed, env, episode) and of the parameter's place in its class, the
    same on every backend up to rounding; whether other parameters are drawn does not change it.

    Args:
        low, high: bounds; uniform between them. Both are possible for an `int` parameter.
        default: the value where nothing is drawn, in evaluations above all; None: the middle.
        resample: `"env"`: one value for an environment as long as the seed is the same; `"episode"`: a new one in each
            episode.

    Raises:
        ConfigError: bounds that are not finite numbers in order, or another `resample`.
    """

    low: float
    high: float
    default: float | None = None
    resample: str = "env"

    def __post_init__(self) -> None:
        numbers = [self.low, self.high] + ([] if self.default is None else [self.default])
        if any(isinstance(x, bool) or not _is_number(x) for x in numbers) or not self.low <= self.high:
            raise ConfigError(f"a Range needs two finite numbers low <= high, got {self.low!r} and {self.high!r}")
        if self.resample not in RESAMPLE:
            raise ConfigError(f"a Range's resample must be one of {', '.join(RESAMPLE)}, got {self.resample!r}")

    def __float__(self) -> float:
        """The value where nothing is drawn."""
        return float((self.low + self.high) / 2 if self.default is None else self.default)

    def __str__(self) -> str:
        """`0.4..0.6` or `0.4..0.6:episode`: the form in which the command line and a run's config hold it."""
        ending = "" if self.resample == "env" else f":{self.resample}"
        return f"{self.low!r}..{self.high!r}{ending}"

    @classmethod
    def parse(cls, text: str) -> Range:
        """The range that a text like `0.4..0.6` or `0.4..0.6:episode` says. Raises `ConfigError`."""
        bounds, _, resample = text.partition(":")
        low, dots, high = bounds.partition("..")
        try:
            ends = [int(end) if end.strip().lstrip("+-").isdigit() else float(end) for end in (low, high)]
        except ValueError:
            dots = ""
        if not dots:
            raise ConfigError(f"{text!r} is not a range; write it as low..high or low..high:episode")
        return cls(*ends, resample=resample.strip() or "env")


def _is_number(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except TypeError:
        return False
