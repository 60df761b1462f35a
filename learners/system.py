"""What this machine and this installation are: cores and versions. Nothing here needs CUDA."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys

from gpuenvs.runtime.threads import allowed_cores

# Distributions whose version changes what a run computes or how it is stored.
RECORDED = ("gpurl", "numpy", "numba", "llvmlite", "numba-cuda", "torch", "gymnasium", "safetensors")


def version_of(distribution: str) -> str | None:
    """Installed version of a distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide a run's numbers, as far as they are installed."""
    import gpuenvs

    found = {"python": platform.python_version(), "gpurl": gpuenvs.__version__}
    for name in RECORDED:
        version = version_of(name)
        if version is not None and name not in found:
            found[name] = version
    return found


def machine() -> dict[str, str | int]:
    """The machine in a few words, for config.json and `doctor`."""
    return {
        "platform": platform.platform(),
        "machine": platform.machine(),
        "python": sys.version.split()[0],
        "cores_allowed": allowed_cores(),
        "cores_total": os.cpu_count() or 1,
    }
