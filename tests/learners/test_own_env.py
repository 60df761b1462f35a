"""Runs on an environment of the user's: drawn params, a curriculum and metrics, interrupted or not, and evaluations."""

from __future__ import annotations

import csv
import dataclasses
import shutil
import types

import pytest

import gpuenvs
from gpuenvs import Range
from gpuenvs.errors import CheckpointError, ConfigError, UnknownEnvError
from learners import checkpoint, session, source
from learners.envs import env_name, evaluation_env
from learners.interrupts import StopRequest
from tests.gpuenvs.ranged import RANGES, SPECS
from tests.gpuenvs.user_files import TRACED, write
from tests.learners.tiny import ITERATION, stable_rows, tiny_config, weights

SCHEDULES = ("sync", "hts")


def curriculum(step, envs):
    """gain 1, 2, 3, ... in the horizons; offsets that grow; a rate for each environment."""
    return {
        "gain": 1.0 + step // ITERATION,
        "offset": Range(0.0, 1.0 + step / ITERATION, resample="episode"),
        "rate": 0.1 + 0.01 * envs,
    }


PLANNED = dataclasses.replace(SPECS["compiled"], id="RangedPlanned-v0", curriculum=curriculum)
DRAWN = dataclasses.replace(SPECS["compiled"], id="RangedDrawn-v0")


@pytest.fixture(autouse=True)
def registered():
    for spec in (PLANNED, DRAWN):
        if spec.id not in gpuenvs.ids():
            gpuenvs.register(spec)


def run(opened, stop_after=None):
    """Train in an open session; stops after so many iterations."""
    with opened as begun, StopRequest() as stop:
        seen = 0

        def progress(_):
            nonlocal seen
            seen += 1
            if seen == stop_after:
                stop.signum = 2

        begun.trainer.train(stop, progress)
        return begun.run


