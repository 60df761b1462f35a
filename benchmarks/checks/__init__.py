"""The sections of `make gpu-check`: each module checks one thing on one device, in a process of its own.

A section is a function `run(request, report)`. The request holds `device` ("cuda:0", or "cpu" for a rehearsal), `small`
(sizes that a CPU does in seconds) and what the section's job says in `benchmarks.gpu_check`. Every finding is reported as
soon as it is known, so what a later crash or timeout leaves is whole.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any

PREFIX = "@check "  # of the lines of standard output that are findings


class Skip(Exception):
    """The section cannot run here; the text says why."""


class Report:
    """Writes findings, one line of JSON each."""

    def row(self, check: str, ok: bool, **figures: Any) -> None:
        """A finding: what was checked, whether it is as it should be, and the figures."""
        self._write({"check": check, "ok": bool(ok), **figures})

    def skip(self, check: str, why: object) -> None:
        """A part that cannot be checked here."""
        self._write({"check": check, "skipped": one_line(why)})

    @contextlib.contextmanager
    def attempt(self, check: str) -> Iterator[None]:
        """What is asked for and cannot be had here skips this part alone; any other error is a bad finding of it alone."""
        from gpuenvs.errors import GpurlError

        try:
            yield
        except (GpurlError, ImportError) as error:
            self.skip(check, error)
        except Exception as error:
            self.row(check, False, error=f"{type(error).__name__}: {one_line(error)}")

    @staticmethod
    def _write(row: dict[str, Any]) -> None:
        sys.stdout.write(PREFIX + json.dumps(row) + "\n")
        sys.stdout.flush()


def one_line(text: object) -> str:
    """The text of an error without line breaks, of a readable length."""
    return " ".join(str(text).split())[:300] or type(text).__name__


def findings(output: str) -> list[dict[str, Any]]:
    """The findings in what a section's process has written; a last line cut short by a kill is left out."""
    found = []
    for line in output.splitlines():
        if line.startswith(PREFIX):
            try:
                found.append(json.loads(line[len(PREFIX) :]))
            except json.JSONDecodeError:
                continue
    return found
