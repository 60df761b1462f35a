"""Tables and JSON lines for the benchmark rows."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Progress = Callable[[str], None]


def silent(message: str) -> None:
    """A `Progress` that shows nothing."""


def json_lines(rows: Iterable[dict[str, Any]]) -> str:
    """One JSON object a line."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def quantity(value: float | None) -> str:
    """`453211000` as `453 M`, `0.52` as `0.52`, None as `-`."""
    if value is None:
        return "-"
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 100 * size:
            return f"{value / size:.0f} {unit}"
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"


def ratio(value: float | None) -> str:
    """`112.3` as `112x`."""
    return "-" if value is None else f"{value:.0f}x" if value >= 10 else f"{value:.2f}x"


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> Any:
    """A rich table; the columns numbered in `right` are aligned to the right."""
    from rich import box
    from rich.table import Table

    drawn = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    for index, name in enumerate(header):
        drawn.add_column(name, justify="right" if index in right else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*row)
    return drawn


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> str:
    """The same table for a document."""
    rule = ["---:" if index in right else "---" for index in range(len(header))]
    lines = [header, rule, *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def summarise(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Median rate of one contender's repeats; the first failure or absence stands for all.

    Args:
        samples: what `process.measure` returned, one entry a repeat.
    """
    for sample in samples:
        if "missing" in sample or "error" in sample:
            return sample
    rates = [sample["rate"] for sample in samples]
    found = {"rate": statistics.median(rates), "samples": rates, "config": samples[0]["config"]}
    if "jit_seconds" in samples[0]:  # the first repeat fills the cache of kernels, the others find them there
        found["warm_seconds"] = min(sample["jit_seconds"] for sample in samples)
    return found
