"""`python -m benchmarks.hts speed|learning|report`: the claims of HTS-RL (Liu et al. 2020, arXiv 2012.09849) as experiments.

* `speed`: environment steps per second of the schedules against the number of environments, against the variance of a step's
  time, with a heavy tail, and of hts against alpha, the steps of a horizon. `benchmarks.hts_model` predicts them.
* `learning`: time to a return and return at a time under each schedule; hts with old data, corrected and not.
* `report`: the tables and the picture, from the results of both.

Results are `benchmarks/results/hts_speed.json` and `hts_learning.json`, tables beside them in `hts.md`, pictures
`docs/hts.png` and `docs/hts-learning.png`. Cases take turns, so that a slow minute of the machine hits every schedule; the
median of the turns counts, and each sample has the load average (of other programs, too) at its beginning.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks import hts_report, machine
from benchmarks.hts_cases import DELAYED, LEARNING_CASES, SCHEDULES, SPEED_CASES, LearningCase, SpeedCase, as_dict
from benchmarks.process import gpurl
from benchmarks.report import Progress
from gpuenvs.errors import GpurlError

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
SPEED, LEARNING, TABLES = RESULTS / "hts_speed.json", RESULTS / "hts_learning.json", RESULTS / "hts.md"
PICTURE, LEARNING_PICTURE = ROOT / "docs" / "hts.png", ROOT / "docs" / "hts-learning.png"
WARM_ITERATIONS = 3


def measure(case: SpeedCase, seconds: float) -> dict[str, Any]:
    """One sample: steps per second over `seconds`, and what the schedule says of itself in that time.

    Raises:
        GpurlError: the schedule or an environment failed.
    """
    from learners.build import build, resolve
    from learners.metrics import Interval

    load = os.getloadavg()[0]
    config = resolve(
        DELAYED,
        algo=case.algo,
        schedule=SCHEDULES[case.schedule][0],
        overrides=case.overrides,
        total_steps=10**9,
        num_envs=case.num_envs,
        device="cpu",
        env_backend="host",
        executors=case.num_envs,
    )
    schedule = build(config)
    try:
        for _ in range(WARM_ITERATIONS):
            schedule.iterate()
        interval, steps, start = Interval(), 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds:
            result = schedule.iterate()
            steps += result.env_steps
            interval.add(result.metrics, result.episode_returns, result.episode_lengths, result.lags)
    finally:
        schedule.close()
    return {"rate": round(steps / elapsed, 1), "load": round(load, 2), **interval.pipeline()}


def measure_all(
    cases: Sequence[SpeedCase], seconds: float, repeats: int, minutes: float, say: Progress
) -> list[dict[str, Any]]:
    """A row per case, with its samples and their median; no second ones once `minutes` are over. Raises like `measure`."""
    samples: dict[SpeedCase, list[dict[str, Any]]] = {case: [] for case in cases}
    end = time.perf_counter() + 60 * minutes
    for turn in range(repeats):
        for case in cases:
            if turn and time.perf_counter() > end:
                continue
            sample = measure(case, seconds)
            samples[case].append(sample)
            say(f"{turn + 1} of {repeats}: {case.name}: {sample['rate']:.0f} steps/s, load {sample['load']}")
    return [
        {**as_dict(case), "steps_per_second": statistics.median(s["rate"] for s in found), "samples": found}
        for case, found in samples.items()
    ]


def train_all(cases: Sequence[LearningCase], folder: Path, minutes: float, say: Progress) -> None:
    """Every run that `folder` does not have yet, seeds in turns; of second seeds none is begun once `minutes` are over.

    Raises `ConfigError` for a run that fails.
    """
    warm: set[tuple[str, str]] = set()
    end = time.perf_counter() + 60 * minutes
    for seed in range(max(case.seeds for case in cases)):
        for case in cases:
            if seed >= case.seeds or (seed and time.perf_counter() > end):
                continue
            run = folder / case.place / case.label / f"s{seed}"
            if (run / "done").exists():
                continue
            kind = (case.place, case.schedule)
            if kind not in warm:  # compiles the kernels: no run's time should have that in it
                warm.add(kind)
                with tempfile.TemporaryDirectory() as scratch:
                    gpurl([*case.arguments(seed, f"{scratch}/run"), "--total-steps", "20k"], case.place)
            shutil.rmtree(run, ignore_errors=True)  # begun, but not finished
            start, load = time.perf_counter(), os.getloadavg()[0]
            gpurl(case.arguments(seed, str(run)), f"{case.place} {case.label} seed {seed}")
            (run / "done").write_text(f"{load:.2f}")
            say(f"{case.place}: {case.label}, seed {seed}: {time.perf_counter() - start:.1f} s")


def loads(cases: Sequence[LearningCase], folder: Path) -> list[float]:
    """The load averages at which the runs in `folder` began."""
    files = [file for case in cases for file in (folder / case.place / case.label).glob("s*/done")]
    return [float(text) for file in files if (text := file.read_text())]


def compare_all(cases: Sequence[LearningCase], folder: Path) -> list[dict[str, Any]]:
    """A comparison per place; see `learners.compare.Comparison.to_dict`."""
    return [
        {"series": first.series, "host": first.host, "algo": first.algo, **comparison.to_dict(), "env": first.env_id}
        for first, comparison in _comparisons(cases, folder)
    ]


def draw_learning(cases: Sequence[LearningCase], folder: Path, path: Path) -> None:
    """The curves of the `time` cases; see `learners.compare_plot`."""
    from learners.compare_plot import draw_comparison

    found = _comparisons([case for case in cases if case.series == "time"], folder)
    draw_comparison([comparison for _, comparison in found], path)


def _comparisons(cases: Sequence[LearningCase], folder: Path) -> list[tuple[LearningCase, Any]]:
    """The first case of each place, and the comparison of all runs there."""
    from learners.compare import compare
    from learners.curves import read_curve

    places: dict[str, list[LearningCase]] = {}
    for case in cases:
        places.setdefault(case.place, []).append(case)
    found = []
    for members in places.values():
        first = members[0]
        name = f"{first.env_id}{', 1 ms a step' * first.host}"
        curves = []
        for case in members:
            for seed in range(case.seeds):
                path = Path(case.place) / case.label / f"s{seed}"
                if not (folder / path / "done").exists():
                    continue
                curve = read_curve(folder / path)
                # Labels of our own: the runs differ in nothing else.
                curves.append(dataclasses.replace(curve, env_id=name, name=case.label, settings={}, path=path))
        (comparison,) = compare(curves, to=first.goal)
        found.append((first, comparison))
    return found


def save(path: Path, document: dict[str, Any]) -> None:
    """Write results whole or not at all, with the machine and the command that made them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    context = click.get_current_context()
    chosen = [f"--{name} {value}" for name in ("seconds", "repeats", "series")
              if _given(context, name) for value in _values(context.params[name])]  # fmt: skip
    command = " ".join(["python -m benchmarks.hts", context.info_name or "", *chosen])
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps({"machine": machine.describe(), "command": command, **document}, indent=1) + "\n")
    unfinished.replace(path)


