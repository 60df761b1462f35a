"""`python -m benchmarks.presets`: every preset over several seeds, evaluated in Gymnasium's own environments.

Each run is what a user would type, `gpurl train ENV --algo ALGO --seed S`, in a process of its own; its time is that of
the whole command: start, compilation, training, checkpoints and the closing evaluation of 100 episodes. Finished runs
are kept in `benchmarks/results/presets.json` (SAC's in `presets_sac.json`) and not repeated while their settings stay the
same, so an interrupted benchmark goes on where it stopped. The tables are written beside it as `presets.md`. With `--jobs N`
each run has a core, or as many as there are for each, to itself.

Of SAC's runs the learning curves are kept, and drawn as `docs/sac-learning.svg`.

Policies of MuJoCo's tasks are also evaluated in gpuenvs (`gpurl eval RUN --on gpuenvs --same-starts`), from the states in
which Gymnasium's episodes began, and the mean returns are compared.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import queue
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import click

from benchmarks import machine, preset_curves
from benchmarks.cases import PresetCase
from benchmarks.preset_tables import TABLES, document_text, drawn, parse_seeds, runs_of
from benchmarks.process import gpurl
from benchmarks.timeline_picture import compact
from gpuenvs.errors import ConfigError, GpurlError

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PICTURE = ROOT / "docs" / "sac-learning.svg"
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
        here: dict[str, Any] = {}
        if case.compared:
            command = ["eval", str(run), "--on", "gpuenvs", "--same-starts", "--episodes", str(EPISODES), "--json"]
            document = json.loads(gpurl(command, name))
            here = {"gpuenvs": {key: document[key] for key in ("mean", "std", "episodes", "seed", "same_starts")}}
        if case.curve:
            here["curve"] = preset_curves.kept(run)
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


def key(case: PresetCase, seed: int | str) -> str:
    """Name of a run in the results file; what its names begin with for an empty seed."""
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
    unfinished.write_text(compact(document, indent=1, sort_keys=True))
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


def put(document: dict[str, Any], case: PresetCase, seed: int, entry: dict[str, Any]) -> None:
    """Add a finished run; those of the same case that were made under other settings go."""
    runs = document["runs"]
    for name, run in list(runs.items()):
        if name.startswith(key(case, "")) and run.get("settings") != entry["settings"]:
            del runs[name]
    runs[key(case, seed)] = entry


def core_shares(jobs: int) -> list[set[int]]:
    """As many cores for each of `jobs` runs as there are, none twice; empty sets where a run cannot have its own."""
    if jobs == 1 or not hasattr(os, "sched_getaffinity"):
        return [set()] * jobs
    cores = sorted(os.sched_getaffinity(0))[: machine.allowed_cores()]
    each = len(cores) // jobs
    return [set(cores[k * each : (k + 1) * each]) for k in range(jobs)]


def _stay_on(shares: queue.SimpleQueue[set[int]]) -> None:
    """Bind the calling thread, and with it every process that it starts, to the next share."""
    if share := shares.get():
        os.sched_setaffinity(0, share)


def choose(env_id: str | None, algo: str | None) -> list[PresetCase]:
    """The cases of one environment or algorithm, or all.

    Raises:
        ConfigError: there is no such case.
    """
    cases = [case for part in TABLES for case in part.cases]
    chosen = [c for c in cases if env_id in (None, c.env_id) and algo in (None, c.algo)]
    if not chosen:
        known = ", ".join(f"{c.env_id} {c.algo}" for c in cases)
        raise ConfigError(f"no preset case for {env_id or 'any environment'} {algo or ''}; there are: {known}")
    return chosen


@click.command(help=__doc__.splitlines()[0] if __doc__ else None)
@click.option("--env", "env_id", help="Only this environment.")
@click.option("--algo", help="Only this algorithm.")
@click.option("--seeds", "seeds_text", help="Numbers and ranges.  [default: those of the goal, 0-9 for classic tasks]")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Runs at a time, sharing the cores.")
@click.option("--again", is_flag=True, help="Repeat runs that are in the results already.")
@click.option(
    "--results",
    type=click.Path(path_type=Path),
    help="Results file.  [default: presets.json, presets_sac.json for SAC]",
)
def main(
    env_id: str | None, algo: str | None, seeds_text: str | None, jobs: int, again: bool, results: Path | None
) -> None:
    """Run what is missing, then print and write the tables; exit code 1 if a goal is missed."""
    try:
        wanted = {case: parse_seeds(seeds_text or case.seeds) for case in choose(env_id, algo)}
        files = {case: results or RESULTS / f"{part.file}.json" for part in TABLES for case in part.cases}
        documents = {files[case]: load(files[case]) for case in wanted}
        digests = {case: settings_digest(case) for case in wanted}
        todo = [
            run
            for case, seeds in wanted.items()
            for run in (
                [(case, s) for s in seeds] if again else missing({case: seeds}, documents[files[case]], digests)
            )
        ]

        def finished(case: PresetCase, seed: int, entry: dict[str, Any]) -> None:
            path = files[case]
            put(documents[path], case, seed, {**entry, "settings": digests[case]})
            save(path, documents[path])

        failed = run_all(todo, jobs, finished)
        for path, document in documents.items():
            write_tables(path, document)
    except GpurlError as error:
        raise click.ClickException(str(error)) from error
    good = all([_show(wanted, document) for document in documents.values()])
    if failed:
        raise click.ClickException(f"{len(failed)} of {len(todo)} runs failed; the first: {failed[0]}")
    sys.exit(0 if good else 1)


def run_all(
    todo: list[tuple[PresetCase, int]], jobs: int, finished: Callable[[PresetCase, int, dict[str, Any]], None]
) -> list[str]:
    """Train all of `todo`, `jobs` at a time, and hand over each as it ends; what failed, a line each."""
    shares: queue.SimpleQueue[set[int]] = queue.SimpleQueue()
    each = core_shares(jobs)
    for share in each:
        shares.put(share)
    threads = max(1, machine.allowed_cores() // jobs)
    facts = {"jobs": jobs, "own_cores": len(each[0]) or (threads if jobs == 1 else None)}
    failed = []
    with ThreadPoolExecutor(jobs, initializer=_stay_on, initargs=(shares,)) as pool:
        pending = {pool.submit(train_once, case, seed, threads): (case, seed) for case, seed in todo}
        try:
            for future in as_completed(pending):
                case, seed = pending[future]
                try:
                    entry = {**future.result(), **facts, "machine": machine.describe()}
                except GpurlError as error:  # the others go on: some of them take half an hour
                    failed.append(str(error))
                    click.echo(f"{key(case, seed)}: {error}", err=True)
                    continue
                if jobs > 1:  # several children end at once: nobody knows whose time it was
                    del entry["cpu_seconds"]
                finished(case, seed, entry)
                click.echo(f"{key(case, seed)}: return {entry['mean']:.2f}, {entry['seconds']:.1f} s", err=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return failed


def write_tables(path: Path, document: dict[str, Any]) -> None:
    """The tables beside the results, and the picture of those that have curves."""
    if not document["runs"]:
        return
    path.with_suffix(".md").write_text(document_text(document))
    curves = {case: runs_of(case, document) for part in TABLES for case in part.cases if case.curve}
    if curves := {case: runs for case, runs in curves.items() if runs}:
        preset_curves.draw(curves, PICTURE if path.parent == RESULTS else path.with_suffix(".svg"))


def _show(wanted: dict[PresetCase, list[int]], document: dict[str, Any]) -> bool:
    """Print the tables of the wanted cases and seeds that the results have; whether all goals are met."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 180)
    good = True
    for part in TABLES:
        rows = []
        for case in part.cases:
            names = [key(case, seed) for seed in wanted.get(case, ())]
            if runs := [document["runs"][name] for name in names if name in document["runs"]]:
                rows.append(part.row(case, runs))
        if rows:
            console.print(drawn(part, rows))
        good = good and all(row[-1] == "yes" for row in rows)
    return good


if __name__ == "__main__":
    main()
