"""`--schedule auto`: train a moment under each schedule that gives the same kind of result, and take the faster one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from gpuenvs.errors import GpurlError
from gpuenvs.runtime.threads import allowed_cores

# hts must be so much faster to be worth rows that are one update old.
WORTH = 1.05


def choose(config: Any, trial: Callable[[Any], float]) -> tuple[Any, list[str]]:
    """(the `RunConfig` with its schedule, lines for people). `trial` measures one, in env steps per second.

    `schedule_settings` of the config are those of hts.

    Raises:
        GpurlError: what the trial of `sync` raised; without it there is nothing to fall back on.
    """
    lines, found = [], []
    for name, candidate in candidates(config):
        try:
            speed = trial(candidate)
        except GpurlError as error:
            if candidate.schedule == "sync":
                raise
            lines.append(f"  {name:<28} failed: {error}")
            continue
        found.append((speed, name, candidate))
        lines.append(f"  {name:<28} measured {speed:>14,.0f} steps/s")
    sync = found[0]
    best = max(found, key=lambda entry: entry[0])
    gain = best[0] / max(sync[0], 1e-9)
    if gain < WORTH:
        best = sync
    said = "nothing is faster enough" if best is sync else f"{gain:.2f} times as fast as sync"
    return best[2], [f"schedule {best[1]}: {said} in a short trial", *lines]


def candidates(config: Any) -> list[tuple[str, Any]]:
    """What there is to choose from: a name for people, and the config; `sync` first."""
    asked = config.schedule_settings
    found = [("sync", dataclasses.replace(config, schedule="sync", schedule_settings={}))]
    found.append(("hts", dataclasses.replace(config, schedule="hts")))
    half = allowed_cores() // 2
    if half and config.env_device == "cpu" and config.env_backend == "device" and not asked["sampler_cores"]:
        settings = {**asked, "sampler_cores": half}
        found.append(
            (f"hts, sampler_cores={half}", dataclasses.replace(config, schedule="hts", schedule_settings=settings))
        )
    return found
