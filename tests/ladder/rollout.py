"""One prescribed episode fragment on any backend, recorded array by array: what parity tests compare.

The parent process draws the scenario (states to inject, actions); each backend plays it; `differences` compares.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import gpuenvs
from gpuenvs.runtime.buffers import AUTORESET_MODES, DISABLED, NEXT_STEP, SAME_STEP
from gpuenvs.spec import REAL, field_kinds
from tests.gpuenvs.classic import CLASSIC

ROWS = 24
STEPS = 5
LIMIT = 4  # time limit of the rollout: reached by rows that nothing else ended
SEED = 2**63 + 11  # both words of the key matter
OFFSET = 1000


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


def play(
    device: str,
    env_id: str,
    real: str,
    autoreset: str,
    scenario: dict[str, np.ndarray],
    follow: dict[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Reset, step, inject the states (row 0's first value as NaN), step on; every array after every call.

    Under NEXT_STEP the first real param has another value in each row. Given the record of another backend to `follow`,
    each step starts from what that one had: differences of a last bit do not grow from step to step.
    """
    spec = gpuenvs.get(env_id)
    options: dict[str, Any] = {"dtype": real, "autoreset": autoreset, "env_offset": OFFSET}
    if autoreset == NEXT_STEP:
        name = next((n for n, kind in field_kinds(type(spec.params)).items() if kind == REAL), None)
        if name is not None:
            options[name] = getattr(spec.params, name) * np.linspace(0.9, 1.1, scenario["actions"].shape[1])
    actions = scenario["actions"] if spec.discrete else scenario["actions"].astype(real)
    states = scenario["states"].copy()
    states[0, 0] = np.nan
    steps, rows = actions.shape[:2]
    record: dict[str, np.ndarray] = {}
    with gpuenvs.make(env_id, rows, device=device, max_episode_steps=LIMIT, **options) as env:

        def note(moment: str) -> None:
            for name, value in env.snapshot().items():
                record[f"{moment}/{name}"] = value
            for name in spec.metrics:
                record[f"{moment}/{name}"] = np.array(_host(env.info[name]))
            if follow is not None:
                env.restore({n: follow[f"{moment}/{n}"] for n in env.snapshot()})

        env.reset(seed=SEED)
        note("reset")
        env.step(_device(env, actions[0]))
        note("step0")
        env.set_state(states)
        note("injected")
        for t in range(1, steps):
            env.step(_device(env, actions[t]))
            note(f"step{t}")
            if autoreset == DISABLED and t == 2:
                env.reset(rows=_host(env.terminated) | _host(env.truncated))
                note("reset rows")
    return record


def _host(array: Any) -> np.ndarray:
    return array if isinstance(array, np.ndarray) else array.get()


def _device(env: Any, array: np.ndarray) -> Any:
    if isinstance(env.obs, np.ndarray):
        return array
    import cupy

    return cupy.asarray(array)


def differences(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], rtol: float) -> list[str]:
    """Arrays that do not agree: floats within `rtol` (relative, and absolute below 1), everything else exactly."""
    wrong = [f"only one side has {name}" for name in sorted(set(found) ^ set(expected))]
    for name in sorted(set(found) & set(expected)):
        a, b = found[name], expected[name]
        if a.shape != b.shape or a.dtype != b.dtype:
            wrong.append(f"{name}: {a.dtype}{a.shape} against {b.dtype}{b.shape}")
        elif a.dtype.kind == "f":
            if not np.allclose(a, b, rtol=rtol, atol=rtol, equal_nan=True):
                wrong.append(f"{name}: differs by up to {np.nanmax(np.abs(a - b)):.3g}")
        elif not np.array_equal(a, b):
            wrong.append(f"{name}: {np.count_nonzero(a != b)} of {a.size} values differ")
    return wrong
