"""`python -m benchmarks.require EVAL.json --return-at-least X`: fails when an evaluation's mean return is below X."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.argument("evaluation", type=click.Path(exists=True, path_type=Path))
@click.option("--return-at-least", "goal", type=float, required=True)
def main(evaluation: Path, goal: float) -> None:
    """Check the output of `gpurl eval --json`."""
    result = json.loads(evaluation.read_text())
    line = f"{result['env_id']} on {result['on']}: mean return {result['mean']:.2f} over {result['episodes']} episodes"
    if result["mean"] < goal:
        raise click.ClickException(f"{line}, below {goal:g}")
    click.echo(f"{line} (at least {goal:g}: ok)")


if __name__ == "__main__":
    main()
