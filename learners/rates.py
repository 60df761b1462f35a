"""Step sizes of off-policy learners: how they follow the batch, and the run."""

from __future__ import annotations

import math
from typing import Any

REFERENCE_BATCH = 256  # what `learning_rate` is meant for
LARGEST_RATE = 3e-3
SCALINGS = ("sqrt", "linear", "none")


def scaled_rate(learning_rate: float, batch_size: int, scaling: str) -> float:
    """The step size for a batch: times sqrt(batch / 256) (`sqrt`: Adam's noise stays the same; Malladi et al. 2022, arXiv
    2205.10287) or times batch / 256 (`linear`), at most 3e-3 unless `learning_rate` is larger itself."""
    ratio = batch_size / REFERENCE_BATCH
    factor = {"sqrt": math.sqrt(ratio), "linear": ratio, "none": 1.0}[scaling]
    return min(learning_rate * factor, max(LARGEST_RATE, learning_rate))


def total_updates(config: Any) -> float:
    """Updates of the whole run; 0 where the ratio is free."""
    return max(0, config.total_steps - config.learning_starts) * config.update_to_data / config.batch_size


def rate_at(config: Any, update: int) -> float:
    """The step size of update number `update`: `scaled_rate`, falling linearly to the share `lr_end` of it at the end of the
    run; constant where the ratio is free, since nobody knows then how many updates there will be."""
    c, total = config, total_updates(config)
    progress = min(1.0, update / total) if total else 0.0
    return scaled_rate(c.learning_rate, c.batch_size, c.lr_scaling) * (1.0 + (c.lr_end - 1.0) * progress)
