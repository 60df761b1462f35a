"""Which placement is chosen, why, and what is said when it cannot be."""

import dataclasses

import numpy as np
import pytest
from gymnasium import spaces

import gpuenvs
from gpuenvs.errors import ConfigError, DeviceError
from learners import build, placement
from learners.build import resolve
from learners.networks import Policy
from learners.placement import (
    FITTING,
    PLACEMENTS,
    Machine,
    Placement,
    choose,
    memory_needed,
    place,
    require_memory,
)
from learners.rollout import Rollout
from learners.transfer import SLOTS, TRANSFERS
from tests.learners.tiny import tiny_config
from tests.protocol.fake_env import FakeCudaEnv
from tests.protocol.recorder import Recorder

NONE = Machine(0, "cupy is not installed; install it")
ONE = Machine(1)
TWO = Machine(2, linked=frozenset({(0, 1), (1, 0)}))
APART = Machine(2)


def test_every_transfer_has_a_placement():
    assert {kind for kinds in FITTING.values() for kind in kinds} == {*TRANSFERS}


@pytest.mark.parametrize(
    ("name", "machine", "options", "expected"),
    [
        ("cpu", NONE, {}, ("cpu", "cpu", "alias")),
        ("cpu", TWO, {}, ("cpu", "cpu", "alias")),
        ("colocated", ONE, {}, ("cuda:0", "cuda:0", "alias")),
        ("colocated", TWO, {"device": "cuda:1"}, ("cuda:1", "cuda:1", "alias")),
        ("split", TWO, {}, ("cuda:0", "cuda:1", "peer")),
        ("split", TWO, {"device": "cuda:1"}, ("cuda:1", "cuda:0", "peer")),
        ("split", TWO, {"transfer": "remote"}, ("cuda:0", "cuda:1", "remote")),
        ("split", TWO, {"transfer": "staged"}, ("cuda:0", "cuda:1", "staged")),
        ("split", APART, {}, ("cuda:0", "cuda:1", "staged")),
        ("split", ONE, {"learner_device": "cuda:0"}, ("cuda:0", "cuda:0", "peer")),
        ("host", ONE, {}, ("cpu", "cuda:0", "pinned")),
        ("host", TWO, {"device": "cuda:1"}, ("cpu", "cuda:1", "pinned")),
        ("host", TWO, {"device": "cpu", "learner_device": "cuda:1"}, ("cpu", "cuda:1", "pinned")),
    ],
)
def test_devices_and_transfers(name, machine, options, expected):
    found = place(name, machine, **options)
    assert (found.env_device, found.learner_device, found.transfer) == expected
    assert found.name == name


def test_staging_is_said_aloud():
    assert "no direct link: horizons go through pinned host memory" in place("split", APART).describe()
    assert "pinned host" not in place("split", TWO).describe()


@pytest.mark.parametrize(
    ("name", "machine", "options", "error", "message"),
    [
        ("colocatd", ONE, {}, ConfigError, r"unknown placement 'colocatd' \(did you mean colocated\?\)"),
        ("split", NONE, {}, DeviceError, "--placement split needs a CUDA device: cupy is not installed"),
        ("split", ONE, {}, DeviceError, "needs two CUDA devices, this machine has one"),
        ("split", APART, {"transfer": "peer"}, DeviceError, "cuda:0 and cuda:1 have no direct link"),
        ("split", APART, {"transfer": "remote"}, DeviceError, "use --transfer staged or auto"),
        ("split", TWO, {"device": "cuda:2"}, DeviceError, "there is no cuda:2; this machine has cuda:0, cuda:1"),
        (
            "split",
            TWO,
            {"transfer": "pinned"},
            ConfigError,
            r"does not fit --placement split \(it is for --placement host\)",
        ),
        ("split", TWO, {"transfer": "mail"}, ConfigError, "there is no such transfer"),
        ("split", TWO, {"device": "cpu"}, ConfigError, "leave --device cpu out"),
        ("colocated", TWO, {"learner_device": "cuda:1"}, ConfigError, "needs --placement split"),
        ("cpu", TWO, {"device": "cuda:0"}, ConfigError, "leave --device cuda:0 out"),
        ("cpu", TWO, {"learner_device": "cuda"}, ConfigError, "leave --learner-device cuda out"),
        ("host", TWO, {"learner_device": "tpu"}, DeviceError, "unknown device 'tpu'"),
    ],
)
def test_what_cannot_be_is_one_line_that_says_what_to_do(name, machine, options, error, message):
    with pytest.raises(error, match=message) as caught:
        place(name, machine, **options)
    assert "\n" not in str(caught.value)