def rows(finished):
    with open(finished.metrics_file, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_curriculum_is_followed_and_metrics_are_columns(tmp_path, schedule):
    done = run(session.begin(tiny_config(PLANNED.id, schedule=schedule), tmp_path / "run"))
    found = rows(done)
    assert [float(row["metric/gain"]) for row in found] == [1, 2, 3, 4, 5, 6]
    assert all(float(row["metric/x"]) != 0 for row in found)


def test_metrics_are_means_over_all_steps_and_environments(tmp_path):
    config = tiny_config(DRAWN.id)
    with gpuenvs.make(DRAWN, 8, device="cpu", seed=config.seed) as env:
        env.reset(seed=config.seed)
        gain = float(env.get_params().gain.mean())
    done = run(session.begin(config, tmp_path / "run"))
    assert [float(row["metric/gain"]) for row in rows(done)] == pytest.approx([gain] * 6, rel=1e-5)
    assert done.read_config()["env_params_resolved"]["gain"] == str(RANGES["gain"])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_stopped_and_resumed_equals_uninterrupted(tmp_path, schedule):
    config = tiny_config(PLANNED.id, schedule=schedule, iterations=7)
    whole = run(session.begin(config, tmp_path / "whole"))
    parts = run(session.begin(config, tmp_path / "parts"), stop_after=3)
    assert len(rows(parts)) == 3
    run(session.resume(parts.path))
    assert weights(parts) == weights(whole)
    timed = ("overlap", "idle", "wait")

    def told(finished):
        header, *lines = stable_rows(finished)
        keep = [k for k, name in enumerate(header) if not any(word in name for word in timed)]
        return [[line[k] for k in keep] for line in [header, *lines]]

    assert told(parts) == told(whole)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_caller_may_set_params_after_the_curriculum(tmp_path, schedule):
    seen = []

    def double(env, step):
        seen.append((env.spec.id, step, float(env.get_params().gain[0])))
        env.set_params(gain=10.0 + step)

    config = tiny_config(PLANNED.id, schedule=schedule)
    done = run(session.begin(config, tmp_path / "run", double), stop_after=2)
    run(session.resume(done.path, on_iteration=double))
    assert [step for _, step, _ in seen[:3]] == [0, ITERATION, 2 * ITERATION]
    assert [float(row["metric/gain"]) for row in rows(done)] == [10.0 + k * ITERATION for k in range(6)]
    assert {1.0, 2.0, 3.0, 4.0, 5.0, 6.0} <= {gain for _, _, gain in seen}  # what the curriculum had set


def test_a_param_that_the_user_sets_is_not_part_of_the_curriculum(tmp_path):
    done = run(session.begin(tiny_config(PLANNED.id, overrides=["env.gain=0.25"]), tmp_path / "run"))
    assert {float(row["metric/gain"]) for row in rows(done)} == {0.25}


def test_an_evaluation_draws_only_what_it_is_told_to(tmp_path):
    done = run(session.begin(tiny_config(DRAWN.id, overrides=["env.rate=0.1..0.2"]), tmp_path / "run"))
    _, config, policy, _ = session.open_policy(done.path)
    assert config.env_params == {"rate": "0.1..0.2"}
    fixed = session.evaluate_run(config, policy, 20)
    assert set(fixed.lengths) == {4}  # of Range(2, 6) the middle
    assert len(set(fixed.returns)) == 1
    drawn = session.evaluate_run(config, policy, 20, overrides=["env.life=2..6:episode"])
    assert set(drawn.lengths) == {2, 3, 4, 5, 6}
    other = session.evaluate_run(config, policy, 5, overrides=["env.life=3"])
    assert set(other.lengths) == {3}
    with pytest.raises(ConfigError, match="did you mean life"):
        session.evaluate_run(config, policy, 5, overrides=["env.lif=3"])


def test_what_training_draws_does_not_keep_gymnasium_from_evaluating():
    config = tiny_config("CartPole-v1", overrides=["env.length=0.4..0.6"])
    assert session.comparable(config)
    assert evaluation_env(config) == (gpuenvs.get("CartPole-v1"), {})
    assert not session.comparable(tiny_config("CartPole-v1", overrides=["env.length=0.4"]))


@pytest.fixture(scope="module")
def from_a_file(tmp_path_factory):
    """(folder of the file, folder of the run) of a training that was stopped after three iterations."""
    folder = tmp_path_factory.mktemp("file")
    file = write(folder / "first", env=TRACED)
    return file.parent, run(session.begin(tiny_config(f"{file}:SPEC"), folder / "run"), stop_after=3).path


def test_every_checkpoint_says_what_its_environment_computed(from_a_file, tmp_path):
    """Also those that a later run leaves behind."""
    folder, path = from_a_file
    run_path = shutil.copytree(path, tmp_path / "run")
    kind = checkpoint.load(run_path / "checkpoints" / f"step-{2 * ITERATION:012}.safetensors")["kind"]
    assert kind["source"] == session.runs.open_run(run_path).read_config()["source"]
    assert kind["env_id"] == "DriftTraced-v0"

    changed = f"{write(tmp_path / 'changed', gain=3.0, env=TRACED)}:SPEC"
    with pytest.raises(CheckpointError, match=r"constants\.py: GAIN \(2\.0 -> 3\.0\)"):
        session.open_policy(run_path, env=changed)
    with pytest.warns(UserWarning, match="has changed"):
        resumed = session.resume(run_path, allow_changed_env=True, env=changed)
        assert run(resumed, stop_after=1).read_config()["env_id"] == changed
    assert session.open_policy(run_path)[3] == 4 * ITERATION  # the changed environment's from here on
    with pytest.raises(CheckpointError, match="GAIN"):
        session.open_policy(run_path, str(3 * ITERATION))
    assert session.open_policy(run_path, str(3 * ITERATION), env=f"{folder / 'drift.py'}:SPEC")[3] == 3 * ITERATION


def test_a_moved_file_is_asked_for_and_named_anew(from_a_file, tmp_path):
    folder, path = from_a_file
    run_path = shutil.copytree(path, tmp_path / "run")
    moved = folder.rename(tmp_path / "moved")
    (moved / "drift.py").rename(moved / "renamed.py")
    try:
        with pytest.raises(UnknownEnvError, match=r"no file \S*drift\.py; if it was moved, say with --env FILE:NAME"):
            session.open_policy(run_path)
        with pytest.raises(UnknownEnvError, match="did you mean SPEC"):
            session.open_policy(run_path, env=f"{moved}/renamed.py:SPEK")
        with pytest.raises(CheckpointError, match="of DriftTraced-v0 ppo sync, this run is CartPole-v1 ppo sync"):
            session.open_policy(run_path, env="CartPole-v1")
        _, config, _, step = session.open_policy(run_path, env=f"{moved}/renamed.py:SPEC")
        assert (config.env_id, step) == (f"{moved}/renamed.py:SPEC", 3 * ITERATION)
        run(session.resume(run_path, env=f"{moved}/renamed.py:SPEC"), stop_after=1)
        assert session.open_policy(run_path)[3] == 4 * ITERATION
    finally:
        (moved / "renamed.py").rename(moved / "drift.py")
        moved.rename(folder)


def test_checkpoints_of_an_older_gpurl_know_their_file_alone(from_a_file, tmp_path):
    run_path = shutil.copytree(from_a_file[1], tmp_path / "run")
    file = run_path / "checkpoints" / f"step-{3 * ITERATION:012}.safetensors"
    state = checkpoint.load(file)
    config = session.open_policy(run_path)[1]
    state["kind"] = {"env_id": config.env_id, "algo": "ppo", "schedule": "sync"}
    checkpoint.save(file, state, step=3 * ITERATION)
    assert session.open_policy(run_path)[3] == 3 * ITERATION
    with pytest.raises(CheckpointError, match="GAIN"):  # config.json has the digest
        session.open_policy(run_path, env=f"{write(tmp_path / 'changed', gain=3.0, env=TRACED)}:SPEC")


def test_processes_with_other_files_do_not_train_together(from_a_file, tmp_path):
    config = session.open_policy(from_a_file[1])[1]
    mine, other = (
        source.fingerprint(gpuenvs.get(name))
        for name in (config.env_id, f"{write(tmp_path, gain=5.0, env=TRACED)}:SPEC")
    )

    def group(*digests):
        return types.SimpleNamespace(rank=0, agree=lambda settings: None, objects=lambda _: list(digests))

    session._agree(group(mine, mine), config)
    with pytest.raises(ConfigError, match=r"of process 1 is not that of process 0: constants\.py: GAIN"):
        session._agree(group(mine, other), config)


@pytest.mark.parametrize(
    ("env_id", "name"),
    [("/home/me/lab/games.py:Maze", "Maze"), ("lab.games:Maze-v0", "Maze-v0"), ("ALE/Pong-v5", "ALE/Pong-v5")],
)
def test_a_run_on_a_host_class_is_named_after_the_class(env_id, name):
    assert env_name(types.SimpleNamespace(env_backend="host", env_id=env_id)) == name
