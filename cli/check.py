"""`gpurl check`: an environment looked at from all sides, before anybody trains on it."""

from __future__ import annotations

import json
import sys

import click

from cli.options import JSON, SEED

_STYLE = {"ok": "green", "note": "yellow", "fail": "red", "skip": "dim"}
_CLEAR = "\r\x1b[2K"


@click.command("check")
@click.argument("env", metavar="ENV")
@JSON
@SEED
def command(env: str, as_json: bool, seed: int) -> int:
    """Check an environment: an id, a file (my_env.py:SPEC) or a module (package.module:SPEC).

    Runs its functions in plain Python, compiled for the CPU and in the CUDA simulator, compiles them for a CUDA device, and
    says of each finding what to change. Ends with exit code 1 if a check failed.
    """
    import gpuenvs

    live = sys.stderr.isatty()

    def show(name: str) -> None:
        if live:
            click.echo(f"{_CLEAR}{name} ...", err=True, nl=False)

    try:
        report = gpuenvs.check(env, seed=seed, on_check=show)
    finally:
        if live:
            click.echo(_CLEAR, err=True, nl=False)
    if as_json:
        click.echo(json.dumps(report.as_dict(), indent=2))
    else:
        from rich.markup import escape

        from cli.tables import print_table

        rows = [
            [f.check, f"[{_STYLE[f.status]}]{f.status}[/]", escape(f.found), escape(f.advice)] for f in report.findings
        ]
        print_table(("check", "status", "found", "what to do"), rows)
        click.echo(report.verdict())
    return 0 if report.ok else 1
