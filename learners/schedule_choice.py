"""`--schedule auto`: train a moment under each schedule that gives the same kind of result, and take the faster one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from gpuenvs.errors import GpurlError

CANDIDATES = ("sync", "hts")
# hts must be so much faster to be worth rows that are one update old.
WORTH = 1.05


def choose(config: Any, trial: Callable[[Any], float]) -> tuple[Any, list[str]]:
    """(the `RunConfig` with its schedule, lines for people). `trial` measures one, in env steps per second.

    `schedule_settings` of the config are those of hts.

    Raises:
        GpurlError: what the trial of `sync` raised; without it there is nothing to fall back on.
    """
    lines, found = [], {}
    for name in CANDIDATES:
        candidate = with_schedule(config, name)
        try:
            found[name] = trial(candidate)
        except GpurlError as error:
            if name == "sync":
                raise
            lines.append(f"  {name:<10} failed: {error}")
            continue
        lines.append(f"  {name:<10} measured {found[name]:>14,.0f} steps/s")
    gain = found.get("hts", 0.0) / max(found["sync"], 1e-9)
    best = "hts" if gain >= WORTH else "sync"
    return with_schedule(config, best), [f"schedule {best}: hts is {gain:.2f} times as fast as sync here", *lines]


def with_schedule(config: Any, name: str) -> Any:
    """The config under another schedule; settings of hts go where it does not."""
    settings = config.schedule_settings if name == "hts" else {}
    return dataclasses.replace(config, schedule=name, schedule_settings=settings)
