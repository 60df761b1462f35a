"""`gpurl plot RUN...`."""

from __future__ import annotations

from pathlib import Path

import click

from cli.options import Count


@click.command("plot")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("curves.png"),
    show_default=True,
    help="The picture: .png, .svg or .pdf.",
)
@click.option("--smooth", type=Count(), default=9, show_default=True, help="Rows in the moving mean; 1 is none.")
@click.option("--title", help="A title over everything.")
def command(runs: tuple[Path, ...], out: Path, smooth: int, title: str | None) -> None:
    """Draw the learning curves of RUNs over steps and over wall-clock.

    Runs that differ in the seed only become one line, their mean, in a band of one standard deviation. A folder that
    holds several runs stands for all of them.
    """
    from learners.curves import read_curve
    from learners.plot import check_output, draw
    from learners.runs import find_runs

    check_output(out)
    paths = [path for given in runs for path in find_runs(given)]
    draw([read_curve(path) for path in paths], out, smooth, title)
    click.echo(f"{out}: {len(paths)} run{'s' if len(paths) != 1 else ''}")
