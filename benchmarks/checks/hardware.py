"""The tests marked `gpu`, where pytest is installed."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.checks import Report, Skip, one_line

ROOT = Path(__file__).resolve().parents[2]
_COUNTS = re.compile(r"(\d+) (passed|failed|skipped|error|deselected)")


def run(request: dict[str, Any], report: Report) -> None:
    """One finding: how many passed and failed, with the lines that name failures."""
    if importlib.util.find_spec("pytest") is None:
        raise Skip("pytest is not installed")
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "tests/gpu"]
    if request["small"]:
        command.append("--collect-only")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    counts = {word: int(number) for number, word in _COUNTS.findall(lines[-1] if lines else "")}
    failures = [one_line(line) for line in lines if line.startswith(("FAILED", "ERROR"))][:20]
    report.row(
        "tests/gpu", done.returncode == 0, failures=failures, last_line=one_line(lines[-1] if lines else ""), **counts
    )