# --- auto ------------------------------------------------------------------------------------------------------------


def test_without_a_gpu_there_is_nothing_to_measure():
    found, lines = choose(NONE, lambda candidate: pytest.fail("measured"))
    assert (found.name, found.why) == ("cpu", "no GPU: cupy is not installed")
    assert [line.split()[0] for line in lines] == ["colocated", "split", "host"]
    assert all("not possible" in line and "install it" not in line for line in lines)


@pytest.mark.parametrize("winner", PLACEMENTS)
def test_the_fastest_is_taken_and_all_predictions_are_told(winner):
    speed = {name: 1e6 * (k + 1) for k, name in enumerate(PLACEMENTS)} | {winner: 9e6}
    found, lines = choose(TWO, lambda candidate: speed[candidate.name])
    assert found.name == winner and "the fastest of a short trial" in found.why
    assert [line.split()[0] for line in lines] == sorted(PLACEMENTS, key=lambda name: -speed[name])
    for line in lines:
        assert f"predicted {speed[line.split()[0]]:>14,.0f} steps/s" in line


def test_a_placement_that_fails_is_told_and_passed_over():
    def trial(candidate):
        if candidate.name in ("split", "colocated"):
            raise RuntimeError(f"CUDA error in\n{candidate.name}")
        return 5.0

    found, lines = choose(TWO, trial)
    assert found.name in ("cpu", "host")
    assert "  split      failed: CUDA error in split" in lines
    with pytest.raises(DeviceError, match="every placement failed"):
        choose(TWO, lambda candidate: (_ for _ in ()).throw(RuntimeError("broken")))


def test_options_narrow_the_choice():
    found, _ = choose(TWO, lambda candidate: 1.0, device="cpu")
    assert found.name in ("cpu", "host")
    found, _ = choose(TWO, lambda candidate: pytest.fail("measured"), transfer="remote")
    assert (found.name, found.transfer, found.why) == ("split", "remote", "the only one that the options allow")
    with pytest.raises(DeviceError, match="nothing fits"):
        choose(ONE, lambda candidate: 1.0, device="cuda:3")


def test_a_trial_measures_whole_iterations():
    class Schedule:
        made = 0

        def iterate(self):
            self.made += 1
            return type("Result", (), {"metrics": {"loss": 1.0}, "env_steps": 100})

    times = iter(range(100))  # one second passes with each look
    schedule = Schedule()
    assert placement.measure(schedule, seconds=5.0, clock=lambda: float(next(times))) == 100.0
    assert schedule.made == 2 + 5


# --- memory ----------------------------------------------------------------------------------------------------------


def test_memory_is_named_for_each_device_and_part():
    config = tiny_config()
    cpu = memory_needed(config)
    assert set(cpu) == {"cpu"} and {"environments", "horizons", "weights", "updates"} <= cpu["cpu"].keys()
    split = memory_needed(config.placed(Placement("split", "cuda:0", "cuda:1", "peer")))
    assert set(split) == {"cuda:0", "cuda:1"}
    assert split["cuda:1"]["horizons"] == split["cuda:0"]["horizons to send"] == SLOTS * cpu["cpu"]["horizons"]
    remote = memory_needed(config.placed(Placement("split", "cuda:0", "cuda:1", "remote")))
    assert "horizons to send" not in remote["cuda:0"]
    assert memory_needed(config, processes=2)["cpu"]["environments"] * 2 == cpu["cpu"]["environments"]


def test_the_prediction_covers_what_is_allocated():
    schedule = build.build(config := tiny_config("Pendulum-v1"))
    parts = memory_needed(config)["cpu"]
    assert parts["environments"] == sum(array.nbytes for array in schedule.env.arrays.values())
    assert parts["horizons"] == schedule.rollout.chunk.nbytes
    assert parts["weights"] >= 5 * schedule.algo.policy.flat.nbytes
    schedule.close()


