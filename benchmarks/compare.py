"""Measures contenders side by side: each finds its best configuration, then they take turns, each in a fresh process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.cases import Contender
from benchmarks.process import measure
from benchmarks.report import Progress, summarise


def side_by_side(
    contenders: Sequence[Contender], request: dict[str, Any], python: str, repeats: int, progress: Progress
) -> dict[str, dict[str, Any]]:
    """Contender's name -> its result.

    Args:
        contenders: whom to measure.
        request: what every worker is told.
        python: interpreter for peers.
        repeats: timed processes per contender. They are interleaved, so that a slow minute of the machine hits everyone.
        progress: told what is being measured.

    Returns:
        `{"rate": median, "samples": [...], "config": {...}, "sweep": [...]}` plus what else the worker reports;
        `{"missing": package}` or `{"error": text}` for those that could not be measured.
    """
    sweeps: dict[str, dict[str, Any]] = {}
    for contender in contenders:
        progress(f"{request['env_id']}: {contender.name}, looking for its best configuration")
        sweeps[contender.name] = measure(contender, python, request)
    samples: dict[str, list[dict[str, Any]]] = {name: [] for name in sweeps}
    for turn in range(repeats):
        for contender in contenders:
            sweep = sweeps[contender.name]
            if "config" in sweep:
                progress(f"{request['env_id']}: {contender.name}, repeat {turn + 1} of {repeats}")
                samples[contender.name].append(measure(contender, python, {**request, "config": sweep["config"]}))
    results = {}
    for name, sweep in sweeps.items():
        if "config" not in sweep:
            results[name] = sweep
            continue
        extra = {key: value for key, value in sweep.items() if key not in ("rate", "config", "tried")}
        results[name] = {**extra, "sweep": sweep["tried"], **summarise(samples[name])}
    return results
