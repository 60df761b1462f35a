"""The budget table: what every kernel may take on every architecture, in `budget.json` beside this file.

After a change that is meant to move it, write it anew and commit it with the change:

    python -m tests.ladder.budget

Kernels of traced environments are compiled only if their source text is another than the one in the table.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpuenvs.checks.ptxas import toolchain
from tests.ladder import offline, traced
from tests.ladder.offline import Case

PATH = Path(__file__).with_name("budget.json")
UPDATE = "python -m tests.ladder.budget"


def read() -> dict[str, Any]:
    """{"toolchain": versions, "kernels": {kernel: rows}, "traced": {kernel: {"source": digest} | rows}}

    `rows` is {architecture: {quantity: number}}.
    """
    return json.loads(PATH.read_text())


def same_toolchain(table: dict[str, Any]) -> bool:
    """Whether the table was made by the compilers that are installed here."""
    return toolchain() == table["toolchain"]


def measure(case: Case) -> dict[str, dict[str, int]]:
    """{architecture: {quantity: number}} of one kernel."""
    return {arch: offline.usage(case, arch).row() for arch in offline.ARCHITECTURES}


def measure_traced(case: Case, known: dict[str, Any] | None) -> dict[str, Any]:
    """The same, after the digest of the kernel's source; `known` if that is of the same source."""
    source = traced.digest(case)
    if known is not None and known["source"] == source:
        return known
    return {"source": source, **{arch: traced.usage(case, arch).row() for arch in traced.architectures(case)}}


def _lines(kernels: dict[str, dict[str, Any]]) -> str:
    """One line per kernel and architecture, so that diffs read well."""
    blocks = []
    for name, rows in kernels.items():
        inner = ",\n".join(f'  "{key}": {json.dumps(row)}' for key, row in rows.items())
        blocks.append(f' "{name}": {{\n{inner}}}')
    return ",\n".join(blocks)


def write() -> None:
    """Measure and write the table."""
    old = read()
    known = old.get("traced", {}) if same_toolchain(old) else {}
    kernels = {str(case): measure(case) for case in offline.cases()}
    recorded = {}
    for case in traced.cases():
        print(case, flush=True)
        recorded[str(case)] = measure_traced(case, known.get(str(case)))
    parts = [f'"toolchain": {json.dumps(toolchain())}']
    parts += [f'"{title}": {{\n{_lines(rows)}}}' for title, rows in (("kernels", kernels), ("traced", recorded))]
    PATH.write_text("{\n" + ",\n".join(parts) + "}\n")


if __name__ == "__main__":
    write()
    print(f"wrote {PATH}")