def test_schedules_that_collect_and_learn_at_once_take_more_storages_and_weights():
    sync, hts = (memory_needed(tiny_config(schedule=name))["cpu"] for name in ("sync", "hts"))
    assert hts["horizons"] == 2 * sync["horizons"] and hts["weights"] > sync["weights"]
    assert hts["updates"] == sync["updates"]


def test_the_memory_of_images():
    config = tiny_config(
        "tests.learners.host_envs:Lamps", env_backend="host", overrides=("hidden_sizes=64", "minibatches=2")
    )
    parts = memory_needed(config)["cpu"]
    policy = Policy(space := spaces.Box(0, 255, (3, 40, 40), np.uint8), spaces.Discrete(3), hidden_sizes=(64,))
    assert parts["horizons"] == Rollout.size(16, 8, space, spaces.Discrete(3)) > 2 * 16 * 8 * 3 * 40 * 40
    assert parts["weights"] == 6 * policy.flat.nbytes
    assert parts["environments"] >= 8 * 2 * 3 * 40 * 40
    units = 32 * 9 * 9 + 64 * 3 * 3 + 64 + 64  # what the layers put out for an image
    assert parts["updates"] >= 64 * 4 * 2 * units


def replaying(size=50_000):
    overrides = (f"buffer_size={size}", "num_steps=4")
    return resolve("Pendulum-v1", algo="sac", num_envs=8, device="cpu", overrides=overrides)


def test_the_memory_of_a_replay_is_what_it_takes_and_is_on_the_learners_device():
    schedule = build.build(config := replaying())
    parts = memory_needed(config)["cpu"]
    assert parts["replay"] == schedule.loop.replay.data.nbytes > 50_000 * (2 * 3 + 1 + 3) * 4
    assert parts["environments"] == sum(array.nbytes for array in schedule.env.arrays.values())
    assert parts["weights"] >= 2 * (schedule.algo.policy.flat.nbytes + 3 * schedule.algo.critics.flat.nbytes)
    assert parts["checkpoints"] >= 2 * parts["replay"]
    schedule.close()
    host = memory_needed(config.placed(Placement("host", "cpu", "cuda:0", "pinned")))
    assert host["cuda:0"]["replay"] == parts["replay"] and "replay" not in host["cpu"]
    assert host["cpu"]["checkpoints"] == parts["checkpoints"]
    without = config.schedule_settings | {"save_replay": False}
    assert "checkpoints" not in memory_needed(dataclasses.replace(config, schedule_settings=without))["cpu"]


def test_too_large_a_replay_is_one_line_with_the_settings_that_help():
    config = replaying(1_000_000)
    with pytest.raises(DeviceError, match=r"replay .*--set buffer_size= or --set save_replay=false$") as caught:
        require_memory(config, lambda device: 1000)
    assert "\n" not in str(caught.value)
    gpu = config.placed(Placement("host", "cpu", "cuda:0", "pinned"))
    with pytest.raises(DeviceError, match=r"cuda:0 .*--set buffer_size=$"):
        require_memory(gpu, lambda device: None if device == "cpu" else 1000)


def test_too_little_memory_is_one_line_before_anything_is_made():
    config = tiny_config().placed(Placement("colocated", "cuda:0", "cuda:0", "alias"))
    with pytest.raises(
        DeviceError, match=r"cuda:0 has 1 MiB free and the run needs about .* use fewer --num-envs"
    ) as caught:
        require_memory(config, lambda device: 1000)
    assert "\n" not in str(caught.value)
    assert require_memory(config, lambda device: None)[0].startswith("memory: about ")
    with pytest.raises(DeviceError, match="GiB free and the run needs about"):
        resolve("CartPole-v1", device="cpu", num_envs=2 * 10**9)


# --- from the options to the run --------------------------------------------------------------------------------------


def resolved(**options):
    lines = []
    return resolve("CartPole-v1", total_steps=1000, say=lines.append, **options), lines


