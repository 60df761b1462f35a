import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuenvs.errors import ConfigError, RunError
from learners import session
from learners.build import resolve
from learners.metrics import read_rows
from learners.observers import attached
from learners.observers.attached import ObserverOptions, Observers, figures
from learners.observers.process import ObserverError
from learners.train import Progress
from tests.learners.tiny import tiny_config, weights

ROOT = Path(__file__).resolve().parents[3]


class Patient:
    """Observers whose training waits for the evaluation of iteration 3, so that the test does not depend on speed."""

    def __init__(self, observers, before=lambda: None):
        self.observers, self.before = observers, before

    def __call__(self, progress):
        self.observers(progress)
        if progress.iteration != 3:
            return
        self.before()
        deadline = time.monotonic() + 180
        while self.observers.evaluations < 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)
            self.observers(progress)


def train(config, path, options=None, before=lambda observers: None):
    """A training, with observers if there are options. Returns (run, lines, evaluations)."""
    lines, found = [], []
    with session.begin(config, path) as made:
        if options is None:
            made.trainer.train()
        else:
            with Observers(made.trainer, made.run, options, found.append, lines.append) as observers:
                made.trainer.train(on_progress=Patient(observers, lambda: before(observers)))
                observers.finish()
    return made.run, lines, found


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Weights of a sync training that nobody looks at."""
    return weights(train(tiny_config(), tmp_path_factory.mktemp("plain") / "run")[0])


def test_weights_are_the_same_with_observers_that_are_killed(tmp_path, plain):
    def kill(observers):
        os.kill(observers.evaluator.pid, signal.SIGKILL)
        os.kill(observers.viewer.pid, signal.SIGKILL)

    options = ObserverOptions(eval_every=0, eval_episodes=2, video_every=1, watch=True, watch_port=18070)
    run, lines, said = train(tiny_config(keep_checkpoints=10), tmp_path / "run", options, kill)
    assert weights(run) == plain
    assert sorted(lines) == [
        f"warning: the {name} was killed by SIGKILL; training goes on, and it is started again (1 of 3 times)"
        for name in ("evaluator", "viewer")
    ]
    files = [json.loads(file.read_text()) for file in run.evaluations.glob("*.json")]
    assert 1 <= len(files) <= 4 and all(len(file["returns"]) == 2 and file["on"] == "gymnasium" for file in files)
    first = next(file for file in files if file["step"] == 3 * 128)
    rows = read_rows(run.metrics_file)
    noted = rows["eval_step"] == 3 * 128
    assert noted.sum() == 1 and rows["eval_return"][noted] == pytest.approx(first["mean"])
    said = [line for line in said if not line.startswith("watch: ")]
    assert said[0].startswith(f"evaluated at step 384: return {first['mean']:.1f} +- ")
    assert (run.videos / "step-000000000384.mp4").stat().st_size > 1000
    # The same episodes by the same weights, in this process.
    _, config, policy, step = session.open_policy(run.path, str(384))
    again = session.evaluate_run(config, policy, 2)
    assert step == 384 and list(again.returns) == first["returns"]


@pytest.mark.parametrize("schedule", ["hts", "async"])
def test_under_schedules_that_overlap(tmp_path, schedule):
    options = ObserverOptions(eval_every=0, eval_episodes=2)
    config = tiny_config(schedule=schedule)
    run, lines, _ = train(config, tmp_path / "run", options)
    assert not lines and list(run.evaluations.glob("*.json"))
    if schedule == "hts":
        assert weights(run) == weights(train(config, tmp_path / "plain")[0])


SPREEZE = ("batch_size=16", "buffer_size=1024", "collector=eager", "engine=torch", "hidden_sizes=8", "learning_starts=32",
           "num_steps=8", "update_to_data=4")  # fmt: skip


@pytest.mark.parametrize("deterministic", [True, False])
def test_under_spreeze(tmp_path, deterministic):
    """Where parts free-run an iteration is a slice of time; with rounds the weights are a matter of the seed alone."""
    more = {"total_steps": 256 if deterministic else 4096}
    own = (*SPREEZE, f"deterministic={str(deterministic).lower()}", "slice_seconds=0.02")
    config = resolve("Pendulum-v1", algo="sac", schedule="spreeze", overrides=own, num_envs=4, device="cpu", **more)
    run, lines, _ = train(config, tmp_path / "run", ObserverOptions(eval_every=0, eval_episodes=1))
    assert not lines and list(run.evaluations.glob("*.json"))
    if deterministic:
        assert weights(run) == weights(train(config, tmp_path / "plain")[0])


def test_an_error_that_training_does_not_notice_ends_the_process(monkeypatch):
    ends = []
    monkeypatch.setattr(attached, "GRACE_SECONDS", 0.01)
    monkeypatch.setattr(os, "_exit", ends.append)
    monkeypatch.setattr(os, "write", lambda _, data: ends.append(data))
    error = ObserverError("the evaluator failed: planted", "Traceback: planted")
    observers = Observers(None, None, ObserverOptions(), print, print, last_resort=True)
    observers._insist(error)
    assert ends == [b"\nTraceback: planted\nerror: the evaluator failed: planted\n", 1]
    observers.__exit__(None, None, None)
    observers._insist(error)
    assert len(ends) == 2


def test_options_that_cannot_work():
    with pytest.raises(ConfigError, match="add --eval-every"):
        ObserverOptions(video_every=2).check()
    ObserverOptions(eval_every=1.0, video_every=2).check()


def test_a_point_of_the_curves():
    def moment(**pipeline):
        return Progress(500, 1000, 3, 12.0, 1.0, lambda: 3.5, lambda: pipeline)

    assert figures(moment(), 10.0) == {"step": 500, "sampling_hz": 10.0, "return": 3.5}
    own = {"sampling_hz": 20.0, "update_frames_hz": 5e3, "update_to_data": 250.0}
    shown = figures(moment(**own, lag_mean=1.5, lag_max=4, sampler_busy=0.3), 10.0)
    assert shown == {"step": 500, "return": 3.5, "lag": 1.5, **own}


def test_a_missing_viser_is_named_before_anything_begins(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RunError, match="install the watch extra"):
        ObserverOptions(watch=True).check()


FAULTY = """
import sys
import dataclasses
import gpuenvs
if "observers" in sys.modules["__main__"].__spec__.name:
    raise ValueError("planted fault")
SPEC = dataclasses.replace(gpuenvs.get("CartPole-v1"), id="Faulty-v0")
"""


def test_an_error_in_the_evaluator_ends_the_run(tmp_path):
    """The environment's file cannot be imported in the evaluator, while training would go on for hours."""
    file = tmp_path / "faulty.py"
    file.write_text(FAULTY)
    command = [sys.executable, "-m", "cli.main", "train", f"{file}:SPEC", "-d", "cpu", "-n", "8", "-t", "1e9"]
    command += ["--set", "hidden_sizes=8", "--set", "engine=torch", "--set", "num_steps=16", "--eval-every", "1"]
    ended = subprocess.run(
        [*command, "--run-dir", tmp_path / "run"], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert ended.returncode == 1, ended.stderr
    assert 'raise ValueError("planted fault")' in ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("error: the evaluator failed: LoadError: ")
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))
