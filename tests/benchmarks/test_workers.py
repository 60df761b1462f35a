"""The parts of the workers that can be wrong without any timing."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import benchmarks

WORKERS = Path(benchmarks.__file__).parent / "workers"


def _load(monkeypatch, name):
    monkeypatch.syspath_prepend(str(WORKERS))
    import importlib

    return importlib.import_module(name)


def test_actions_stay_inside_the_space_and_differ_from_batch_to_batch(monkeypatch):
    actions = _load(monkeypatch, "actions")
    drawn = actions.batches({"n": 3}, 1000, "int32")
    assert len(drawn) == actions.ROUNDS
    assert {array.dtype for array in drawn} == {np.dtype("int32")}
    assert set(np.unique(drawn[0])) == {0, 1, 2}
    assert not np.array_equal(drawn[0], drawn[1])
    box = actions.batches({"k": 2, "low": -2.0, "high": 2.0}, 500, "float32")[0]
    assert box.shape == (500, 2)
    assert -2 <= box.min() < -1.9
    assert 1.9 < box.max() <= 2


def test_the_clock_counts_every_unit(monkeypatch):
    timing = _load(monkeypatch, "timing")
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def call():
        now[0] += 0.25

    assert timing.Clock(1.0).rate(call, units=8) == pytest.approx(32)


def test_the_clock_picks_the_fastest_configuration(monkeypatch):
    timing = _load(monkeypatch, "timing")
    configs = [{"n": 1}, {"n": 3}, {"n": 2}]
    config, tried = timing.Clock(1.0).best(configs, lambda config, seconds: float(config["n"]))
    assert config == {"n": 3}
    assert [entry["rate"] for entry in tried] == [1.0, 3.0, 2.0]


def test_operations_of_cartpole_are_counted():
    """Euler's step alone is 4 multiplications and 4 additions, and the dynamics need a division."""
    request = {
        "worker": "gpurl_operations",
        "package": "gpuenvs",
        "seconds": 0.1,
        "env_id": "CartPole-v1",
        "action": {"n": 2},
    }
    command = [sys.executable, str(WORKERS), json.dumps(request)]
    root = str(WORKERS.parent.parent)
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": root, "PATH": ""}, timeout=120)
    operations = json.loads(done.stdout.splitlines()[-1])["operations"]
    assert operations["divide"] >= 1
    assert 4 < operations["multiply"] < 100
    assert 4 < operations["add"] < 100
    assert "other" not in operations
