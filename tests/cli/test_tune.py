"""`gpurl tune`, `gpurl train --auto-tune` and `--tuned`."""

import json

import pytest

from learners.runs import RunDirectory
from learners.tuning import tune as tuning
from learners.tuning.verdict import Point, Trial
from tests.learners.tiny import weights


def _train(config, name, seconds):
    """Twice as many environments learn twice as fast."""
    speed = config.settings["num_envs"] / 128
    points = tuple(Point(float(k), k, min(100.0, 20.0 * k * speed), 0.1) for k in range(6))
    return Trial(name, config.seed, 5.0, points)


@pytest.fixture
def quick(monkeypatch):
    """Real settings and files, imagined speeds."""
    meters = tuning.Meters(training=lambda config: config.settings["num_envs"] ** 2.0, train=_train)
    monkeypatch.setattr(tuning, "Meters", lambda: meters)


SETTINGS = ("--set", "num_steps=16", "--set", "minibatches=2", "--set", "epochs=1", "--set", "hidden_sizes=8",
            "--set", "engine=torch", "--set", "collector=eager")  # fmt: skip
PLAIN = ("-d", "cpu", "-s", "3", *SETTINGS)


def test_tune_then_train_and_the_run_remembers(gpurl, quick, tmp_path):
    file = tmp_path / "t.json"
    result = gpurl("tune", "CartPole-v1", *PLAIN, "-o", file)
    assert result.code == 0 and f"tuning: {file}" in result.out
    document = json.loads(file.read_text())
    envs = document["decision"]["settings"]["num_envs"]
    assert envs > document["default"]["num_envs"] and f"num_envs={envs}" in result.out
    assert "seconds to" in result.out and "default" in result.out

    train = ("train", "CartPole-v1", *PLAIN, "-t", 2 * 16 * envs, "--eval-episodes", "0", "-q")
    runs = [tmp_path / "a", tmp_path / "b"]
    assert gpurl(*train, "--tuned", file, "--run-dir", runs[0]).code == 0
    assert json.loads((runs[0] / "tuning.json").read_text()) == document
    # The run's own file makes the same run again.
    assert gpurl(*train, "--tuned", runs[0] / "tuning.json", "--run-dir", runs[1]).code == 0
    first, second = (json.loads((run / "config.json").read_text()) for run in runs)
    assert first["settings"] == second["settings"] and first["settings"]["num_envs"] == envs
    assert weights(RunDirectory(runs[0])) == weights(RunDirectory(runs[1]))

    refused = gpurl("train", "Acrobot-v1", *PLAIN, "--tuned", file, "--run-dir", tmp_path / "c")
    assert refused.code == 2 and "is for env CartPole-v1, this run is Acrobot-v1" in refused.err
    refused = gpurl("train", "CartPole-v1", *PLAIN, "-n", 8, "--tuned", file, "--run-dir", tmp_path / "c")
    assert refused.code == 2 and f"decides num_envs={envs}" in refused.err
    assert not (tmp_path / "c").exists()


def test_auto_tune_trains_with_what_it_found(gpurl, quick, tmp_path):
    train = ("train", "CartPole-v1", *PLAIN, "-t", "4k", "--eval-episodes", "0", "--auto-tune")
    result = gpurl(*train, "--run-dir", tmp_path / "a")
    assert result.code == 0
    document = json.loads((tmp_path / "a" / "tuning.json").read_text())
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["settings"]["num_envs"] == document["decision"]["settings"]["num_envs"]
    assert "decision:" in result.err
    kept = gpurl(*train, "-n", 16, "-q", "--run-dir", tmp_path / "b")
    assert kept.code == 0
    assert json.loads((tmp_path / "b" / "config.json").read_text())["settings"]["num_envs"] == 16


def test_one_line_for_what_cannot_be(gpurl, quick, tmp_path):
    cases = [
        (("train", "CartPole-v1", "--auto-tune", "--tuned", tmp_path / "x"), "use one of them"),
        (("train", "CartPole-v1", "--tuned", tmp_path / "x"), "cannot read"),
        (("train", "CartPole-v1", "--auto-tune", "--schedule", "auto"), "tuning is for one schedule"),
        (("tune", "CartPole-v1", "--budget", "1"), "at least 10"),
        (("tune", "CartPole-v1", "-a", "sac"), "sac"),
        (("tune", "Nothing-v1"), "Nothing-v1"),
    ]
    for words, message in cases:
        result = gpurl(*words)
        assert result.code in (1, 2) and message in result.err and len(result.err.splitlines()) == 1, words
