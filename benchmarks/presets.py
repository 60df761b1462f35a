"""`python -m benchmarks.presets`: every preset over several seeds, evaluated in Gymnasium's own environments.

Each run is what a user would type, `gpurl train ENV --algo ALGO --seed S`, in a process of its own; its time is that of
the whole command: start, compilation, training, checkpoints and the closing evaluation of 100 episodes. Finished runs
are kept in `benchmarks/results/presets.json` and not repeated while their settings stay the same, so an interrupted
benchmark goes on where it stopped. The table is written beside it as `presets.md`.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import click

from benchmarks import machine
from benchmarks.cases import PRESET_CASES, PresetCase
from benchmarks.report import markdown, table
from gpuenvs.errors import ConfigError, GpurlError

RESULTS = Path(__file__).resolve().parent / "results"
EPISODES = 100
_ROOT = Path(__file__).resolve().parent.parent
_HEADER = (
    "environment",
    "algorithm",
    "seeds",
    "mean return",
    "goal",
    "worst seed",
    "goal each",
    "seconds a run",
    "met",
)


def settings_digest(case: PresetCase) -> str:
    """Short hash of everything the preset sets; a run made under other settings is not reused."""
    from learners.build import resolve

    settings = resolve(case.env_id, algo=case.algo, device="cpu").settings
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def train_once(case: PresetCase, seed: int, threads: int) -> dict[str, Any]:
    """One whole `gpurl train` in a fresh process; its evaluation and how long it took.

    Raises:
        ConfigError: the command failed; the message is its last line.
    """
    with tempfile.TemporaryDirectory(prefix="gpurl-preset-") as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "cli.main", "train", case.env_id, "--algo", case.algo, "--seed", str(seed)]
        command += ["--device", "cpu", "--threads", str(threads), "--torch-threads", str(threads)]
        command += ["--run-dir", str(run), "--eval-episodes", str(EPISODES), "--quiet"]
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), environment.get("PYTHONPATH")]))
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        seconds = time.perf_counter() - start
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise ConfigError(f"{case.env_id} {case.algo} seed {seed}: {last}")
        result = json.loads(next((run / "evaluations").glob("*.json")).read_text())
    return {
        "env": case.env_id,
        "algo": case.algo,
        "seed": seed,
        "mean": result["mean"],
        "std": result["std"],
        "episodes": result["episodes"],
        "on": result["on"],
        "env_steps": result["step"],
        "seconds": round(seconds, 2),
    }


def key(case: PresetCase, seed: int) -> str:
    """Name of a run in the results file."""
    return f"{case.env_id}/{case.algo}/s{seed}"


def load(path: Path) -> dict[str, Any]:
    """The results file, or an empty one."""
    if path.exists():
        return json.loads(path.read_text())
    return {"runs": {}}


def save(path: Path, document: dict[str, Any]) -> None:
    """Write the results whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    unfinished.replace(path)


def missing(
    cases: Sequence[PresetCase], seeds: Sequence[int], document: dict[str, Any], digests: dict[PresetCase, str]
) -> list[tuple[PresetCase, int]]:
    """The runs that the results file does not have under today's settings."""
    runs = document["runs"]
    return [
        (case, seed)
        for case in cases
        for seed in seeds
        if runs.get(key(case, seed), {}).get("settings") != digests[case]
    ]


def summary(case: PresetCase, runs: Sequence[dict[str, Any]]) -> list[str]:
    """One row of the table from the runs of one case."""
    means = [run["mean"] for run in runs]
    mean, worst = statistics.mean(means), min(means)
    met = mean >= case.mean_at_least and (case.each_at_least is None or worst >= case.each_at_least)
    return [
        case.env_id,
        case.algo.upper(),
        seed_ranges([run["seed"] for run in runs]),
        f"{mean:.1f}",
        f">= {case.mean_at_least:g}",
        f"{worst:.1f}",
        "" if case.each_at_least is None else f">= {case.each_at_least:g}",
        f"{statistics.median(run['seconds'] for run in runs):.1f}",
        "yes" if met else "no",
    ]


def seed_ranges(seeds: Sequence[int]) -> str:
    """`[0, 1, 2, 5]` as `0-2, 5`."""
    parts: list[list[int]] = []
    for seed in sorted(seeds):
        if parts and seed == parts[-1][1] + 1:
            parts[-1][1] = seed
        else:
            parts.append([seed, seed])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


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


def choose(env_id: str | None, algo: str | None) -> list[PresetCase]:
    """The cases of one environment or algorithm, or all.

    Raises:
        ConfigError: there is no such case.
    """
    chosen = [c for c in PRESET_CASES if env_id in (None, c.env_id) and algo in (None, c.algo)]
    if not chosen:
        known = ", ".join(f"{c.env_id} {c.algo}" for c in PRESET_CASES)
        raise ConfigError(f"no preset case for {env_id or 'any environment'} {algo or ''}; there are: {known}")
    return chosen


@click.command(help=__doc__.splitlines()[0] if __doc__ else None)
@click.option("--env", "env_id", help="Only this environment.")
@click.option("--algo", help="Only this algorithm.")
@click.option("--seeds", "seeds_text", default="0-9", show_default=True, help="Seeds: numbers and ranges.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Runs at a time, sharing the cores.")
@click.option("--again", is_flag=True, help="Repeat runs that are in the results already.")
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS / "presets.json", help="Results file.")
def main(env_id: str | None, algo: str | None, seeds_text: str, jobs: int, again: bool, results: Path) -> None:
    """Run what is missing, then print and write the table; exit code 1 if a goal is missed."""
    try:
        cases, seeds = choose(env_id, algo), parse_seeds(seeds_text)
        document = load(results)
        digests = {case: settings_digest(case) for case in cases}
        todo = [(c, s) for c in cases for s in seeds] if again else missing(cases, seeds, document, digests)
        threads = max(1, machine.allowed_cores() // jobs)
        with ThreadPoolExecutor(jobs) as pool:
            pending = {pool.submit(train_once, case, seed, threads): (case, seed) for case, seed in todo}
            for finished in as_completed(pending):
                case, seed = pending[finished]
                entry = {**finished.result(), "settings": digests[case], "machine": machine.describe(), "jobs": jobs}
                document["runs"][key(case, seed)] = entry
                save(results, document)
                click.echo(f"{key(case, seed)}: return {entry['mean']:.2f}, {entry['seconds']:.1f} s", err=True)
    except GpurlError as error:
        raise click.ClickException(str(error)) from error
    rows = [summary(case, [document["runs"][key(case, seed)] for seed in seeds]) for case in cases]
    _show(rows)
    _write_table(results, document)
    sys.exit(0 if all(row[-1] == "yes" for row in rows) else 1)


def _show(rows: list[list[str]]) -> None:
    from rich.console import Console

    drawn = table(f"Presets, {EPISODES} episodes in Gymnasium's own environments", _HEADER, rows, right=(3, 5, 7))
    Console(width=None if sys.stdout.isatty() else 160).print(drawn)


def _write_table(results: Path, document: dict[str, Any]) -> None:
    """All cases the results file has, in the order of the case table."""
    rows = []
    for case in PRESET_CASES:
        prefix = f"{case.env_id}/{case.algo}/s"
        runs = [run for name, run in document["runs"].items() if name.startswith(prefix)]
        if runs:
            rows.append(summary(case, runs))
    results.with_suffix(".md").write_text(markdown(_HEADER, rows, right=(3, 5, 7)))


if __name__ == "__main__":
    main()
