"""Several processes that train as one: the same rows, the same weights, one run directory, one end."""

import dataclasses
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gpuenvs.errors import CheckpointError, ConfigError, DeviceError, GpurlError, ProcessError, RunError
from learners import checkpoint, distributed, session
from learners.distributed import Group, Place
from learners.metrics import read_rows
from learners.parallel import own_state
from learners.runs import RunDirectory
from tests.learners import parallel_jobs as jobs
from tests.learners.processes import Team, free_port, together
from tests.learners.tiny import stable_rows, tiny_config

UPDATES = 3
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def both():
    """`parallel_jobs.all_cases` of both processes."""
    return together(jobs.all_cases, UPDATES)


@pytest.mark.parametrize("case, engine", jobs.KINDS)
def test_two_halves_collect_the_rows_of_one_whole(both, case, engine):
    whole = jobs.collected(jobs.make(case, engine), 3)
    halves = [found[case, engine]["rows"] for found in both]
    for name, rows in whole.items():
        joined = np.concatenate([half[name] for half in halves], axis=1)
        if rows.dtype == np.float32 and engine == "torch":  # a product of matrices rounds by its number of rows
            np.testing.assert_allclose(joined, rows, rtol=1e-4, atol=1e-4, err_msg=name)
        else:
            np.testing.assert_array_equal(joined, rows, err_msg=name)


@pytest.mark.parametrize("case, engine", jobs.KINDS)
def test_both_hold_the_same_weights_after_every_gradient_step(both, case, engine):
    first, second = (found[case, engine] for found in both)
    steps = UPDATES * (8 if jobs.CASES[case][1] == "ppo" else 1)
    assert len(first["hashes"]) == steps == first["verified"] == second["verified"]
    assert first["hashes"] == second["hashes"]
    assert len(set(first["hashes"])) == steps  # and every step changed them
    for name, value in first["norm"].items():
        np.testing.assert_array_equal(value, second["norm"][name], err_msg=name)
    assert first["norm"]["count"] == UPDATES * 64 * 16  # the rows of both
    for ours, theirs in zip(first["metrics"], second["metrics"], strict=True):
        assert {k: v for k, v in ours.items() if "lag" not in k} == {k: v for k, v in theirs.items() if "lag" not in k}


