"""Runs of the host backend from the command line: trained, evaluated, drawn."""

import csv
import inspect

import pytest

from learners.build import resolve
from learners.runs import RunDirectory

SMALL = ("-d", "cpu", "--env-backend", "host", "--executors", "2", "-q")
PPO = ("--set", "num_steps=16", "--set", "minibatches=2", "--set", "epochs=1", "--set", "hidden_sizes=16")


def train(gpurl, folder, env_id, *options):
    result = gpurl("train", env_id, *SMALL, "--run-dir", folder, *options)
    assert result.code == 0, result.err
    return result


def finite_losses(folder):
    rows = list(csv.DictReader(RunDirectory(folder).metrics_file.open()))
    assert rows
    for row in rows:
        for name in ("policy_loss", "value_loss", "entropy"):
            assert abs(float(row[name])) < 1e6
    return rows


def test_cartpole(gpurl, tmp_path):
    run = tmp_path / "run"
    result = train(gpurl, run, "CartPole-v1", "-n", "4", "-t", "128", *PPO, "--eval-episodes", "3")
    assert "eval: CartPole-v1: return " in result.out
    evaluated = gpurl("eval", run, "-e", "4", "-s", "2", "--json").json
    assert evaluated["on"] == "host" and len(evaluated["returns"]) == 4
    assert len(list(RunDirectory(run).evaluations.glob("*-host-s2.json"))) == 1
    refused = gpurl("eval", run, "--on", "gpuenvs")
    assert refused.code == 2 and "leave --on gpuenvs out" in refused.err and refused.err.count("\n") == 1


def test_a_class_of_ones_own_with_images_is_trained_evaluated_and_not_drawn(gpurl, tmp_path):
    run = tmp_path / "run"
    train(gpurl, run, "tests.learners.host_envs:Lamps", "-n", "4", "-t", "128", *PPO, "--eval-episodes", "0")
    evaluated = gpurl("eval", run, "-e", "5", "--json").json
    assert evaluated["lengths"] == [8] * 5
    refused = gpurl("play", run, "-o", tmp_path / "a.gif")
    assert refused.code == 2 and "cannot be drawn" in refused.err and refused.err.count("\n") == 1


def test_a_class_in_a_file_is_drawn_with_its_keywords(gpurl, tmp_path, monkeypatch):
    pytest.importorskip("imageio")
    from tests.learners import host_envs

    source = tmp_path / "walks.py"
    source.write_text(inspect.getsource(host_envs))
    run = tmp_path / "run"
    options = ("-n", "4", "-t", "64", *PPO, "--set", "env.length=3", "--eval-episodes", "0")
    train(gpurl, run, f"{source}:Corridor", *options)
    result = gpurl("play", run, "-o", tmp_path / "a.gif", "--max-steps", "4")
    assert result.code == 0 and "frames, return" in result.out
    import imageio.v3 as imageio

    assert imageio.imread(tmp_path / "a.gif").shape[1:] == (16, 16 * 4, 3)


def test_images_get_the_settings_of_their_kind():
    config = resolve("tests.learners.host_envs:Lamps", env_backend="host", device="cpu", total_steps=1000)
    assert config.settings["hidden_sizes"] == (512,) and config.settings["activation"] == "relu"


@pytest.mark.parametrize("algo", ["ppo", "a2c"])
def test_pong_trains(gpurl, tmp_path, algo):
    pytest.importorskip("ale_py")
    run = tmp_path / "run"
    options = ("--algo", algo, "-n", "4", "--set", "num_steps=32", "-t", "256", "--eval-episodes", "0")
    train(gpurl, run, "ALE/Pong-v5", *options)
    rows = finite_losses(run)
    assert int(float(rows[-1]["step"])) == 256 and float(rows[-1]["entropy"]) == pytest.approx(1.79, abs=0.1)
