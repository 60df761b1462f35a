"""`python -m benchmarks.presets`: every preset over several seeds, evaluated in Gymnasium's own environments.

Each run is what a user would type, `gpurl train ENV --algo ALGO --seed S`, in a process of its own; its time is that of
the whole command: start, compilation, training, checkpoints and the closing evaluation of 100 episodes. Finished runs
are kept in `benchmarks/results/presets.json` and not repeated while their settings stay the same, so an interrupted
benchmark goes on where it stopped. The tables are written beside it as `presets.md`.

Policies of MuJoCo's tasks are also evaluated in gpuenvs (`gpurl eval RUN --on gpuenvs --same-starts`), from the states in
which Gymnasium's episodes began, and the mean returns are compared.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import click

from benchmarks import machine
from benchmarks.cases import MUJOCO_PRESET_CASES, PRESET_CASES, PresetCase
from benchmarks.preset_tables import TABLES, document_text, drawn
from benchmarks.process import gpurl
from gpuenvs.errors import ConfigError, GpurlError

RESULTS = Path(__file__).resolve().parent / "results"
EPISODES = 100


def settings_digest(case: PresetCase) -> str:
    """Short hash of everything the preset sets; a run made under other settings is not reused."""
    from learners.build import resolve

    settings = resolve(case.env_id, algo=case.algo, device="cpu").settings
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def train_once(case: PresetCase, seed: int, threads: int) -> dict[str, Any]:
    """One whole `gpurl train` in a fresh process; its evaluation and how long it took.

    Raises:
        ConfigError: a command failed; the message is its last line.
    """
    with tempfile.TemporaryDirectory(prefix="gpurl-preset-") as folder:
        run = Path(folder) / "run"
        command = ["train", case.env_id, "--algo", case.algo, "--seed", str(seed), "--device", "cpu"]
        command += ["--threads", str(threads), "--run-dir", str(run), "--eval-episodes", str(EPISODES), "--quiet"]
        name = f"{case.env_id} {case.algo} seed {seed}"
        start, used = time.perf_counter(), _children_seconds()
        gpurl(command, name)
        seconds, used = time.perf_counter() - start, _children_seconds() - used
        result = json.loads(next((run / "evaluations").glob("*.json")).read_text())
        with open(run / "metrics.csv", newline="") as file:
            *_, last = csv.DictReader(file)
        here = {}
        if case.compared:
            command = ["eval", str(run), "--on", "gpuenvs", "--same-starts", "--episodes", str(EPISODES), "--json"]
            document = json.loads(gpurl(command, name))
            here = {"gpuenvs": {key: document[key] for key in ("mean", "std", "episodes", "seed", "same_starts")}}
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
        "training_seconds": round(float(last["wall_s"]), 2),
        "cpu_seconds": round(used, 2),
        **here,
    }


def _children_seconds() -> float:
    """CPU time of all child processes that have ended; 0 where the system does not say (Windows)."""
    times = os.times()
    return times.children_user + times.children_system


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
    wanted: dict[PresetCase, list[int]], document: dict[str, Any], digests: dict[PresetCase, str]
) -> list[tuple[PresetCase, int]]:
    """The runs that the results file does not have under today's settings."""
    runs = document["runs"]
    return [
        (case, seed)
        for case, seeds in wanted.items()
        for seed in seeds
        if runs.get(key(case, seed), {}).get("settings") != digests[case]
    ]


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
    cases = (*PRESET_CASES, *MUJOCO_PRESET_CASES)
    chosen = [c for c in cases if env_id in (None, c.env_id) and algo in (None, c.algo)]
    if not chosen:
        known = ", ".join(f"{c.env_id} {c.algo}" for c in cases)
        raise ConfigError(f"no preset case for {env_id or 'any environment'} {algo or ''}; there are: {known}")
    return chosen


@click.command(help=__doc__.splitlines()[0] if __doc__ else None)
@click.option("--env", "env_id", help="Only this environment.")
@click.option("--algo", help="Only this algorithm.")
@click.option("--seeds", "seeds_text", help="Numbers and ranges.  [default: 0-9, 0-2 for MuJoCo's tasks]")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Runs at a time, sharing the cores.")
@click.option("--again", is_flag=True, help="Repeat runs that are in the results already.")
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS / "presets.json", help="Results file.")
def main(env_id: str | None, algo: str | None, seeds_text: str | None, jobs: int, again: bool, results: Path) -> None:
    """Run what is missing, then print and write the tables; exit code 1 if a goal is missed."""
    try:
        wanted = {case: parse_seeds(seeds_text or case.seeds) for case in choose(env_id, algo)}
        document = load(results)
        digests = {case: settings_digest(case) for case in wanted}
        todo = [(c, s) for c in wanted for s in wanted[c]] if again else missing(wanted, document, digests)
        threads = max(1, machine.allowed_cores() // jobs)
        with ThreadPoolExecutor(jobs) as pool:
            pending = {pool.submit(train_once, case, seed, threads): (case, seed) for case, seed in todo}
            for finished in as_completed(pending):
                case, seed = pending[finished]
                entry = {**finished.result(), "settings": digests[case], "machine": machine.describe(), "jobs": jobs}
                if jobs > 1:  # several children end at once: nobody knows whose time it was
                    del entry["cpu_seconds"]
                document["runs"][key(case, seed)] = entry
                save(results, document)
                click.echo(f"{key(case, seed)}: return {entry['mean']:.2f}, {entry['seconds']:.1f} s", err=True)
    except GpurlError as error:
        raise click.ClickException(str(error)) from error
    results.with_suffix(".md").write_text(document_text(document))
    sys.exit(0 if _show(wanted, document) else 1)


def _show(wanted: dict[PresetCase, list[int]], document: dict[str, Any]) -> bool:
    """Print the tables of the wanted cases and seeds; whether all goals are met."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 180)
    good = True
    for part in TABLES:
        rows = [
            part.row(case, [document["runs"][key(case, s)] for s in wanted[case]])
            for case in part.cases
            if case in wanted
        ]
        if rows:
            console.print(drawn(part, rows))
        good = good and all(row[-1] == "yes" for row in rows)
    return good


if __name__ == "__main__":
    main()