def interleaved(loop, size):
    """Let one process draw the minibatches that `size` processes draw together."""
    algo, config = loop.algo, loop.config

    def order(rows):
        share = rows // size
        parts = []
        for rank in range(size):
            part = object.__new__(type(algo))
            part.__dict__.update(algo.__dict__, group=Group(Place(rank, size, rank, size)))
            parts.append(type(algo)._order(part, share))
        bounds = parts[0][1]
        envs = config.num_envs // size
        whole = []
        for first, stop in itertools.pairwise(bounds):
            for rank, (own, _) in enumerate(parts):
                chosen = own[first:stop]
                whole.append(chosen // envs * config.num_envs + chosen % envs + rank * envs)
        return torch.cat(whole), [size * bound for bound in bounds]

    return order


@pytest.mark.parametrize("case, engine", [kind for kind in jobs.KINDS if kind[1] == "torch"])
def test_two_processes_learn_what_one_learns_from_all_rows(both, case, engine):
    loop = jobs.make(case, engine)
    if hasattr(loop.algo, "_order"):
        loop.algo._order = interleaved(loop, 2)
    start = loop.algo.policy.flat.clone()
    metrics = [{k: float(v) for k, v in loop.iterate().metrics.items()} for _ in range(UPDATES)]
    found = both[0][case, engine]
    moved = float((loop.algo.policy.flat - start).abs().max())
    np.testing.assert_allclose(found["weights"], loop.algo.policy.flat.numpy(), atol=0.01 * moved)
    for name in ("policy_loss", "value_loss", "entropy", "explained_variance", "value_mean", "actor_grad_norm"):
        ours, theirs = ([row[name] for row in rows] for rows in (found["metrics"], metrics))
        np.testing.assert_allclose(ours, theirs, rtol=0.02, atol=2e-3, err_msg=name)


@pytest.mark.parametrize("case", ["ppo", "a2c"])
def test_fused_kernels_make_the_same_steps(both, case):
    start = jobs.make(case, "torch").algo.policy.flat.numpy()
    fused, plain = (both[1][case, engine] for engine in ("fused", "torch"))
    moved = np.abs(plain["weights"] - start).max()
    np.testing.assert_allclose(fused["weights"], plain["weights"], atol=0.01 * moved)
    for ours, theirs in zip(fused["metrics"], plain["metrics"], strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            np.testing.assert_allclose(ours[name], value, rtol=0.02, atol=2e-3, err_msg=name)


def test_a_process_whose_weights_went_astray_is_noticed_by_both():
    with Team(jobs.one_changes_its_weights) as team:
        errors = team.results()
        assert team.exit_codes() == [1, 1]
    for rank, error in enumerate(errors):
        assert isinstance(error, RunError)
        assert f"step 7: the weights of process {1 - rank} differ from those of process {rank}" in str(error)


def test_a_stopped_run_goes_on_to_the_same_weights(tmp_path):
    config = tiny_config(iterations=6, overrides=("norm_obs=true", "collector=eager"))
    (whole, first_hash), (theirs, second_hash) = together(jobs.run, config, tmp_path / "whole")
    assert first_hash == second_hash and whole["step"] == theirs["step"] == config.total_steps
    outcomes = together(jobs.run, config, tmp_path / "stopped", 3, 1)
    assert [(outcome["step"], outcome["signum"]) for outcome, _ in outcomes] == [(4 * 128, signal.SIGINT)] * 2
    resumed = together(jobs.run, config, tmp_path / "stopped", None, None, True)
    assert [digest for _, digest in resumed] == [first_hash] * 2
    runs = [RunDirectory(tmp_path / name) for name in ("whole", "stopped")]
    assert stable_rows(runs[0]) == stable_rows(runs[1])
    states = [checkpoint.load(run.find_checkpoint())["schedule"]["collector"]["env"] for run in runs]
    for name, value in states[0].items():
        np.testing.assert_array_equal(value, states[1][name], err_msg=name)
    rows = read_rows(runs[0].metrics_file)
    assert rows["step"][-1] == config.total_steps and rows["episodes"][-1] > 0
    assert runs[0].read_config()["processes"] == 2
    with pytest.raises(CheckpointError, match="made by 2 processes"), session.resume(runs[1].path, 9999):
        pass


@pytest.mark.parametrize("action, code", [("raise", 1), ("SIGKILL", -signal.SIGKILL)])
@pytest.mark.parametrize("rank", [0, 1])
def test_the_end_of_one_is_the_end_of_both(rank, action, code):
    with Team(jobs.exchange_until, rank, action) as team:
        results, codes = team.results(), team.exit_codes()
    assert codes[rank] == code and codes[1 - rank] == 1
    told = results[1 - rank]
    assert isinstance(told, ProcessError)
    if action == "raise":
        assert isinstance(results[rank], ValueError)
        assert str(told) == f"process {rank} of 2 failed: ValueError: a wheel came off"
    else:
        assert "lost the connection" in str(told) or "is lost" in str(told)


def test_a_process_that_waits_for_something_else_is_ended_as_well():
    with Team(jobs.wait_for_ever, 1) as team:
        assert team.exit_codes() == [1, 1]


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"num_envs": 9, "total_steps": 900}, "num_envs=9 cannot be shared equally by 2 processes; use 8 or 10"),
        ({"num_envs": 2, "total_steps": 900, "num_steps": 2, "minibatches": 3}, "minibatches=3"),
    ],
)
def test_what_two_processes_cannot_share_is_refused(tmp_path, changes, words):
    config = tiny_config()
    config = dataclasses.replace(config, settings={**config.settings, **changes})
    with Team(jobs.run, config, tmp_path / "run") as team:
        errors = team.results()
    assert all(isinstance(error, ConfigError) and words in str(error) for error in errors)
    assert not (tmp_path / "run").exists()


def test_torchrun_trains_one_run_and_one_process_prints(tmp_path):
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())),
        *(
            "-m",
            "cli.main",
            "train",
            "CartPole-v1",
            "-o",
            str(tmp_path / "run"),
            "-n",
            "8",
            "-t",
            "512",
            "--device",
            "cpu",
        ),
        *(
            "--set",
            "num_steps=16",
            "--set",
            "hidden_sizes=16",
            "--set",
            "engine=torch",
            "--set",
            "collector=eager",
            "--eval-episodes",
            "2",
        ),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["trained", "eval", "run"]
    assert "2 processes: 4 of the 8 environments each" in done.stderr
    assert done.stderr.count("run: ") == 1


class Launched:
    """Environment variables of a launcher."""

    def __init__(self, monkeypatch):
        self.monkeypatch = monkeypatch

    def __call__(self, **variables):
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            self.monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            self.monkeypatch.setenv(name, str(value))


@pytest.fixture
def launched(monkeypatch):
    return Launched(monkeypatch)


