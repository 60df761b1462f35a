"""`gpurl compare RUN...`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.options import JSON, Count

if TYPE_CHECKING:
    from learners.compare import Comparison, Estimate, Row


class Duration(click.ParamType):
    """A time: 90, 90s, 5m, 1.5h. In seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip()
        scale = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(text[-1:])
        try:
            seconds = float(text[:-1]) * scale if scale else float(text)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            self.fail(f"{value!r} is not a time; write 30s, 5m or 2h", param, ctx)
        return seconds


@click.command("compare")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option(
    "--at", type=Duration(), metavar="TIME", help="Compare returns then: 30s, 5m.  [default: at the first end]"
)
@click.option(
    "--at-steps", type=Count(), metavar="STEPS", help="… and after so many steps.  [default: the fewest made]"
)
@click.option("--to", type=float, metavar="RETURN", help="Compare times to it.  [default: the reward threshold]")
@click.option(
    "--episodes",
    type=Count(),
    help="A return is the mean of so many latest episodes.  [default: 100, or one per parallel environment]",
)
@click.option(
    "-o", "--out", type=click.Path(path_type=Path, dir_okay=False), help="Draw it, too: a .png, .svg or .pdf."
)
@click.option("--title", help="A title over the picture.")
@JSON
def command(
    runs: tuple[Path, ...],
    at: float | None,
    at_steps: int | None,
    to: float | None,
    episodes: int | None,
    out: Path | None,
    title: str | None,
    as_json: bool,
) -> None:
    """Compare RUNs by the return they had at a given time and by the time they took to a given return.

    Runs that differ in the seed only make one row: the interquartile mean over seeds with a 95% bootstrap interval. A folder
    that holds several runs stands for all of them. Environments without a reward threshold are compared at what all but
    a quarter of each setting's runs have reached.
    """
    from learners.compare import compare, overall
    from learners.curves import read_curve
    from learners.plot import check_output
    from learners.runs import find_runs

    if out is not None:
        check_output(out)
    paths = dict.fromkeys(path.resolve() for given in runs for path in find_runs(given))
    comparisons = compare([read_curve(path) for path in paths], at, at_steps, to, episodes)
    together = overall(comparisons)
    if as_json:
        document = {
            "environments": [comparison.to_dict() for comparison in comparisons],
            "overall": {label: value.to_dict() for label, value in together.items()},
        }
        click.echo(json.dumps(document, indent=2))
    else:
        for comparison in comparisons:
            _print(comparison)
        _print_overall(together)
    if out is not None:
        from learners.compare_plot import draw_comparison

        draw_comparison(comparisons, out, title)
        click.echo(str(out), err=as_json)


def _print(comparison: Comparison) -> None:
    from cli.progress import duration
    from cli.tables import print_table

    seconds, steps, goal = comparison.at["seconds"], comparison.at["step"], comparison.goal
    click.echo(f"{comparison.env_id}: mean return of {comparison.window} episodes")
    when = f"{seconds:.3g} s" if seconds < 60 else duration(seconds)
    header = ["setting", "runs", f"return at {when}", f"seconds to {goal:.4g}"]
    header += [f"return at {_steps(steps)} steps", f"steps to {goal:.4g}", "steps/s"]
    print_table(header, [_cells(row) for row in comparison.rows], right=range(1, len(header)))
    if any(row.pipeline.get("lag_max") or "overlap" in row.pipeline for row in comparison.rows):
        header = ["setting", "policy lag", "overlap", "sampler idle", "learner idle"]
        print_table(header, [_pipeline_cells(row) for row in comparison.rows], right=range(1, len(header)))


def _cells(row: Row) -> list[str]:
    return [
        row.label,
        str(len(row.curves)),
        show(row.at["seconds"], "{:.1f}".format),
        show(row.to["seconds"], "{:.3g}".format),
        show(row.at["step"], "{:.1f}".format),
        show(row.to["step"], _steps),
        _steps(row.sps),
    ]


def _pipeline_cells(row: Row) -> list[str]:
    cells = [row.label]
    if "lag_max" in row.pipeline:
        mean, most = row.pipeline["lag_mean"], row.pipeline["lag_max"]
        cells.append(f"{most:g}" if mean == most else f"{mean:.2f}, max {most:g}")
    else:
        cells.append("-")
    for name in ("overlap", "sampler_idle", "learner_idle"):
        cells.append(f"{row.pipeline[name]:.0%}" if name in row.pipeline else "-")
    return cells


def show(estimate: Estimate, number: Any) -> str:
    """`475.0 [450.1, 480.3]`, `never` for an infinite mean; says so when some of the runs are not in it or never came."""
    known = [value for value in estimate.values if not math.isnan(value)]
    came = sum(map(math.isfinite, known))
    if not known:
        return "-"
    if math.isnan(estimate.low) or not math.isfinite(estimate.iqm):
        text = number(estimate.iqm) if math.isfinite(estimate.iqm) else "never"
    else:
        text = f"{number(estimate.iqm)} [{number(estimate.low)}, {number(estimate.high)}]"
    left_out = f" {came} of {len(estimate.values)}" if came < len(estimate.values) else ""
    return text.replace("inf", "never") + left_out


def _print_overall(together: dict[str, Estimate]) -> None:
    from cli.tables import print_table

    if together:
        click.echo("all environments: return at the given time, 0 where the worst run began, 1 at the goal")
        rows = [[label, str(len(value.values)), show(value, "{:.3f}".format)] for label, value in together.items()]
        print_table(["setting", "runs", "scaled return"], rows, right=(1, 2))


def _steps(count: float) -> str:
    for scale, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if scale <= count < math.inf:
            return f"{count / scale:.3g}{unit}"
    return f"{count:.3g}"
