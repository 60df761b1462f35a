"""An error in any part ends the whole run at once: a traceback, an exit code, nothing left behind, a whole checkpoint."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from learners import checkpoint
from learners.runs import RunDirectory

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
TRAIN = ["train", "-a", "a2c", "-q", "--eval-episodes", "0", "--checkpoint-every", "1", "--device", "cpu"]
SMALL = ["--set", "num_steps=8", "--set", "engine=torch", "--set", "collector=auto", "-t", "1e9"]
ON_HOST = ["--env-backend", "host", "--executors", "3", "--actors", "2", "-n", "6"]
FAILING, SLEEPY = (f"{HERE / 'sleepy.py'}:{name}" for name in ("Failing", "Sleepy"))


def command(part, schedule, run, env="host"):
    on_device = env == "device" or part == "collector"
    where = ["CartPole-v1", "-n", "8"] if on_device else [FAILING if part == "executor" else SLEEPY, *ON_HOST]
    program = [sys.executable, str(HERE / "failing_run.py"), part]
    return [*program, *TRAIN, *SMALL, "--schedule", schedule, "-o", str(run), *where]


def started(args):
    """The process, in a session of its own so that everything it started can be found."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )


def offspring(pid):
    """Processes that `pid` and those it started have started, whether or not their parents are still there."""
    found, table = {pid}, []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                table.append((int(entry.name), {int(fields[1]), int(fields[3])}))  # parent and session
    for _ in range(4):  # generations
        found |= {number for number, belongs in table if belongs & found}
    return found - {pid}


def gone(pids, seconds=5.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not [pid for pid in pids if alive(pid)]:
            return True
        time.sleep(0.02)
    return False


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def shared_memory():
    folder = Path("/dev/shm")
    return set(folder.iterdir()) if folder.is_dir() else set()


def last_checkpoint_loads(run):
    steps = checkpoint.list_steps(RunDirectory(run).checkpoints)
    assert steps
    state = checkpoint.load(steps[-1][1])
    assert state["trainer"]["step"] == steps[-1][0]


def until_checkpoint(run, process, count=1):
    while len(list(run.glob("checkpoints/*"))) < count:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)


@pytest.mark.parametrize(
    "part, schedule",
    [("collector", "hts"), ("learner", "hts"), ("executor", "hts"), ("actor", "hts"), ("executor", "async")],
)
def test_an_error_ends_the_run(tmp_path, part, schedule):
    run, before = tmp_path / "run", shared_memory()
    process = started(command(part, schedule, run))
    until_checkpoint(run, process)
    children = offspring(process.pid)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"planted in the {'environment' if part == 'executor' else part}" in err.splitlines()[-1]
    assert err.count("Traceback (most recent call last)") == 1 and "ZeroDivisionError" in err
    if part == "executor":
        assert "sleepy.py" in err
    assert gone(children) and not shared_memory() - before
    last_checkpoint_loads(run)


@pytest.mark.parametrize(
    "schedule, env, number, code",
    [
        ("hts", "host", signal.SIGINT, 130),
        ("hts", "device", signal.SIGINT, 130),
        ("async", "host", signal.SIGTERM, 143),
    ],
)
def test_a_signal_saves_and_ends(tmp_path, schedule, env, number, code):
    run, before = tmp_path / "run", shared_memory()
    process = started(command("nobody", schedule, run, env))
    until_checkpoint(run, process, 2)
    children = offspring(process.pid)
    assert env == "device" or len(children) >= 4
    began = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert time.monotonic() - began < 30  # five seconds on a machine that has time
    assert "checkpoint:" in out and "Traceback" not in err
    assert gone(children) and not shared_memory() - before
    last_checkpoint_loads(run)


def test_a_killed_run_leaves_nothing(tmp_path):
    run, before = tmp_path / "run", shared_memory()
    process = started(command("nobody", "hts", run))
    until_checkpoint(run, process, 2)
    children = offspring(process.pid)
    process.kill()
    process.communicate()
    assert len(children) >= 4 and gone(children) and not shared_memory() - before
    last_checkpoint_loads(run)