WHERE = {"MASTER_ADDR": "localhost", "MASTER_PORT": 1}


def test_the_place_of_a_process_is_read_from_the_launcher(launched):
    launched()
    assert distributed.place() is None and distributed.local_size() == 1
    launched(WORLD_SIZE=1, RANK=0)
    assert distributed.place() is None
    launched(WORLD_SIZE=8, RANK=5, LOCAL_RANK=1, LOCAL_WORLD_SIZE=4, **WHERE)
    assert distributed.place() == Place(5, 8, 1, 4)
    launched(WORLD_SIZE=2, RANK=1, **WHERE)
    assert distributed.place() == Place(1, 2, 1, 2)


@pytest.mark.parametrize(
    "variables, words",
    [
        ({"WORLD_SIZE": "two", "RANK": 0, **WHERE}, "WORLD_SIZE=two must be an integer"),
        ({"WORLD_SIZE": 2, **WHERE}, "RANK is not"),
        ({"WORLD_SIZE": 2, "RANK": 2, **WHERE}, "RANK=2 must be an integer in 0..1"),
        ({"WORLD_SIZE": 2, "RANK": 0, "MASTER_ADDR": "localhost"}, "MASTER_PORT is not"),
        ({"WORLD_SIZE": 2, "RANK": 0, "MASTER_ADDR": "localhost", "MASTER_PORT": "x"}, "MASTER_PORT=x"),
    ],
)
def test_half_of_a_launcher_is_refused(launched, variables, words):
    launched(**variables)
    with pytest.raises(ConfigError, match=words):
        distributed.place()


def test_each_process_takes_a_gpu_of_its_own(launched):
    assert distributed.local_device("cuda:1") == "cuda:1"
    launched(WORLD_SIZE=4, RANK=3, LOCAL_RANK=1, LOCAL_WORLD_SIZE=2, **WHERE)
    assert distributed.local_device("cuda") == "cuda:1"
    assert distributed.local_device("cpu") == "cpu"
    with pytest.raises(DeviceError, match="2 processes"):
        distributed.local_device("cuda:0")
    launched(WORLD_SIZE=2, RANK=1, LOCAL_RANK=0, LOCAL_WORLD_SIZE=1, **WHERE)  # one process on each of two machines
    assert distributed.local_device("cuda:1") == "cuda:1"


def test_who_prints_errors(launched, monkeypatch):
    monkeypatch.setattr(distributed, "_met", False)
    assert not distributed.silent()
    launched(WORLD_SIZE=4, RANK=2, LOCAL_RANK=0, LOCAL_WORLD_SIZE=2, **WHERE)
    assert not distributed.silent()  # the first of its machine
    launched(WORLD_SIZE=4, RANK=3, LOCAL_RANK=1, LOCAL_WORLD_SIZE=2, **WHERE)
    assert distributed.silent() and not distributed.silent(internal=True)
    monkeypatch.setattr(distributed, "_met", True)
    assert distributed.silent() and distributed.silent(internal=True)
    launched(WORLD_SIZE=4, RANK=0, LOCAL_RANK=0, LOCAL_WORLD_SIZE=2, **WHERE)
    assert not distributed.silent()


@pytest.mark.parametrize("made, size", [(2, 1), (1, 2), (4, 2)])
def test_a_checkpoint_of_another_number_of_processes_is_refused(made, size):
    state = {"schedule": {}, **({"processes": {"count": made, "parts": []}} if made > 1 else {})}
    group = Group(Place(0, size, 0, size)) if size > 1 else None
    with pytest.raises(CheckpointError) as error:
        own_state(state, group)
    assert "made by" in str(error.value) and "\n" not in str(error.value)


def test_each_process_takes_its_part_of_a_checkpoint():
    norm = {"mean": torch.tensor(3.0), "running": torch.tensor([1.0])}
    schedule = {"algo": {"reward_norm": norm, "version": 2}, "collector": "first", "env_steps": 8}
    part = {"collector": "second", "env_steps": 8, "running": torch.tensor([2.0])}
    state = {"schedule": schedule, "trainer": {}, "processes": {"count": 2, "parts": [part]}}
    first, second = (own_state(state, Group(Place(rank, 2, rank, 2)))["schedule"] for rank in range(2))
    assert first == schedule
    assert second["collector"] == "second"
    assert second["algo"]["reward_norm"] == {"mean": norm["mean"], "running": part["running"]}
    with pytest.raises(GpurlError, match="does not fit"):
        own_state({**state, "processes": {"count": 2, "parts": []}}, Group(Place(1, 2, 1, 2)))
