"""Kernels printed as Python compute what the compiled ones do; the simulator runs them too (tests/ladder)."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import gpuenvs
from gpuenvs.runtime import traced, traced_python

LIMIT, ROWS = 9, 6


def stepped(env: Any, real: str, rows: str, action: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays of an env after a step by the printed kernel; its own are left alone."""
    step = traced_python.function(env._layout, real, "step_kernel", rows)
    arrays = {name: array.copy() for name, array in env.arrays.items()}
    shared = {"param_real": env._backend._params_real, "param_int": env._backend._params_int, "action": action.T.copy()}
    settings = {"limit": LIMIT, "seed_lo": 7, "seed_hi": 0, "env_offset": 0}
    counts = [0] * len(traced.COUNTED)
    with np.errstate(all="ignore"):
        for i in range(ROWS) if rows == "one" else [np.arange(ROWS)]:
            step(i, {**arrays, **shared}, settings, counts)
    arrays["counts"] = np.array(counts)
    return arrays


@pytest.mark.parametrize("rows", ["one", "many"])
@pytest.mark.parametrize(
    ("env_id", "real", "tolerance"),
    [
        ("Swimmer-v5", "float64", 1e-11),
        ("InvertedDoublePendulum-v5", "float32", 1e-4),
        ("Hopper-v5", "float64", 1e-10),
        ("HalfCheetah-v5", "float64", 1e-10),
    ],
)
def test_a_step_is_the_compiled_one(env_id: str, real: str, tolerance: float, rows: str):
    rng = np.random.default_rng(3)
    with gpuenvs.make(env_id, ROWS, device="cpu", dtype=real, seed=7, max_episode_steps=LIMIT) as env:
        env.reset(seed=7)
        for t in range(LIMIT + 1):
            action = rng.uniform(-1, 1, env.action_space.shape).astype(real)
            expected = stepped(env, real, rows, action) if t >= LIMIT - 2 else None
            env.step(action)
            if expected is not None:
                assert expected["counts"][0] == np.count_nonzero(env.arrays["ended"])
                for name, array in env.arrays.items():
                    if name != "action":
                        np.testing.assert_allclose(expected[name], array, rtol=tolerance, atol=tolerance, err_msg=name)


def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    monkeypatch.setattr(sys, "argv", ["traced_python", *words])
    traced_python.main()
    return capsys.readouterr().out


def test_the_text_reads_well(monkeypatch, capsys):
    text = printed(monkeypatch, capsys, "InvertedPendulum-v5", "--dtype", "float32")
    compile(text, "printed", "exec")
    assert "def step_kernel(i, arrays, settings, counts):" in text
    assert "qpos_slider = state_real[0, i]" in text
    lines = [line for line in text.splitlines() if " = " in line]
    assert len(lines) < 500  # expressions, not one operation a line


def test_other_kernels_are_printed(monkeypatch, capsys):
    text = printed(monkeypatch, capsys, "InvertedPendulum-v5", "--kernel", "begin_kernel", "--autoreset", "disabled")
    assert text.startswith("def begin_kernel(")
    assert "final_obs" not in text


def test_what_is_not_traced_is_refused(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        printed(monkeypatch, capsys, "CartPole-v1")
    assert "not traced" in capsys.readouterr().err
