import fcntl
import json
import os
import subprocess
import sys

import pytest

from gpuenvs.errors import CheckpointError, RunError
from learners import checkpoint, runs
from learners.runs import RunDirectory, RunLock

CONFIG = {"env_id": "CartPole-v1", "algo": "ppo"}


@pytest.fixture
def run(tmp_path):
    with runs.new_run(tmp_path / "run") as made:
        made.write_config(CONFIG)
    return made


def test_a_new_run_has_its_folders(run):
    assert run.checkpoints.is_dir() and run.tensorboard.is_dir()
    assert run.read_config() == {"format": runs.CONFIG_FORMAT, **CONFIG}


def test_default_path_names_what_it_is(tmp_path):
    path = runs.default_path(tmp_path, "CartPole-v1", "ppo", "sync", 3)
    assert path.parent == tmp_path / "CartPole-v1"
    assert path.name.startswith("ppo-sync-s3-2")


def test_default_path_of_a_strange_id_stays_inside_the_root(tmp_path):
    for env_id in ("ALE/Pong-v5", "../../etc:Env", "a/b.py:My"):
        assert runs.default_path(tmp_path, env_id, "ppo", "sync", 0).parent.parent == tmp_path


def test_two_runs_in_one_second_get_two_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(runs.time, "strftime", lambda form: "20300101-000000")
    first = runs.default_path(tmp_path, "E", "ppo", "sync", 0)
    first.mkdir(parents=True)
    second = runs.default_path(tmp_path, "E", "ppo", "sync", 0)
    assert second.name == f"{first.name}-2"


def test_a_folder_with_a_run_is_refused(run):
    with pytest.raises(RunError, match="already holds a run; go on with `gpurl resume"), runs.new_run(run.path):
        pass
    with pytest.raises(RunError, match="already holds a run"):
        runs.check_new(run.path)


def test_a_second_user_of_a_run_is_refused_and_told_by_whom(run):
    with (
        runs.existing_run(run.path),
        pytest.raises(RunError, match=f"in use by another gpurl \\(process {os.getpid()}"),
        runs.existing_run(run.path),
    ):
        pass
    with runs.existing_run(run.path):
        pass  # free again


def test_the_lock_of_a_killed_process_is_free(run):
    code = (
        "import sys, time; from pathlib import Path; from learners import runs\n"
        "with runs.existing_run(Path(sys.argv[1])): print('locked', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(run.path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(RunError, match=f"process {process.pid}"), RunLock(run):
            pass
        process.kill()
        process.wait()
    with RunLock(run):
        pass


def test_a_lock_that_cannot_be_written_is_one_line(tmp_path):
    with pytest.raises(RunError, match="cannot write"), RunLock(RunDirectory(tmp_path / "not-there")):
        pass


def test_litter_of_killed_writers_is_removed_on_resume(run):
    litter = [run.path / ".unfinished-1-config.json", run.checkpoints / ".unfinished-1-step-000000000001.safetensors"]
    for path in litter:
        path.write_bytes(b"half")
    with runs.existing_run(run.path):
        assert not any(path.exists() for path in litter)


def test_a_path_below_a_file_is_refused_early(tmp_path):
    (tmp_path / "file").write_text("")
    for check in (runs.check_new, lambda path: runs.new_run(path).__enter__()):
        with pytest.raises(RunError, match=r"cannot write .*Not a directory; choose a path"):
            check(tmp_path / "file" / "run")


def test_a_folder_without_permission_is_refused_early(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(RunError, match=r"Permission denied; choose a folder that can be written"):
        runs.check_new(tmp_path / "run")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is not a run directory"),
        ("{", "damaged"),
        ("[]", "not a gpurl run's config"),
        (json.dumps({"env_id": "x"}), "not a gpurl run's config"),
        (json.dumps({"env_id": "x", "format": 99}), "has format 99"),
    ],
)
def test_a_config_that_is_none(tmp_path, content, message):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(RunError, match=message):
        RunDirectory(tmp_path).read_config()


def test_open_run_takes_a_file_inside_a_run(run):
    path = checkpoint.checkpoint_path(run.checkpoints, 5)
    checkpoint.save(path, {}, step=5)
    assert runs.open_run(path).path == run.path
    assert runs.open_run(run.path) == run


def test_open_run_of_nothing(tmp_path):
    with pytest.raises(RunError, match="no run at"):
        runs.open_run(tmp_path / "nothing")
    with pytest.raises(RunError, match="is not a run directory"):
        runs.open_run(tmp_path)


def test_find_runs_below_a_folder(tmp_path):
    for name in ("b", "a"):
        with runs.new_run(tmp_path / "env" / name) as made:
            made.write_config(CONFIG)
    assert [path.name for path in runs.find_runs(tmp_path)] == ["a", "b"]
    assert runs.find_runs(tmp_path / "env" / "b") == [tmp_path / "env" / "b"]


def test_find_checkpoint(run):
    for step, score in ((10, 2.0), (20, 1.0)):
        checkpoint.save(checkpoint.checkpoint_path(run.checkpoints, step), {}, step=step, score=score)
    assert run.find_checkpoint().name == "step-000000000020.safetensors"
    assert run.find_checkpoint("best").name == run.find_checkpoint(10).name == run.find_checkpoint("10").name
    for unknown in ("7", "newest"):
        with pytest.raises(CheckpointError, match=r"there are: latest, best, 10, 20"):
            run.find_checkpoint(unknown)


def test_results_do_not_overwrite_one_another(run):
    names = [run.write_json(run.evaluations, "step-1", {"n": n}).name for n in range(3)]
    assert names == ["step-1.json", "step-1-2.json", "step-1-3.json"]


def test_locks_are_held_by_flock(run):
    with RunLock(run), open(run.lock_file) as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
