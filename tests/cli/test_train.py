import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from learners import checkpoint
from learners.runs import RunDirectory
from tests.learners.tiny import nan_reward_env, stable_rows, weights

ROOT = Path(__file__).resolve().parents[2]


def test_train_ends_with_an_evaluation_in_gymnasium_and_the_path(gpurl, tiny, tmp_path):
    path = tmp_path / "run"
    result = gpurl("train", "CartPole-v1", *tiny, "-o", path, "--eval-episodes", "3")
    assert result.code == 0
    trained, evaluated, last = result.out.splitlines()
    assert trained.startswith("trained: 768 steps in 0:")
    assert evaluated.startswith("eval: Gymnasium's CartPole-v1: return ") and "3 episodes, deterministic" in evaluated
    assert last == f"run: {path}"
    assert "CartPole-v1 ppo 100%  768 steps" in result.err
    (saved,) = (path / "evaluations").iterdir()
    assert len(json.loads(saved.read_text())["returns"]) == 3


def test_the_default_folder_is_below_runs(gpurl, tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = gpurl("train", "CartPole-v1", *tiny, "-s", "5", "--eval-episodes", "0", "-q")
    (path,) = (tmp_path / "runs" / "CartPole-v1").iterdir()
    assert path.name.startswith("ppo-sync-s5-") and result.err == ""
    assert result.out.splitlines()[-1] == f"run: {path.relative_to(tmp_path)}"


def test_set_reaches_the_algorithm_and_the_environment(gpurl, tiny, tmp_path):
    path = tmp_path / "run"
    settings = ("--set", "learning_rate=5e-4", "--set", "env.gravity=5", "--set", "env.max_episode_steps=20")
    result = gpurl("train", "CartPole-v1", *tiny, *settings, "-o", path, "--eval-episodes", "2")
    config = RunDirectory(path).read_config()
    assert config["settings"]["learning_rate"] == 5e-4 and config["env_params_resolved"]["gravity"] == 5.0
    assert config["max_episode_steps"] == 20
    assert "eval: gpuenvs CartPole-v1" in result.out  # Gymnasium has no such CartPole


def test_list_settings(gpurl):
    result = gpurl("train", "CartPole-v1", "--list-settings")
    assert result.code == 0
    for word in ("learning_rate", "hidden_sizes", "env.gravity", "9.8", "env.max_episode_steps"):
        assert word in result.out


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["CartPol-v1"], 2, "unknown environment 'CartPol-v1' (did you mean CartPole-v1"),
        (["cartpole"], 2, "did you mean CartPole-v1"),
        (["CartPole-v1", "--algo", "pp"], 2, "unknown algorithm 'pp' (did you mean ppo?)"),
        (["CartPole-v1", "--schedule", "synk"], 2, "unknown schedule 'synk' (did you mean sync, async?)"),
        (["CartPole-v1", "--set", "gama=0.9"], 2, "did you mean gamma?"),
        (["CartPole-v1", "--set", "gamma"], 2, "write it as name=value"),
        (["CartPole-v1", "--set", "gamma=2"], 2, "gamma must be a number >= 0 and <= 1"),
        (["CartPole-v1", "--set", "env.gravitas=2"], 2, "has no parameter 'gravitas' (did you mean gravity?)"),
        (["CartPole-v1", "--set", "env.gravity=nan"], 2, "gravity must be finite"),
        (["CartPole-v1", "--device", "gpu"], 1, "unknown device 'gpu'"),
        (["CartPole-v1", "--threads", "100000"], 2, "--threads must be in 1.."),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(gpurl, tmp_path, monkeypatch, args, code, message):
    monkeypatch.chdir(tmp_path)
    result = gpurl("train", *args)
    assert result.code == code and result.out == ""
    assert result.err.startswith("error: ") and result.err.count("\n") == 1 and message in result.err
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_cuda_does_not_fall_back(gpurl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for device in ("cuda", "cuda:1"):
        result = gpurl("train", "CartPole-v1", "--device", device)
        assert result.code == 1 and f"device '{device}' cannot be used" in result.err and result.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_an_existing_run_is_not_overwritten(gpurl, tiny, trained):
    before = sorted(path.name for path in trained.iterdir())
    result = gpurl("train", "CartPole-v1", *tiny, "-o", trained)
    assert result.code == 1 and f"already holds a run; go on with `gpurl resume {trained}`" in result.err
    assert sorted(path.name for path in trained.iterdir()) == before


def test_a_path_that_cannot_be_written(gpurl, tiny, tmp_path):
    (tmp_path / "file").write_text("")
    result = gpurl("train", "CartPole-v1", *tiny, "-o", tmp_path / "file" / "run")
    assert result.code == 1 and result.err.count("\n") == 1 and "Not a directory" in result.err


def test_nan_reward(gpurl, tiny, tmp_path):
    result = gpurl("train", nan_reward_env(), *tiny, "-t", "100k", "-q", "-o", tmp_path / "run")
    assert result.code == 1 and result.err.count("\n") == 1
    assert "returned a NaN or infinite reward" in result.err and "last good checkpoint: " in result.err
    assert checkpoint.load(RunDirectory(tmp_path / "run").find_checkpoint())


# --- resume --------------------------------------------------------------------------------------------------------


def test_resume_a_finished_run(gpurl, trained):
    result = gpurl("resume", trained)
    assert result.code == 1 and "nothing left to do" in result.err and "--total-steps" in result.err


def test_resume_with_more_steps(gpurl, tiny, tmp_path):
    path = tmp_path / "run"
    gpurl("train", "CartPole-v1", *tiny, "-o", path, "--eval-episodes", "0", "-q")
    result = gpurl("resume", path, "-t", "1k", "--eval-episodes", "2", "-q")
    assert result.code == 0 and result.out.startswith("trained: 256 steps")
    assert RunDirectory(path).read_config()["settings"]["total_steps"] == 1000


@pytest.mark.parametrize(("name", "message"), [("nothing", "no run at"), ("", "is not a run directory")])
def test_resume_what_is_no_run(gpurl, tmp_path, name, message):
    result = gpurl("resume", tmp_path / name)
    assert result.code == 1 and message in result.err and result.err.count("\n") == 1


def test_resume_a_damaged_checkpoint(gpurl, tiny, tmp_path):
    gpurl("train", "CartPole-v1", *tiny, "-o", tmp_path / "run", "--eval-episodes", "0", "-q")
    path = RunDirectory(tmp_path / "run").find_checkpoint()
    path.write_bytes(path.read_bytes()[:-1])
    for args in (("resume", tmp_path / "run", "-t", "2k"), ("eval", tmp_path / "run")):
        result = gpurl(*args)
        assert result.code == 1 and result.err.count("\n") == 1 and f"{path} is damaged" in result.err


# --- signals, in processes of their own ------------------------------------------------------------------------------


class Training:
    """`gpurl train` for very many steps in another process."""

    def __init__(self, path, tiny):
        self.run = RunDirectory(path)
        args = ["train", "CartPole-v1", *tiny, "-t", "1G", "-o", str(path), "-q"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cli.main", *args],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    def wait_for(self, ready):
        deadline = time.monotonic() + 120
        while not ready():
            assert self.process.poll() is None, self.process.stderr.read()
            assert time.monotonic() < deadline, "the training did not begin"
            time.sleep(0.01)

    def wait_for_checkpoint(self):
        """Until some iterations were made and the first row was written (every 50th at this length)."""
        self.wait_for(lambda: [s for s, _ in checkpoint.list_steps(self.run.checkpoints) if s > 8000])

    def end(self):
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_says_where_and_resume_goes_on(gpurl, tiny, tmp_path, number):
    training = Training(tmp_path / "run", tiny)
    training.wait_for_checkpoint()
    training.process.send_signal(number)
    code, out, err = training.end()
    assert code == 128 + number and "Traceback" not in err
    path = training.run.find_checkpoint()
    assert f"checkpoint: {path}\n" in out and f"gpurl resume {training.run.path}" in out
    step = checkpoint.read_info(path).step
    assert 1000 < int(stable_rows(training.run)[-1][0]) <= step
    result = gpurl("resume", training.run.path, "-t", step + 128, "--eval-episodes", "0", "-q")
    assert result.code == 0 and result.out.startswith("trained: 128 steps"), result.err


def test_a_second_signal_leaves_at_once_with_a_whole_checkpoint(tiny, tmp_path):
    training = Training(tmp_path / "run", (*tiny, "--set", "num_steps=5000"))  # an iteration that takes a while
    training.wait_for(lambda: checkpoint.list_steps(training.run.checkpoints))
    training.process.send_signal(signal.SIGINT)
    said = iter(training.process.stderr.readline, "")
    assert any("stopping" in line for line in said)  # two that come before Python looks would be one
    training.process.send_signal(signal.SIGINT)
    code, _, err = training.end()
    assert code == 130 and "Traceback" not in err
    assert checkpoint.load(training.run.find_checkpoint())
    assert weights(training.run)


def test_a_signal_while_importing_or_compiling_is_one_line(tiny, tmp_path):
    for delay in (0.25, 1.5):
        training = Training(tmp_path / f"run-{delay}", tiny)
        time.sleep(delay)
        training.process.send_signal(signal.SIGINT)
        code, _, err = training.end()
        # Before Python runs the first line of ours the signal is the interpreter's own.
        assert code in (130, -signal.SIGINT) and "Traceback" not in err
        assert "interrupted" in err or "stopping" in err or code == -signal.SIGINT


def test_the_collector_is_an_option_and_what_it_came_to_is_recorded(gpurl, tiny, tmp_path):
    small = (*tiny, "--set", "hidden_sizes=16", "--eval-episodes", "0", "-q")
    found = {}
    for wanted in ("auto", "graph", "eager"):
        path = tmp_path / wanted
        assert gpurl("train", "CartPole-v1", *small, "--collector", wanted, "-o", path).code == 0
        config = RunDirectory(path).read_config()
        assert config["settings"]["collector"] == wanted
        found[wanted] = config["collector"]["name"]
        assert config["collector"]["why"]
    assert found == {"auto": "fused", "graph": "graph", "eager": "eager"}
    result = gpurl("train", "CartPole-v1", *tiny, "--collector", "fused", "-o", tmp_path / "fused")
    assert result.code == 2 and "collector=fused: hidden_sizes must be multiples" in result.err
    assert not (tmp_path / "fused").exists()
    result = gpurl("train", "CartPole-v1", *tiny, "--collector", "quick", "-o", tmp_path / "quick")
    assert result.code == 2 and "collector must be one of auto, fused, graph, eager" in result.err
