"""Scenarios of the parity tests: which environments, states and actions `gpuenvs.checks.rollout` plays on each backend."""

from __future__ import annotations

import numpy as np

import gpuenvs
from gpuenvs.checks.rollout import differences, play
from gpuenvs.runtime.buffers import AUTORESET_MODES, SAME_STEP
from tests.gpuenvs.classic import CLASSIC

__all__ = ["TRACED", "differences", "draw_scenario", "play", "traced_variants", "variants"]

ROWS = 24
STEPS = 5

# Rows and steps of traced environments in the simulator, which runs them as plain Python; the others have ROWS and STEPS.
SIZES = {"Ant-v5": (4, 2)}
TRACED = (
    "InvertedPendulum-v5", "InvertedDoublePendulum-v5", "Reacher-v5", "Swimmer-v5", "Hopper-v5", "HalfCheetah-v5", "Ant-v5",
)  # fmt: skip
EVERY_MODE = "InvertedDoublePendulum-v5"


def traced_variants() -> list[tuple[str, str, str]]:
    """(env id, dtype, autoreset) of the rollouts of traced environments."""
    found = [(env_id, "float64", SAME_STEP) for env_id in TRACED]
    return found + [(EVERY_MODE, "float32", mode) for mode in AUTORESET_MODES]


def variants() -> list[tuple[str, str, str]]:
    """(env id, dtype, autoreset) of every rollout: float32 in each mode, float64 in one."""
    kinds = [("float32", mode) for mode in AUTORESET_MODES] + [("float64", SAME_STEP)]
    return [(env_id, real, mode) for env_id in CLASSIC for real, mode in kinds]


def draw_scenario(env_id: str) -> dict[str, np.ndarray]:
    """States (fields, rows) and actions (steps, rows) or (steps, rows, k); needs the compiled CPU backend."""
    from tests.gpuenvs.sampling import random_actions, sample_states

    spec, (rows, steps) = gpuenvs.get(env_id), SIZES.get(env_id, (ROWS, STEPS))
    rng = np.random.default_rng(abs(hash_id(env_id)))
    states = np.asarray(sample_states(spec, rng, 10 * ROWS), np.float64)
    actions = np.stack([random_actions(spec, rng, rows) for _ in range(steps)])
    return {"states": rng.permutation(states)[:rows].T, "actions": actions}


def hash_id(env_id: str) -> int:
    """A seed from a name, the same in every process."""
    return int.from_bytes(env_id.encode()[-6:], "little")
