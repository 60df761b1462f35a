import json
import math
import signal
import threading

import pytest
import torch

from gpuenvs.errors import CheckpointError, ConfigError, DeviceError, NonFiniteError, RunError
from learners import checkpoint, runs, session
from learners.build import RunConfig, build, load_policy, resolve
from learners.interrupts import StopRequest
from learners.runs import RunDirectory
from learners.train import LoopSettings, Trainer
from tests.learners.tiny import ITERATION, nan_reward_env, stable_rows, tiny_config, weights


def train(config, path, stop_after=None):
    """A whole run, or one stopped after so many iterations."""
    with session.begin(config, path) as begun:
        return begun.run, go(begun.trainer, stop_after)


def resume(path, total_steps=None, stop_after=None):
    with session.resume(path, total_steps) as resumed:
        return resumed.run, go(resumed.trainer, stop_after)


def go(trainer, stop_after):
    stop = StopRequest()
    seen = []

    def on_progress(progress):
        seen.append(progress.step)
        if len(seen) == stop_after:
            stop.request(signal.SIGINT)

    return trainer.train(stop, on_progress)


def steps_of(run):
    return [step for step, _ in checkpoint.list_steps(run.checkpoints)]


# --- what a run leaves behind ------------------------------------------------------------------------------------


def test_a_run_records_everything_that_made_it(tmp_path):
    run, outcome = train(tiny_config(seed=7, overrides=["env.gravity=9"]), tmp_path / "run")
    config = run.read_config()
    assert outcome.step == config["settings"]["total_steps"] == 6 * ITERATION and outcome.signum == 0
    assert config["seed"] == 7 and config["device"] == "cpu" and config["dtype"] == "float32"
    assert config["env_params"] == {"gravity": 9.0} and config["env_params_resolved"]["masspole"] == 0.1
    assert {"python", "numpy", "torch", "numba", "gymnasium"} <= config["versions"].keys()
    assert [int(row[0]) for row in stable_rows(run)[1:]] == [ITERATION * n for n in range(1, 7)]
    assert steps_of(run)[-1] == outcome.step and outcome.checkpoint == run.find_checkpoint()
    assert any(run.tensorboard.iterdir())


def test_keeps_the_last_checkpoints_and_the_best(tmp_path):
    run, _ = train(tiny_config(iterations=12, keep_checkpoints=2), tmp_path / "run")
    assert len(steps_of(run)) in (2, 3)
    assert steps_of(run)[-2:] == [11 * ITERATION, 12 * ITERATION]


def test_checkpoints_are_made_where_asked(tmp_path):
    run, _ = train(tiny_config(checkpoint_every=4 * ITERATION, keep_checkpoints=9), tmp_path / "run")
    assert steps_of(run) == [0, 4 * ITERATION, 6 * ITERATION]


def test_quick_runs_wait_between_checkpoints(tmp_path):
    run, _ = train(tiny_config(checkpoint_every=None, keep_checkpoints=9), tmp_path / "run")
    assert run.read_config()["checkpoint_min_seconds"] == 2.0
    assert steps_of(run)[0] == 0 and steps_of(run)[-1] == 6 * ITERATION


@pytest.mark.parametrize(
    ("steps", "seconds", "due"), [(9, 5, False), (10, 5, True), (10, 1, False), (99, 1.9, False), (0, 60, True)]
)
def test_when_a_checkpoint_is_due(steps, seconds, due):
    trainer = Trainer.__new__(Trainer)
    trainer.settings = LoopSettings(total_steps=1000, log_every=1, checkpoint_every=10, checkpoint_min_seconds=2.0)
    assert trainer._checkpoint_due(steps, seconds) is due


def test_a_checkpoint_is_due_by_time_too(tmp_path):
    config = tiny_config(checkpoint_every=10**9, keep_checkpoints=9)
    with session.begin(config, tmp_path / "run") as begun:
        loop = session.loop_settings(config)
        begun.trainer.settings = type(loop)(**{**vars(loop), "checkpoint_seconds": 0.0})
        begun.trainer.train()
    assert len(steps_of(begun.run)) == 7


# --- exactness ---------------------------------------------------------------------------------------------------

