"""The same few steps on two backends, each step from the same arrays, and how far apart what comes out is."""

from __future__ import annotations

from typing import Any

import numpy as np

import gpuenvs
from gpuenvs.runtime.buffers import DISABLED, NEXT_STEP
from gpuenvs.spec import REAL, field_kinds
from tests.gpuenvs.sampling import mixed_actions, random_actions, sample_states
from tests.ladder.rollout import hash_id

SEED = 2**63 + 11  # both words of the key matter
OFFSET = 1000
STEPS = 3
NAN_ROWS = 8
LIMIT = 3  # every row but those that end before reaches it within the steps, and begins an episode

Record = dict[str, np.ndarray]


def options(env_id: str, n: int, real: str, autoreset: str) -> dict[str, Any]:
    """How both sides make the environment; under NEXT_STEP the first real param has another value in each row."""
    spec = gpuenvs.get(env_id)
    found: dict[str, Any] = {"dtype": real, "autoreset": autoreset, "env_offset": OFFSET, "max_episode_steps": LIMIT}
    if autoreset == NEXT_STEP:
        name = next((k for k, kind in field_kinds(type(spec.params)).items() if kind == REAL), None)
        if name is not None:
            found[name] = getattr(spec.params, name) * np.linspace(0.9, 1.1, n)
    return found


def scenario(env_id: str, n: int, real: str, steps: int = STEPS) -> Record:
    """Where the steps start: (fields, n) states, steps done by each row, and the actions of each step.

    States of the classic environments are drawn from all over their spaces. Those of the MuJoCo tasks are what 20 steps lead
    to, in contact with the ground. Row k's number k is NaN in the first few rows, the last row has the most steps behind it.
    """
    spec = gpuenvs.get(env_id)
    rng = np.random.default_rng(hash_id(env_id))
    if spec.traced:
        states = _visited(env_id, rng, n, real)
    else:
        states = rng.permutation(np.asarray(sample_states(spec, rng, n), np.float64))[:n].T
    few = np.arange(min(len(states), NAN_ROWS))
    states[few, few] = np.nan
    elapsed = rng.integers(0, LIMIT, (1, n)).astype(np.int32)
    elapsed[0, -1] = LIMIT - 1
    actions = np.stack([random_actions(spec, rng, n) for _ in range(steps)])
    return {"states": states, "elapsed": elapsed, "actions": actions if spec.discrete else actions.astype(real)}


def _visited(env_id: str, rng: np.random.Generator, n: int, real: str) -> np.ndarray:
    with gpuenvs.make(env_id, n, device="cpu", dtype=real) as env:
        obs, _ = env.reset(seed=1)
        for _ in range(20):
            obs, *_ = env.step(mixed_actions(env.spec, rng, obs))
        return np.array(env.get_state())


def play(device: str, env_id: str, start: Record, real: str, autoreset: str, follow: Record | None = None) -> Record:
    """Reset, put the states in, step; every array after every call.

    Given the record of another backend to `follow`, each call starts from what that one had.
    """
    n = start["states"].shape[1]
    record: Record = {}
    with gpuenvs.make(env_id, n, device=device, **options(env_id, n, real, autoreset)) as env:

        def note(moment: str) -> None:
            for name, value in env.snapshot().items():
                record[f"{moment}/{name}"] = value
            for name in env.spec.metrics:
                record[f"{moment}/{name}"] = np.array(env.info[name])
            if follow is not None:
                env.restore({name: follow[f"{moment}/{name}"] for name in env.snapshot()})

        env.reset(seed=SEED)
        note("reset")
        env.set_state(start["states"])
        env.arrays["elapsed"][:] = start["elapsed"]
        note("injected")
        for t in range(len(start["actions"])):
            env.step(start["actions"][t])
            note(f"step{t}")
            if autoreset == DISABLED and t == 1:
                env.reset(rows=np.asarray(env.terminated) | np.asarray(env.truncated))
                note("reset rows")
    return record


def exact_ones(found: Record, expected: Record) -> list[str]:
    """Arrays that are no floats and not the same."""
    assert set(found) == set(expected)
    integer = [name for name in found if found[name].dtype.kind != "f"]
    return [name for name in integer if not np.array_equal(found[name], expected[name])]


def distances(found: Record, expected: Record) -> Record:
    """|a - b| / max(1, |b|) of every float array; infinite where only one is NaN."""
    apart = {}
    for name, b in expected.items():
        if b.dtype.kind == "f":
            a = found[name].astype(np.float64)
            with np.errstate(invalid="ignore"):
                apart[name] = np.where(
                    (a == b) | (np.isnan(a) & np.isnan(b)),
                    0.0,
                    np.nan_to_num(abs(a - b) / np.maximum(1, abs(b)), nan=np.inf),
                )
    return apart


def furthest(apart: Record) -> float:
    """The largest of some distances."""
    return max(float(values.max(initial=0.0)) for values in apart.values())
