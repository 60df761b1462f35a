"""Errors a user can cause. Each message is one line that says what happened and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GpurlError(Exception):
    """Base of every error that a user can cause; the command line prints its message and exits non-zero."""


class UnknownEnvError(GpurlError, LookupError):
    """The environment id is not registered."""


class DuplicateEnvError(GpurlError, ValueError):
    """The environment id is registered already."""


class LoadError(GpurlError, ImportError):
    """A file or module that should define an environment cannot be imported."""


class SpecError(GpurlError, TypeError):
    """An environment's functions, sizes or spaces do not fit the contract."""


class DeviceError(GpurlError, RuntimeError):
    """The asked device is not there or cannot be used."""


class ActionError(GpurlError, ValueError):
    """An action array has the wrong shape, dtype or range."""


class ConfigError(GpurlError, ValueError):
    """A setting is unknown or out of range."""


class ModelError(GpurlError, ValueError):
    """An MJCF model cannot be read or uses a feature that is not supported."""


class NonFiniteError(GpurlError, ArithmeticError):
    """An environment or a learner produced NaN or infinity where that cannot be repaired."""


class CheckpointError(GpurlError, RuntimeError):
    """A checkpoint is missing, cut short, changed or of another program."""


class ProcessError(GpurlError, RuntimeError):
    """Another process of a data-parallel training failed or cannot be reached."""


class HostError(GpurlError, RuntimeError):
    """A host environment raised, or a process that steps host environments died.

    Attributes:
        traceback: text of the first traceback, or `""` where there is none.
    """

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback


class RunError(GpurlError, RuntimeError):
    """A run directory cannot be made, locked, written or continued."""


def near_names(name: str, known: Iterable[str], limit: int = 3) -> str:
    """`" (did you mean A, B?)"` for the known names nearest to `name`, or `""` when none is near.

    Case does not count, and neither does a missing version suffix (`cartpole` finds `CartPole-v1`).
    """
    lowered = {}
    for full in known:
        lowered.setdefault(full.lower(), full)
        lowered.setdefault(full.lower().rsplit("-v", 1)[0], full)
    hits = difflib.get_close_matches(name.lower(), lowered, n=2 * limit, cutoff=0.6)
    found = list(dict.fromkeys(lowered[hit] for hit in hits))[:limit]
    return f" (did you mean {', '.join(found)}?)" if found else ""


class TraceError(GpurlError, TypeError):
    """A traced function did something that cannot be recorded."""
