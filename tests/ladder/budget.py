"""The budget table: what every kernel may take on every architecture, in `budget.json` beside this file.

After a change that is meant to move it, write it anew and commit it with the change:

    python -m tests.ladder.budget
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.ladder.offline import ARCHITECTURES, Case, cases, toolchain, usage

PATH = Path(__file__).with_name("budget.json")
UPDATE = "python -m tests.ladder.budget"


def read() -> dict[str, Any]:
    """{"toolchain": versions, "kernels": {kernel: {architecture: {quantity: number}}}}"""
    return json.loads(PATH.read_text())


def measure(case: Case) -> dict[str, dict[str, int]]:
    """{architecture: {quantity: number}} of one kernel."""
    return {arch: usage(case, arch).row() for arch in ARCHITECTURES}


def write() -> None:
    """Measure everything and write the table, one line per kernel and architecture so that diffs read well."""
    kernels = {str(case): measure(case) for case in cases()}
    lines = ["{", f'"toolchain": {json.dumps(toolchain())},', '"kernels": {']
    for k, (name, rows) in enumerate(kernels.items()):
        inner = ",\n".join(f'  "{arch}": {json.dumps(row)}' for arch, row in rows.items())
        lines.append(f' "{name}": {{\n{inner}}}{"," if k + 1 < len(kernels) else ""}')
    PATH.write_text("\n".join([*lines, "}}"]) + "\n")


if __name__ == "__main__":
    write()
    print(f"wrote {PATH}")