CASES = {
    "cartpole": ("CartPole-v1", "ppo", []),
    "cartpole fused": ("CartPole-v1", "ppo", ["hidden_sizes=16", "engine=fused"]),
    "cartpole a2c": ("CartPole-v1", "a2c", []),
    "pendulum, all normalisers": ("Pendulum-v1", "ppo", ["norm_obs=true", "norm_reward=true", "noise_correlation=0.5"]),
}


def case_config(case, **options):
    env_id, algo, overrides = CASES[case]
    if algo == "a2c":
        small = ["num_steps=16", "hidden_sizes=8", "engine=torch"]
        options = {"num_envs": 8, "total_steps": 6 * ITERATION, "device": "cpu", "checkpoint_every": ITERATION}
        return resolve(env_id, algo=algo, overrides=small, **options)
    return tiny_config(env_id, algo=algo, overrides=overrides, **options)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("stop_after", [1, 4])
def test_stopped_and_resumed_equals_uninterrupted(tmp_path, case, stop_after):
    config = case_config(case)
    whole, _ = train(config, tmp_path / "whole")
    parts, outcome = train(config, tmp_path / "parts", stop_after)
    assert outcome.signum == signal.SIGINT and outcome.step == stop_after * ITERATION
    resume(parts.path)
    assert weights(parts) == weights(whole)
    assert stable_rows(parts) == stable_rows(whole)


def test_a_signal_in_the_last_iteration_is_not_forgotten(tmp_path):
    _, outcome = train(tiny_config(), tmp_path / "run", stop_after=6)
    assert outcome.step == 6 * ITERATION and outcome.signum == signal.SIGINT


