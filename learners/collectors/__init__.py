"""The ways to fill a rollout: which there are, which are possible for an environment and a policy, and which `auto` takes.

| name | how | where |
|---|---|---|
| `fused` | policy, sampling, env step and storage in one call: a native kernel | small MLPs; CPU, CUDA |
| `graph` | the loop of `eager`, recorded once in a CUDA graph and launched as one; on a CPU the loop itself | any policy |
| `eager` | one PyTorch operation and one env step after the other | everything |

All give the same transitions for the same seed: what an environment does with equal actions is bit-identical, what the
policy puts out agrees to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gpuenvs.errors import ConfigError

COLLECTORS = ("auto", "fused", "graph", "eager")


class Choice(NamedTuple):
    """A way to collect, and why it was taken."""

    name: str
    why: str


def choose(wanted: str, env: Any, policy: Any, fused: Callable[[Any, Any], str | None] | None = None) -> Choice:
    """What `wanted` (one of `COLLECTORS`) comes to. `fused` says why there is no fused kernel, as `fused_problem` does.

    Raises:
        ConfigError: it is not possible here; one line that says why.
    """
    problems = {"fused": (fused or fused_problem)(env, policy), "graph": graph_problem(env, policy), "eager": None}
    if wanted != "auto":
        problem = problems[wanted]
        if problem is not None:
            possible = [name for name, found in problems.items() if found is None]
            raise ConfigError(f"collector={wanted}: {problem}; use collector=auto or {' or '.join(possible)}")
        return Choice(wanted, "asked for")
    if problems["fused"] is None:
        return Choice("fused", "the policy is a small MLP")
    if problems["graph"] is None and policy.device.type == "cuda":
        return Choice("graph", f"fused is not possible: {problems['fused']}")
    return Choice("eager", f"fused is not possible: {problems['fused']}")


def graph_problem(env: Any, policy: Any) -> str | None:
    """Why the loop cannot be recorded, in words; None if it can."""
    if not _together(env, policy):
        return f"a graph holds the work of one device, and the environment is on {env.device}, the policy on {policy.device}"
    return None


def fused_problem(env: Any, policy: Any) -> str | None:
    """Why no fused kernel can be made for rollouts, in words; None if one can."""
    problem = kernel_problem(env, policy)
    if problem is not None:
        return problem
    if policy.device.type == "cpu":
        from learners.native.network import misfit

        return misfit(policy)
    from learners.collectors.fused_cuda import misfit as misfit_on_cuda

    return misfit_on_cuda(env, policy)


def kernel_problem(env: Any, policy: Any) -> str | None:
    """Why no kernel of ours can step this environment and run a policy, whichever it is; None if one can."""
    if not _together(env, policy):
        return f"a kernel runs on one device, and the environment is on {env.device}, the policy on {policy.device}"
    if not hasattr(env, "native_step"):
        return f"{type(env).__name__} has no native step"
    if env.dtype != np.float32:
        return f"the environment computes in {env.dtype}, the fused kernels in float32"
    return None


def _together(env: Any, policy: Any) -> bool:
    """Whether both are on one device."""
    name = str(policy.device)
    return getattr(env, "device", "") == ("cuda:0" if name == "cuda" else name)
