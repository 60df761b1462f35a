"""One prescribed episode fragment on any backend, recorded array by array: what comparisons of backends compare.

A scenario holds states to inject and actions; each backend plays it; `differences` compares.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import gpuenvs
from gpuenvs.runtime.buffers import DISABLED, NEXT_STEP
from gpuenvs.spec import REAL, EnvSpec, field_kinds

LIMIT = 4  # time limit of the rollout: reached by rows that nothing else ended
SEED = 2**63 + 11  # both words of the key matter
OFFSET = 1000


def play(
    device: str,
    env: str | EnvSpec,
    real: str,
    autoreset: str,
    scenario: dict[str, np.ndarray],
    follow: dict[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Reset, step, inject the states (row 0's first value as NaN), step on; every array after every call.

    Under NEXT_STEP the first real param has another value in each row. Given the record of another backend to `follow`,
    each step starts from what that one had: differences of a last bit do not grow from step to step.

    Args:
        device: of the batch.
        env: id or spec.
        real: working dtype.
        autoreset: mode.
        scenario: `states` (fields, rows) and `actions` (steps, rows) or (steps, rows, k).
        follow: what another call returned.
    """
    spec = gpuenvs.get(env)
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
    with gpuenvs.make(spec, rows, device=device, max_episode_steps=LIMIT, **options) as batch:

        def note(moment: str) -> None:
            for name, value in batch.snapshot().items():
                record[f"{moment}/{name}"] = value
            for name in spec.metrics:
                record[f"{moment}/{name}"] = np.array(host(batch.info[name]))
            if follow is not None:
                batch.restore({n: follow[f"{moment}/{n}"] for n in batch.snapshot()})

        batch.reset(seed=SEED)
        note("reset")
        batch.step(_device(batch, actions[0]))
        note("step0")
        batch.set_state(states)
        note("injected")
        for t in range(1, steps):
            batch.step(_device(batch, actions[t]))
            note(f"step{t}")
            if autoreset == DISABLED and t == 2:
                batch.reset(rows=host(batch.terminated) | host(batch.truncated))
                note("reset rows")
    return record


def host(array: Any) -> np.ndarray:
    """A batch's array in host memory."""
    return array if isinstance(array, np.ndarray) else array.get()


def _device(batch: Any, array: np.ndarray) -> Any:
    if isinstance(batch.obs, np.ndarray):
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
