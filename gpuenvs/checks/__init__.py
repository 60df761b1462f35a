"""`gpuenvs.check`: everything that can be found out about an environment before anybody trains on it.

    report = gpuenvs.check("path/to/my_env.py:SPEC")
    print(report)          # a table; report.ok, report.findings, report.as_dict()

Three modules look at the code (`code`), at what it does (`behaviour`) and whether all backends do the same (`backends`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from gpuenvs.checks.report import FAIL, SKIP, Finding, Report
from gpuenvs.errors import GpurlError
from gpuenvs.spec import EnvSpec

if TYPE_CHECKING:
    from gpuenvs.checks.subject import Subject

__all__ = ["Finding", "Report", "check"]


def check(env: str | EnvSpec, *, seed: int = 0, on_check: Callable[[str], None] | None = None) -> Report:
    """Look at an environment from all sides: some ten seconds, or minutes for a large MuJoCo model that is not compiled yet.

    Args:
        env: an EnvSpec, an id, or a reference such as `"my_env.py:SPEC"`.
        seed: of all random actions and resets.
        on_check: called with the name of each check before it begins.

    Returns:
        What was found; `report.ok` is False if a check failed. Nothing that an environment does wrong raises.

    Raises:
        UnknownEnvError, LoadError, SpecError: there is no such environment, or it is none.
    """
    from gpuenvs.checks import code
    from gpuenvs.checks.subject import Subject
    from gpuenvs.registry import get

    spec = get(env)
    if on_check is not None:
        on_check("functions")
    findings = list(code.functions(spec))
    broken = any(finding.status == FAIL for finding in findings)
    subject, said = Subject(spec, seed), set()
    for name, look in _checks(subject).items():
        if broken:
            findings.append(Finding(name, SKIP, "the functions must hold the contract first"))
            continue
        if on_check is not None:
            on_check(name)
        try:
            findings += look()
        except GpurlError as error:
            text = str(error).removeprefix(f"{spec.id}: ")
            again = Finding(name, SKIP, "stopped by the error above")
            label = "indexing" if isinstance(error, IndexError) else name
            findings.append(again if text in said else Finding(label, FAIL, text, "mend this first"))
            said.add(text)
    return Report(spec.id, tuple(findings))


def _checks(subject: Subject) -> dict[str, Callable[[], Iterator[Finding]]]:
    """Name -> check, in the order of the report."""
    from gpuenvs.checks import backends, behaviour, code

    return {
        "sizes and dtypes": lambda: code.sizes(subject.spec),
        "float64/int64 leaks": lambda: code.leaked(subject.spec),
        "hidden state": lambda: code.hidden_state(subject.spec),
        "observation space": lambda: behaviour.observations(subject),
        "extreme actions": lambda: behaviour.extremes(subject),
        "reset distribution": lambda: behaviour.resets(subject),
        "episodes end": lambda: behaviour.episodes(subject),
        "determinism": lambda: behaviour.determinism(subject),
        "backend agreement": lambda: backends.plain_python(subject),
        "CUDA simulator": lambda: backends.simulator(subject),
        f"CUDA {backends.ARCHITECTURE}": lambda: backends.machine_code(subject),
        "steps/s": lambda: behaviour.speed(subject),
    }
