"""An error in any part ends the whole run at once: a traceback, an exit code, nothing left behind, a whole checkpoint."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from learners import checkpoint, session
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


def replaying(part, run, *more):
    """A training of SAC under spreeze that nobody waits for the end of."""
    program = [sys.executable, str(HERE / "failing_run.py"), part, "train", "Pendulum-v1", "-a", "sac", "-q"]
    program += ["--schedule", "spreeze", "--device", "cpu", "-n", "4", "-t", "1e9", "--checkpoint-every", "1"]
    settings = ["num_steps=4", "batch_size=32", "hidden_sizes=16,16", "update_to_data=8", "learning_starts=64"]
    settings += ["buffer_size=4000", "engine=torch", "collector=eager", "slice_seconds=0.1"]
    return [*program, "-o", str(run), *(word for item in settings for word in ("--set", item)), *more]


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


def orphaned(files):
    """Those that no living process has open or mapped. What is held belongs to somebody else at work on this machine."""
    held = set()
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                held |= {line.split(maxsplit=5)[-1] for line in (process / "maps").read_text().splitlines()}
            with contextlib.suppress(OSError):
                for descriptor in (process / "fd").iterdir():
                    with contextlib.suppress(OSError):
                        held.add(os.readlink(descriptor))
    return {file for file in files if str(file) not in held and file.exists()}


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no /dev/shm")
def test_shared_memory_is_orphaned_once_nobody_holds_it():
    before = shared_memory()
    segment = SharedMemory(create=True, size=64)
    file = Path("/dev/shm") / segment.name
    try:
        assert file in shared_memory() - before and file not in orphaned([file])
        segment.close()
        assert file in orphaned(shared_memory() - before)
    finally:
        segment.unlink()
    assert not orphaned([file])


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
    assert gone(children) and not orphaned(shared_memory() - before)
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
    assert gone(children) and not orphaned(shared_memory() - before)
    last_checkpoint_loads(run)


def test_a_killed_run_leaves_nothing(tmp_path):
    run, before = tmp_path / "run", shared_memory()
    process = started(command("nobody", "hts", run))
    until_checkpoint(run, process, 2)
    children = offspring(process.pid)
    process.kill()
    process.communicate()
    assert len(children) >= 4 and gone(children) and not orphaned(shared_memory() - before)
    last_checkpoint_loads(run)


@pytest.mark.parametrize(("part", "split"), [("sampler", False), ("critic", False), ("critic", True), ("policy", True)])
def test_an_error_in_a_part_of_spreeze_ends_the_run(tmp_path, part, split):
    run = tmp_path / "run"
    process = started(replaying(part, run, "--set", f"split={split}"))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"planted in the {part}" in err.splitlines()[-1]
    assert err.count("Traceback (most recent call last)") == 1 and "ZeroDivisionError" in err
    last_checkpoint_loads(run)


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_a_replay_with_the_checkpoint(tmp_path, number, code):
    run = tmp_path / "run"
    process = started(replaying("nobody", run))
    until_checkpoint(run, process, 4)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "checkpoint:" in out and "Traceback" not in err
    last_checkpoint_loads(run)
    (step, _), folder = checkpoint.list_steps(RunDirectory(run).checkpoints)[-1], RunDirectory(run).checkpoints
    assert [path.name for path in folder.glob("replay-*")] == [f"replay-{step:012d}.safetensors"]
    schedule = checkpoint.load(RunDirectory(run).checkpoints / f"step-{step:012d}.safetensors")["schedule"]
    committed = checkpoint.load(folder / f"replay-{step:012d}.safetensors")["committed"]
    assert committed * 4 == schedule["env_steps"] == step + schedule["finished"]["steps"]


def test_a_killed_spreeze_resumes_with_its_replay(tmp_path):
    run = tmp_path / "run"
    process = started(replaying("nobody", run))
    until_checkpoint(run, process, 4)
    process.kill()
    process.communicate()
    last_checkpoint_loads(run)
    step = checkpoint.list_steps(RunDirectory(run).checkpoints)[-1][0]
    with session.resume(run, total_steps=step + 400) as resumed:
        schedule = resumed.trainer.schedule
        assert schedule.env_steps == schedule.loop.replay.committed * 4 >= step
        owed = schedule.loop.ratio.owed
        assert owed <= 2 * 8 * 16 + 32
        updates, step = schedule.algo.version, schedule.env_steps
        resumed.trainer.train()
        # Nothing is caught up: the updates are those that the new steps and what was owed call for.
        assert (schedule.algo.version - updates) * 32 <= owed + 8 * (schedule.env_steps - step)
