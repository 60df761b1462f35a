"""The kernel microbenchmarks of `gpurl bench kernels` on the device."""

from __future__ import annotations

from typing import Any

from benchmarks import kernel_bench
from benchmarks.checks import Report


def run(request: dict[str, Any], report: Report) -> None:
    """Each of `env_ids`; a finding per kernel. Reaching the floor is no condition: the figures are what is wanted."""
    options: dict[str, Any] = {"device": request["device"], "seconds": 0.02 if request["small"] else 0.2, "repeats": 1}
    if request["small"]:
        options["num_envs"] = 128
    for env_id in request["env_ids"]:
        for row in kernel_bench.run([env_id], **options)[1:]:
            label = f"{env_id} {row['kernel']}"
            if "skipped" in row:
                report.skip(label, row["skipped"])
            else:
                report.row(label, "error" not in row, **row)