def _given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def _values(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _say(line: str) -> None:
    click.echo(line, err=True)


@click.group(help=__doc__.splitlines()[0] if __doc__ else None)
def main() -> None:
    pass


@main.command()
@click.option("--seconds", type=float, default=3.0, show_default=True, help="Measured per sample.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Samples per case.")
@click.option("--minutes", type=float, default=11.0, show_default=True, help="No more repeats after that.")
@click.option("--series", multiple=True, help="Only these: envs, variance, heavy, alpha.  [default: all]")
@click.option("--out", type=click.Path(path_type=Path), default=SPEED, help="Results file.")
def speed(seconds: float, repeats: int, minutes: float, series: tuple[str, ...], out: Path) -> None:
    """Measure environment steps per second."""
    cases = [case for case in SPEED_CASES if not series or case.series in series]
    if not cases:
        raise click.UsageError(f"--series {', '.join(series)}: there are envs, variance, heavy and alpha")
    try:
        save(out, {"seconds": seconds, "rows": measure_all(cases, seconds, repeats, minutes, _say)})
    except GpurlError as error:
        raise click.ClickException(str(error)) from error


@main.command()
@click.option("--runs", type=click.Path(path_type=Path), help="Keep runs here, and go on with those that are there.")
@click.option("--minutes", type=float, default=19.0, show_default=True, help="No more seeds after that.")
@click.option("--series", multiple=True, help="Only these: time, corrections.  [default: both]")
@click.option("--out", type=click.Path(path_type=Path), default=LEARNING, help="Results file.")
@click.option("--picture", type=click.Path(path_type=Path), default=LEARNING_PICTURE, help="Learning curves.")
def learning(runs: Path | None, minutes: float, series: tuple[str, ...], out: Path, picture: Path) -> None:
    """Train under every schedule and with every correction."""
    cases = [case for case in LEARNING_CASES if not series or case.series in series]
    if not cases:
        raise click.UsageError(f"--series {', '.join(series)}: there are time and corrections")
    with tempfile.TemporaryDirectory(prefix="gpurl-hts-") as scratch:
        folder = runs or Path(scratch)
        try:
            train_all(cases, folder, minutes, _say)
            save(out, {"loads": loads(cases, folder), "comparisons": compare_all(cases, folder)})
            if any(case.series == "time" for case in cases):
                draw_learning(cases, folder, picture)
        except GpurlError as error:
            raise click.ClickException(str(error)) from error


@main.command()
@click.option("--check", is_flag=True, help="Fail unless hts is as fast as promised.")
def report(check: bool) -> None:
    """Make the tables and the picture from the results; print the tables."""
    rows, learned = (json.loads(path.read_text()) if path.exists() else None for path in (SPEED, LEARNING))
    text = hts_report.document(rows, learned)
    TABLES.write_text(text)
    click.echo(text)
    if rows:
        hts_report.draw(rows["rows"], PICTURE)
        missed = hts_report.missed(rows["rows"])
        for line in missed:
            _say(f"missed: {line}")
        if check and missed:
            sys.exit(1)


if __name__ == "__main__":
    main()