@pytest.mark.parametrize("options", [{"device": "cpu"}, {"placement": "cpu"}, {"placement": "auto", "device": "cpu"}])
def test_the_cpu(options):
    config, lines = resolved(**options)
    assert (config.placement, config.device, config.env_device, config.transfer) == ("cpu", "cpu", "cpu", "alias")
    assert lines[0].startswith("placement cpu: environments and learner on cpu")


class TestTwoGpus:
    @pytest.fixture(autouse=True)
    def machine(self, monkeypatch):
        monkeypatch.setattr(build, "this_machine", lambda: TWO)
        monkeypatch.setattr(build, "free_memory", lambda device: 2**40)

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({"placement": "split"}, ("split", "cuda:0", "cuda:1", "peer")),
            ({"transfer": "remote"}, ("split", "cuda:0", "cuda:1", "remote")),
            ({"transfer": "pinned"}, ("host", "cpu", "cuda:0", "pinned")),
            ({"learner_device": "cuda:1"}, ("split", "cuda:0", "cuda:1", "peer")),
            ({"device": "cpu", "learner_device": "cuda:1"}, ("host", "cpu", "cuda:1", "pinned")),
        ],
    )
    def test_the_options_say_which(self, options, expected):
        config, lines = resolved(**options)
        assert (config.placement, config.env_device, config.device, config.transfer) == expected
        assert any(line.startswith("memory: about ") for line in lines)
        assert build.RunConfig.from_dict(config.to_dict()) == config

    def test_auto_measures_each(self, monkeypatch):
        seen = []
        monkeypatch.setattr(build, "_trial", lambda config: seen.append(config.placement) or float(len(seen)))
        config, lines = resolved(placement="auto")
        assert seen == [*PLACEMENTS] and config.placement == "host"
        assert lines[0].startswith("placement host:") and sum("predicted" in line for line in lines) == 4

    def test_several_processes_have_one_gpu_each(self, monkeypatch):
        monkeypatch.setattr(build, "place", lambda: object())
        with pytest.raises(ConfigError, match="several processes train with one GPU each"):
            resolved(placement="split")


@pytest.mark.parametrize(
    ("name", "env_device", "learner_device", "transfer"),
    [
        ("split", "cuda:0", "cuda:1", "peer"),
        ("split", "cuda:1", "cuda:0", "remote"),
        ("host", "cpu", "cuda:1", "pinned"),
    ],
)
def test_a_placed_run_is_built_as_placed(monkeypatch, name, env_device, learner_device, transfer):
    make = gpuenvs.make

    def fake_make(env_id, num_envs, device, seed, **options):
        if device == "cpu":
            return make(env_id, num_envs, device=device, seed=seed, **options)
        return FakeCudaEnv(machine, env_id, num_envs, int(device[-1]), seed)

    with Recorder(gpus=2) as machine:
        monkeypatch.setattr(gpuenvs, "make", fake_make)
        monkeypatch.setattr(build, "resolve_device", lambda device: device)
        monkeypatch.setattr(build, "this_machine", lambda: TWO)
        config = tiny_config(overrides=["collector=eager"])
        schedule = build.build(config.placed(Placement(name, env_device, learner_device, transfer)))
        assert schedule.transfer.kind == transfer
        assert (str(schedule.transfer.policy.device), str(schedule.algo.device)) == (env_device, learner_device)
        assert schedule.iterate().env_steps == 8 * 16
        schedule.close()
        if name == "split":  # the same run where the two have no link any more
            monkeypatch.setattr(build, "this_machine", lambda: APART)
            with pytest.raises(DeviceError, match="no direct link"):
                build.build(config.placed(Placement(name, env_device, learner_device, transfer)))
    assert machine.checker.violations == []


def test_a_run_of_an_older_version_was_on_one_device():
    document = tiny_config().to_dict()
    for name in ("placement", "env_device", "transfer"):
        del document[name]
    config = build.RunConfig.from_dict(document)
    assert (config.placement, config.env_device, config.transfer) == ("cpu", "cpu", "alias")
    moved = config.on_device("cuda:1")
    assert (moved.placement, moved.device, moved.env_device, moved.transfer) == (
        "colocated",
        "cuda:1",
        "cuda:1",
        "alias",
    )
