"""What a check found, as data and as a table of plain text."""

from __future__ import annotations

import dataclasses
import textwrap
from dataclasses import dataclass
from typing import Any

OK, NOTE, FAIL, SKIP = "ok", "note", "fail", "skip"


@dataclass(frozen=True)
class Finding:
    """One line of a report.

    Args:
        check: what was looked at.
        status: `ok`, `note` (works, but look at it), `fail` or `skip` (not looked at; `found` says why).
        found: what was seen.
        advice: what to change.
    """

    check: str
    status: str
    found: str
    advice: str = ""


@dataclass(frozen=True)
class Report:
    """All findings about one environment, in the order of the checks."""

    env_id: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """True when nothing failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The findings that failed."""
        return tuple(finding for finding in self.findings if finding.status == FAIL)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"env": self.env_id, "ok": self.ok, "findings": [dataclasses.asdict(f) for f in self.findings]}

    def verdict(self) -> str:
        """One line."""
        counts = {status: sum(f.status == status for f in self.findings) for status in (FAIL, NOTE, SKIP)}
        words = {FAIL: "failed", NOTE: "to look at", SKIP: "skipped"}
        rest = ", ".join(f"{number} {words[status]}" for status, number in counts.items() if number)
        return f"{self.env_id}: {'passes' if self.ok else 'does not pass'}{f' ({rest})' if rest else ''}"

    def __str__(self) -> str:
        width = max((len(f.check) for f in self.findings), default=0)
        lines = []
        for f in self.findings:
            text = f"{f.found}; {f.advice}" if f.advice else f.found
            head, *rest = textwrap.wrap(text, 100) or [""]
            lines.append(f"{f.check:<{width}}  {f.status:<4}  {head}")
            lines += [" " * (width + 8) + line for line in rest]
        return "\n".join([*lines, self.verdict()])
