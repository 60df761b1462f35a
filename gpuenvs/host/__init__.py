"""Any Gymnasium environment, stepped in executor processes over shared memory."""

from __future__ import annotations

from gpuenvs.host.pool import HostPool
from gpuenvs.host.spec import HostSpec, host_spec

__all__ = ["HostPool", "HostSpec", "host_spec"]
