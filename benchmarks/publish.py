"""`python -m benchmarks.publish`: puts the tables of `benchmarks/results` into README.md, between its markers.

`--check` changes nothing and fails when a table is not the one the results give.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click

from benchmarks import mujoco_bench
from benchmarks.report import markdown, quantity, ratio

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON lines file."""
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def where(head: dict[str, Any]) -> str:
    """The machine row as a caption."""
    versions = ", ".join(f"{name} {version}" for name, version in head["versions"].items() if version)
    return f"{head['cores']} cores of {head['cpu']}; Python {head['python']}, {versions}.\n\n"


def library(row: dict[str, Any]) -> str:
    """A contender with its version, if that is another project's."""
    version = row.get("version")
    return f"{row['contender']} ({version})" if version and "gpurl_ratio" in row else row["contender"]


def env_table(rows: list[dict[str, Any]]) -> str:
    """One line per environment and contender."""
    lines = []
    for row in rows[1:]:
        floor = row.get("floor", {})
        reached = f"{floor['fraction']:.0%} of {floor['bound']}" if "fraction" in floor else ""
        jit = f"{row['jit_seconds']:.1f}" if "jit_seconds" in row else ""
        times = ratio(row["gpurl_ratio"]) if "gpurl_ratio" in row else ""
        lines.append([row["env"], library(row), quantity(row.get("steps_per_second")), times, jit, reached])
    header = ("environment", "library", "steps/s", "gpurl is", "JIT s", "reached")
    return where(rows[0]) + markdown(header, lines, right=(2, 3, 4))


def mujoco_table(rows: list[dict[str, Any]]) -> str:
    """One line per MuJoCo task and contender."""
    lines = [mujoco_bench.cells(row) for row in rows if row["benchmark"] == "mujoco"]
    return where(rows[0]) + markdown(mujoco_bench.HEADER, lines, right=tuple(range(2, 8)))


def train_table(rows: list[dict[str, Any]]) -> str:
    """One line per case and contender."""
    lines = []
    for row in rows[1:]:
        shape = " x ".join(str(row[key]) for key in ("num_envs", "num_steps", "update_epochs", "num_minibatches"))
        times = ratio(row["gpurl_ratio"]) if "gpurl_ratio" in row else ""
        floor = row.get("floor", {})
        reached = f"{floor['fraction']:.0%} of {quantity(floor['samples_per_second'])}" if "fraction" in floor else ""
        compiled = f"{row['compile_seconds']:.1f}" if "compile_seconds" in row else ""
        rate = quantity(row.get("samples_per_second"))
        lines.append([shape, library(row), rate, times, compiled, reached])
    header = ("envs x steps x epochs x minibatches", "library", "samples/s", "gpurl is", "compile s", "reached")
    return where(rows[0]) + markdown(header, lines, right=(2, 3, 4))


def sections(results: Path) -> dict[str, str]:
    """Marker -> table, for the result files that exist."""
    found = {}
    if (path := results / "env.jsonl").exists():
        found["env"] = env_table(read_lines(path))
    if (path := results / "train.jsonl").exists():
        found["train"] = train_table(read_lines(path))
    if (path := results / "mujoco.jsonl").exists():
        found["mujoco"] = mujoco_table(read_lines(path))
    for name in ("presets", "presets_sac", "mujoco_accuracy", "hts", "hts_samples", "custom_env", "spreeze"):
        if (path := results / f"{name}.md").exists():
            found[name] = path.read_text()
    return found


def fill(document: str, tables: dict[str, str]) -> str:
    """The document with each table between `<!-- measured:NAME -->` and the next `<!-- end -->`.

    Raises:
        ValueError: the document has no such markers.
    """
    for name, text in tables.items():
        pattern = re.compile(rf"(<!-- measured:{name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not pattern.search(document):
            raise ValueError(f"no markers for the table {name!r}")
        document = pattern.sub(lambda match, text=text: f"{match[1]}\n{text}\n{match[2]}", document)
    return document


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; fail when README.md is not up to date.")
def main(check: bool) -> None:
    """Put the measured tables into README.md."""
    readme = ROOT / "README.md"
    old = readme.read_text()
    new = fill(old, sections(RESULTS))
    if check and new != old:
        raise click.ClickException("README.md does not show benchmarks/results; run python -m benchmarks.publish")
    if not check:
        readme.write_text(new)


if __name__ == "__main__":
    main()
