"""The tables of `benchmarks.presets`: one row per preset, from the runs of its seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.cases import MUJOCO_PRESET_CASES, PRESET_CASES, SAC_PRESET_CASES, PresetCase
from benchmarks.report import markdown, quantity, table
from gpuenvs.errors import ConfigError

# Returns in the two environments agree when their means are no further apart than this many standard errors.
MOST_ERRORS_APART = 2.0
Run = dict[str, Any]


@dataclass(frozen=True)
class PresetTable:
    """A table of cases that are judged alike; `row` makes the cells, of which the last is `yes` or `no`.

    `file` is the name that its results have in `benchmarks/results`, without an ending.
    """

    title: str
    cases: tuple[PresetCase, ...]
    header: tuple[str, ...]
    right: tuple[int, ...]
    row: Callable[[PresetCase, Sequence[Run]], list[str]]
    file: str = "presets"


def met(case: PresetCase, runs: Sequence[Run]) -> bool:
    """Whether the goals are reached, agreement and time included where the case asks for them."""
    means = [run["mean"] for run in runs]
    reached = statistics.mean(means) >= case.mean_at_least
    reached = reached and (case.each_at_least is None or min(means) >= case.each_at_least)
    if case.within_seconds is not None:
        reached = reached and max(run["training_seconds"] for run in runs) <= case.within_seconds
    return reached and not (case.compared and max(map(errors_apart, runs)) > MOST_ERRORS_APART)


def errors_apart(run: Run) -> float:
    """Distance of the mean returns in gpuenvs and in Gymnasium, in standard errors of the difference of two means."""
    distance = abs(run["gpuenvs"]["mean"] - run["mean"])
    error = math.hypot(run["gpuenvs"]["std"], run["std"]) / math.sqrt(run["episodes"])
    return distance / error if error else 0.0 if distance == 0 else math.inf


def summary(case: PresetCase, runs: Sequence[Run]) -> list[str]:
    """One row of the classic tasks' table."""
    means = [run["mean"] for run in runs]
    return [
        case.env_id,
        case.algo.upper(),
        seed_ranges([run["seed"] for run in runs]),
        f"{statistics.mean(means):.1f}",
        f">= {case.mean_at_least:g}",
        f"{min(means):.1f}",
        "" if case.each_at_least is None else f">= {case.each_at_least:g}",
        f"{statistics.median(run['seconds'] for run in runs):.1f}",
        "yes" if met(case, runs) else "no",
    ]


def mujoco_summary(case: PresetCase, runs: Sequence[Run]) -> list[str]:
    """One row of the MuJoCo tasks' table."""
    means = [run["mean"] for run in runs]
    return [
        case.env_id,
        seed_ranges([run["seed"] for run in runs]),
        _figure(statistics.mean(means)),
        _figure(min(means)),
        f">= {_figure(case.mean_at_least)}",
        _figure(statistics.mean(run["gpuenvs"]["mean"] for run in runs)),
        f"{max(map(errors_apart, runs)):.2f}",
        quantity(runs[0]["env_steps"]),
        f"{statistics.median(run['training_seconds'] for run in runs):.0f}",
        f"{statistics.median(run['seconds'] for run in runs):.0f}",
        quantity(min((run["cpu_seconds"] for run in runs if run.get("cpu_seconds")), default=None)),
        "yes" if met(case, runs) else "no",
    ]


def sac_summary(case: PresetCase, runs: Sequence[Run]) -> list[str]:
    """One row of SAC's table; it is not met before all seeds have run."""
    means = [run["mean"] for run in runs]
    seeds = seed_ranges([run["seed"] for run in runs])
    absent = set(parse_seeds(case.seeds)) - {run["seed"] for run in runs}
    return [
        case.env_id,
        f"{seeds}, not yet {seed_ranges(list(absent))}" if absent else seeds,
        _figure(statistics.mean(means)),
        _figure(min(means)),
        f">= {_figure(case.mean_at_least)}",
        quantity(runs[0]["env_steps"]),
        ", ".join(sorted({_cores(run) for run in runs})),
        f"{max(run['training_seconds'] for run in runs):,.0f}",
        "" if case.within_seconds is None else f"<= {case.within_seconds:,.0f}",
        f"{max(run['seconds'] for run in runs):,.0f}",
        "yes" if met(case, runs) and not absent else "no",
    ]


