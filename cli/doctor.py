"""`gpurl doctor`: what this machine offers, and what to do about what it lacks."""

from __future__ import annotations

import dataclasses
import json

import click

_STYLE = {"ok": "green", "note": "yellow", "missing": "red"}


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(as_json: bool) -> None:
    """Show what was found on this machine: cores, SIMD, GPUs, packages, each with what to do if it is
    missing.

    Ends with exit code 0 whatever it finds: everything but --device cuda and `play` works without the rest.
    """
    from learners.doctor import examine

    findings = examine()
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2))
        return
    from cli.tables import print_table

    rows = [[f.item, f"[{_STYLE[f.status]}]{f.status}[/]", _literal(f.found), _literal(f.advice)] for f in findings]
    print_table(("item", "status", "found", "what to do"), rows)


def _literal(text: str) -> str:
    from rich.markup import escape

    return escape(text)