def test_resuming_many_times_inside_a_logging_interval(tmp_path):
    config = tiny_config(iterations=8)
    config = RunConfig(**{**vars(config), "log_every": 3})
    whole, _ = train(config, tmp_path / "whole")
    parts, _ = train(config, tmp_path / "parts", 1)
    for _ in range(6):
        resume(parts.path, stop_after=1)
    resume(parts.path)
    assert weights(parts) == weights(whole)
    assert stable_rows(parts) == stable_rows(whole)
    assert [int(row[0]) // ITERATION for row in stable_rows(whole)[1:]] == [3, 6, 8]


def test_writing_and_watching_do_not_touch_the_weights(tmp_path):
    config = tiny_config()
    run, _ = train(config, tmp_path / "run")
    schedule = build(config)
    for _ in range(6):
        schedule.iterate()
    assert checkpoint.weights_hash(schedule.algo.policy.state_dict().items()) == checkpoint.weights_hash(
        checkpoint.load(run.find_checkpoint())["schedule"]["algo"]["policy"].items()
    )


def test_seeds_matter_and_threads_do_not(tmp_path):
    hashes = {
        name: weights(train(tiny_config(**options), tmp_path / name)[0])
        for name, options in {"one": {"threads": 1}, "again": {}, "other": {"seed": 1}}.items()
    }
    assert hashes["one"] == hashes["again"] != hashes["other"]


def test_rows_after_the_checkpoint_are_cut_on_resume(tmp_path):
    whole, _ = train(tiny_config(keep_checkpoints=9), tmp_path / "whole")
    expected = weights(whole), stable_rows(whole)
    for step, path in checkpoint.list_steps(whole.checkpoints):
        if step > 2 * ITERATION:
            path.unlink()
    with open(whole.metrics_file, "a") as file:
        file.write("9999,half a ro")
    resume(whole.path)
    assert (weights(whole), stable_rows(whole)) == expected


def test_more_steps_go_on_from_the_end(tmp_path):
    run, _ = train(tiny_config(iterations=3), tmp_path / "run")
    _, outcome = resume(run.path, total_steps=5 * ITERATION)
    assert outcome.step == 5 * ITERATION
    assert RunConfig.from_dict(run.read_config()).total_steps == 5 * ITERATION
    assert [int(row[0]) // ITERATION for row in stable_rows(run)[1:]] == [1, 2, 3, 4, 5]


def test_a_run_killed_before_its_first_checkpoint_starts_over(tmp_path):
    config = tiny_config()
    whole, _ = train(config, tmp_path / "whole")
    expected = weights(whole)
    for _, path in checkpoint.list_steps(whole.checkpoints):
        path.unlink()
    resume(whole.path)
    assert weights(whole) == expected


# --- what goes wrong ---------------------------------------------------------------------------------------------


def one_line(error):
    text = str(error.value)
    assert "\n" not in text
    return text


def test_nothing_left_to_do(tmp_path):
    run, _ = train(tiny_config(iterations=1), tmp_path / "run")
    with pytest.raises(RunError, match=r"nothing left to do: .* is at step 128 of 128; give a larger --total-steps"):
        resume(run.path)


def test_a_second_process_in_the_same_run(tmp_path):
    config = tiny_config(iterations=1)
    with session.begin(config, tmp_path / "run") as begun:
        with pytest.raises(RunError, match="in use by another gpurl"), session.resume(begun.run.path):
            pass
        with pytest.raises(RunError, match="already holds a run"), session.begin(config, begun.run.path):
            pass


def test_nan_reward_stops_and_keeps_the_last_good_checkpoint(tmp_path):
    config = tiny_config(nan_reward_env(), iterations=40)
    with pytest.raises(NonFiniteError, match="NaNPole-v0 returned a NaN or infinite reward") as error:
        train(config, tmp_path / "run")
    run = RunDirectory(tmp_path / "run")
    assert str(run.find_checkpoint()) in one_line(error)
    state = checkpoint.load(run.find_checkpoint())
    checkpoint.require_finite(state["schedule"]["algo"]["policy"].items(), "it")


def test_nan_weights_never_reach_a_checkpoint(tmp_path):
    with session.begin(tiny_config(), tmp_path / "run") as begun:
        policy = begun.trainer.schedule.algo.policy

        def poison(progress):
            if progress.iteration == 3:
                with torch.no_grad():
                    next(policy.parameters())[0] = math.nan

        with pytest.raises(NonFiniteError, match="holds NaN or infinity") as error:
            begun.trainer.train(on_progress=poison)
    assert steps_of(begun.run)[-1] == 2 * ITERATION
    assert one_line(error).endswith(str(begun.run.find_checkpoint()))


def test_a_full_disk_stops_with_the_last_checkpoint_named(tmp_path, monkeypatch):
    def full(path, *args, **options):
        if path.name.endswith(f"{3 * ITERATION}.safetensors"):
            raise RunError(f"cannot write {path}: No space left on device; free some space and try again")
        save(path, *args, **options)

    save = checkpoint.save
    monkeypatch.setattr(checkpoint, "save", full)
    with pytest.raises(RunError, match="No space left on device") as error:
        train(tiny_config(), tmp_path / "run")
    run = RunDirectory(tmp_path / "run")
    assert one_line(error).endswith(f"last good checkpoint: {run.find_checkpoint(2 * ITERATION)}")
    monkeypatch.undo()
    whole, _ = train(tiny_config(), tmp_path / "whole")
    resume(run.path)
    assert weights(run) == weights(whole)


@pytest.mark.parametrize("damage", ["cut", "altered", "pickle"])
def test_a_damaged_latest_checkpoint_is_named_and_kept(tmp_path, damage):
    run, _ = train(tiny_config(), tmp_path / "run", stop_after=2)
    path = run.find_checkpoint()
    content = path.read_bytes()
    altered = content[:-20] + bytes(byte ^ 1 for byte in content[-20:])
    path.write_bytes({"cut": content[:-100], "altered": altered, "pickle": b"\x80\x04pickle"}[damage])
    with pytest.raises(CheckpointError) as error:
        resume(run.path)
    assert str(path) in one_line(error) and path.exists()
    path.unlink()  # the way back that the message names
    assert resume(run.path)[1].step == 6 * ITERATION


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    run, _ = train(tiny_config(), tmp_path / "run", stop_after=1)
    other, _ = train(tiny_config("Pendulum-v1"), tmp_path / "other", stop_after=1)
    run.find_checkpoint().write_bytes(other.find_checkpoint().read_bytes())
    with pytest.raises(CheckpointError, match="is of Pendulum-v1 ppo sync, this run is CartPole-v1 ppo sync"):
        resume(run.path)


def test_a_checkpoint_of_another_size_is_refused(tmp_path):
    run, _ = train(tiny_config(), tmp_path / "run", stop_after=1)
    other, _ = train(tiny_config(overrides=["hidden_sizes=16"]), tmp_path / "other", stop_after=1)
    run.find_checkpoint().write_bytes(other.find_checkpoint().read_bytes())
    with pytest.raises(CheckpointError, match=r"does not fit the run's config .*; was config.json changed\?") as error:
        resume(run.path)
    one_line(error)


def test_bad_input_leaves_no_folder(tmp_path):
    for options, error in (
        ({"device": "cuda"}, DeviceError),
        ({"overrides": ["gama=0.9"]}, ConfigError),
        ({"overrides": ["env.gravitas=1"]}, ConfigError),
        ({"overrides": ["env.gravity"]}, ConfigError),
        ({"overrides": ["env.gravity=heavy"]}, ConfigError),
        ({"algo": "dqn"}, ConfigError),
        ({"schedule": "later"}, ConfigError),
        ({"seed": -1}, ConfigError),
        ({"threads": 10**6}, ConfigError),
        ({"torch_threads": 0}, ConfigError),
        ({"iterations": 0}, ConfigError),
    ):
        if error is DeviceError and torch.cuda.is_available():
            continue
        with pytest.raises(error) as caught:
            train(tiny_config(**options), tmp_path / "run")
        one_line(caught)
    assert not list(tmp_path.iterdir())


def test_a_config_from_another_version_is_one_line(tmp_path):
    run, _ = train(tiny_config(iterations=1), tmp_path / "run")
    config = run.read_config()
    for change, message in (({"settings": {"gone": 1}}, "gone"), ({"seed": None}, None)):
        document = {**config, **change}
        if message is None:
            del document["seed"]
            message = "lacks seed"
        run.config_file.write_text(json.dumps(document))
        with pytest.raises(RunError, match=message) as error:
            resume(run.path)
        one_line(error)


# --- policies and signals ----------------------------------------------------------------------------------------


def test_a_policy_loads_from_a_checkpoint_and_evaluates(tmp_path):
    run, _ = train(tiny_config(), tmp_path / "run")
    directory, config, policy, step = session.open_policy(run.path)
    assert directory.path == run.path and step == 6 * ITERATION
    result = session.evaluate_run(config, policy, 4)
    assert result.on == "gymnasium"
    saved = json.loads(session.save_evaluation(run, result, step).read_text())
    assert saved["returns"] == list(result.returns) and saved["step"] == step


def test_open_policy_takes_a_checkpoint_file_or_a_step(tmp_path):
    run, _ = train(tiny_config(), tmp_path / "run")
    file = run.find_checkpoint(5 * ITERATION)
    assert session.open_policy(file)[3] == session.open_policy(run.path, str(5 * ITERATION))[3] == 5 * ITERATION


def test_params_move_the_closing_evaluation_to_gpuenvs(tmp_path):
    run, _ = train(tiny_config(overrides=["env.gravity=5", "env.max_episode_steps=30"]), tmp_path / "run")
    _, config, policy, _ = session.open_policy(run.path)
    result = session.evaluate_run(config, policy, 4)
    assert result.on == "gpuenvs" and max(result.lengths) <= 30


def test_load_policy_checks_the_kind(tmp_path):
    run, _ = train(tiny_config(iterations=1), tmp_path / "run")
    state = checkpoint.load(run.find_checkpoint())
    with pytest.raises(CheckpointError, match="this run is Pendulum-v1"):
        load_policy(tiny_config("Pendulum-v1"), state)


def test_signals_become_a_request_and_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM)
    told = []
    with StopRequest(told.append) as stop:
        assert stop.signum == 0
        signal.raise_signal(signal.SIGTERM)
        assert stop.signum == signal.SIGTERM and told == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is before


def test_stop_request_works_outside_the_main_thread():
    seen = []

    def work():
        with StopRequest() as stop:
            stop.request()
            seen.append(stop.signum)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.SIGINT]


def test_resume_needs_a_run(tmp_path):
    with pytest.raises(RunError, match="no run at"), session.resume(tmp_path / "nothing"):
        pass
    assert isinstance(runs.open_run(train(tiny_config(iterations=1), tmp_path / "a")[0].path), RunDirectory)