def _cores(run: Run) -> str:
    """The cores that a run had for itself, or that it shared."""
    own = run["own_cores"]
    return f"{run['machine']['cores']} for {run['jobs']} runs" if own is None else str(own)


def parse_seeds(text: str) -> list[int]:
    """`0-3,7` as `[0, 1, 2, 3, 7]`.

    Raises:
        ConfigError: not such a list.
    """
    seeds: set[int] = set()
    try:
        for part in text.split(","):
            low, dash, high = part.strip().partition("-")
            seeds.update(range(int(low), int(high if dash else low) + 1))
    except ValueError:
        raise ConfigError(f"--seeds {text!r}: write numbers and ranges, like 0-9 or 0,3,5-7") from None
    if not seeds:
        raise ConfigError(f"--seeds {text!r} names no seed")
    return sorted(seeds)


def seed_ranges(seeds: Sequence[int]) -> str:
    """`[0, 1, 2, 5]` as `0-2, 5`."""
    parts: list[list[int]] = []
    for seed in sorted(seeds):
        if parts and seed == parts[-1][1] + 1:
            parts[-1][1] = seed
        else:
            parts.append([seed, seed])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


def _figure(value: float) -> str:
    return f"{value:.1f}" if abs(value) < 1000 and value != round(value) else f"{value:,.0f}"


TABLES = (
    PresetTable(
        "Presets, 100 episodes in Gymnasium's own environments",
        PRESET_CASES,
        (
            *("environment", "algorithm", "seeds", "mean return", "goal", "worst seed", "goal each"),
            *("seconds a run", "met"),
        ),
        (3, 5, 7),
        summary,
    ),
    PresetTable(
        "PPO in gpuenvs (float32), 100 episodes in Gymnasium's own MuJoCo and from the same starts in gpuenvs",
        MUJOCO_PRESET_CASES,
        (
            *("MuJoCo task, PPO", "seeds", "mean return", "worst seed", "goal, each seed", "in gpuenvs"),
            *("standard errors apart", "steps", "seconds of training", "of the whole run", "its least CPU time", "met"),
        ),
        (2, 3, 5, 6, 7, 8, 9, 10),
        mujoco_summary,
    ),
    PresetTable(
        "SAC in gpuenvs (float32), 100 episodes in Gymnasium's own environments",
        SAC_PRESET_CASES,
        (
            *("environment, SAC", "seeds", "mean return", "worst seed", "goal, each seed", "steps", "cores of a run"),
            *("longest training, s", "limit, s", "longest whole run, s", "met"),
        ),
        (2, 3, 5, 7, 9),
        sac_summary,
        file="presets_sac",
    ),
)


def rows_of(part: PresetTable, document: dict[str, Any]) -> list[list[str]]:
    """The rows of the cases that have runs in the results."""
    return [part.row(case, runs) for case in part.cases if (runs := runs_of(case, document))]


def runs_of(case: PresetCase, document: dict[str, Any]) -> list[Run]:
    """A case's runs of all seeds in the results."""
    prefix = f"{case.env_id}/{case.algo}/s"
    return [run for name, run in document["runs"].items() if name.startswith(prefix)]


def drawn(part: PresetTable, rows: list[list[str]]) -> Any:
    """The table for a terminal."""
    return table(part.title, part.header, rows, right=part.right)


def document_text(document: dict[str, Any]) -> str:
    """All tables that have rows, in Markdown."""
    parts = [(part, rows_of(part, document)) for part in TABLES]
    return "\n".join(markdown(part.header, rows, right=part.right) for part, rows in parts if rows)
