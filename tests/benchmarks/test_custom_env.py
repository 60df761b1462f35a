"""The kernels by hand are the example environment, number for number; the measurement and its file."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

import gpuenvs
from benchmarks import custom_env
from benchmarks.custom_env_kernel import FusedQuadrotor

ROWS = 777  # no whole number of blocks


@pytest.mark.parametrize("blocks", [True, False])
def test_the_kernels_by_hand_do_what_the_example_does(blocks: bool) -> None:
    """Through time limits, ends and new episodes with new masses; a difference of last bits is allowed for, none is known."""
    rng = np.random.default_rng(0)
    with gpuenvs.make(custom_env.spec(), ROWS, device="cpu", seed=2**33 + 5) as env:
        env.reset()
        mine = FusedQuadrotor(env, blocks)
        ended = truncated = 0
        for step in range(260):
            # Half of them hover, so that some reach the limit.
            wild = rng.uniform(-1.5, 1.5, (2, ROWS)) * (np.arange(ROWS) % 2)
            action = np.ascontiguousarray(np.where(np.arange(ROWS) % 2, wild, -0.02 - 0.3 * env.obs[:, 5]), np.float32)
            env.step(action.T)
            mine.step(action)
            arrays = mine.arrays
            done = env.terminated | env.truncated
            ended, truncated = ended + int(env.terminated.sum()), truncated + int(env.truncated.sum())
            pairs = {
                "obs": (arrays["obs"], env.obs.T),
                "reward": (arrays["reward"][0], env.reward),
                "terminated": (arrays["terminated"][0], env.terminated),
                "truncated": (arrays["truncated"][0], env.truncated),
                "metrics": (arrays["metrics"], env.arrays["metrics"]),
                "params": (arrays["own"][1:], env.arrays["param_real_env"]),
                "final_obs": (arrays["final_obs"][:, done], env.info["final_obs"].T[:, done]),
                "returns": (arrays["returns"][0, done], env.info["episode_return"][done]),
                "lengths": (arrays["lengths"][0, done], env.info["episode_length"][done]),
            }
            for name, (got, expected) in pairs.items():
                np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4, err_msg=f"{name} at step {step}")
        assert ended > ROWS
        assert truncated > 10


def test_measurement_table_and_share() -> None:
    row = custom_env.measure(64, turns=1, seconds=0.0)
    assert set(row) == set(custom_env.CONTENDERS)
    assert all(rate > 0 for rate in row.values())
    rows = [
        {"num_envs": 64, "gpurl": 10e6, "blocks": 20e6, "rows": 5e6},
        {"num_envs": 128, "gpurl": 30e6, "blocks": 15e6, "rows": 5e6},
    ]
    assert custom_env.share(rows) == 1.5
    head = {"cores": 2, "cpu": "X", "python": "3", "versions": {}}
    lines = custom_env.table({"machine": head, "rows": rows, "share": 1.5}).splitlines()
    assert lines[-3:] == [
        "| 64 | 10 M | 20 M | 5 M | 50% |",
        "| 128 | 30 M | 15 M | 5 M | 200% |",
        "| best | 30 M | 20 M | 5 M | 150% |",
    ]


def test_too_small_a_share_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom_env, "measure", lambda size, turns, seconds: {"gpurl": 6.9, "blocks": 10.0, "rows": 1.0})
    failed = CliRunner().invoke(custom_env.main, [])
    assert failed.exit_code == 1
    assert "69.0%" in failed.output
    assert CliRunner().invoke(custom_env.main, ["--least", "0.6"]).exit_code == 0


def test_the_committed_result_reaches_what_is_wanted() -> None:
    document = json.loads((custom_env.RESULTS / "custom_env.json").read_text())
    assert document["share"] == custom_env.share(document["rows"]) >= 0.7
    assert (custom_env.RESULTS / "custom_env.md").read_text() == custom_env.table(document)
