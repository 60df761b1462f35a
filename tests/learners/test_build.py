import dataclasses

import pytest
import torch

from gpuenvs.errors import ConfigError, DeviceError, RunError
from learners import build
from learners.build import RunConfig, resolve
from learners.presets import preset
from learners.session import comparable


def test_the_preset_fills_in_and_options_and_set_override_it():
    plain = resolve("CartPole-v1", device="cpu")
    for name, value in preset("CartPole-v1", "ppo").items():
        assert plain.settings[name] == value
    changed = resolve(
        "CartPole-v1", device="cpu", num_envs=16, total_steps=5000, overrides=["gamma=0.5", "num_steps=8"]
    )
    assert changed.settings["num_envs"] == 16 and changed.total_steps == 5000
    assert changed.settings["gamma"] == 0.5 and changed.settings["num_steps"] == 8
    assert changed.settings["learning_rate"] == plain.settings["learning_rate"]


def test_options_win_over_set():
    assert resolve("CartPole-v1", device="cpu", num_envs=16, overrides=["num_envs=32"]).settings["num_envs"] == 16


def test_the_id_is_the_registered_one():
    assert resolve("gpuenvs/CartPole-v1", device="cpu").env_id == "CartPole-v1"


def test_rows_and_checkpoints_follow_the_length():
    short = resolve("CartPole-v1", device="cpu", total_steps=10_000, overrides=["num_steps=8"], num_envs=8)
    assert short.log_every == 1 and short.checkpoint_every == 500
    long = resolve("CartPole-v1", device="cpu", total_steps=10**9, overrides=["num_steps=8"], num_envs=8)
    assert long.log_every == build.MAX_LOG_EVERY
    assert resolve("CartPole-v1", device="cpu", checkpoint_every=77).checkpoint_every == 77


def test_json_and_back():
    config = resolve("Pendulum-v1", device="cpu", seed=3, overrides=["env.g=9.0", "hidden_sizes=8,8"])
    assert RunConfig.from_dict({"format": 1, "more": 2, **config.to_dict()}) == config
    with pytest.raises(RunError, match="lacks seed"):
        RunConfig.from_dict({k: v for k, v in config.to_dict().items() if k != "seed"})


def test_another_length_keeps_the_rest():
    config = resolve("CartPole-v1", device="cpu")
    longer = config.with_total_steps(10**7)
    assert longer.total_steps == 10**7
    assert dataclasses.replace(longer, settings=config.settings) == config
    with pytest.raises(ConfigError, match="total_steps"):
        config.with_total_steps(0)


def test_never_more_threads_than_allowed(monkeypatch):
    monkeypatch.setattr(build, "allowed_cores", lambda: 1)
    monkeypatch.setattr("gpuenvs.runtime.vector_env.allowed_cores", lambda: 1)
    config = resolve("CartPole-v1", device="cpu")
    assert config.threads == 1
    with pytest.raises(ConfigError, match=r"--threads must be in 1\.\.1, got 2"):
        resolve("CartPole-v1", device="cpu", threads=2)
    before = torch.get_num_threads()
    try:  # a run from a machine with more cores
        schedule = build.build(dataclasses.replace(config, threads=8, torch_threads=8))
        assert torch.get_num_threads() == 1 and schedule.env.threads == 1
    finally:
        torch.set_num_threads(before)


def test_env_params_are_numbers_of_their_kind():
    config = resolve("CartPole-v1", device="cpu", overrides=["env.gravity=5", "env.sutton_barto_reward=1"])
    assert config.env_params == {"gravity": 5.0, "sutton_barto_reward": 1.0}
    with pytest.raises(ConfigError, match="max_episode_steps"):
        build.build(resolve("CartPole-v1", device="cpu", overrides=["env.max_episode_steps=0"]))


class TestDevices:
    """With an environment side that has CUDA."""

    @pytest.fixture(autouse=True)
    def cuda_envs(self, monkeypatch):
        import gpuenvs.runtime.options as module

        names = {"auto": "cuda:0", "cuda": "cuda:0"}
        monkeypatch.setattr(module, "resolve_device", lambda device: names.get(device, device))

    def test_torch_without_it_is_an_error_that_names_torch(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch.version, "cuda", None)
        with pytest.raises(DeviceError, match=r"torch .* is a CPU-only build"):
            build.resolve_device("cuda")

    def test_auto_takes_the_cpu_then(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        assert build.resolve_device("auto") == "cpu"

    def test_both_sides(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        assert build.resolve_device("auto") == build.resolve_device("cuda") == "cuda:0"
        with pytest.raises(DeviceError):
            build.resolve_device("cuda:1")


def test_options_that_change_the_environment():
    overrides = [
        "env.exclude_current_positions_from_observation=false",
        "env.healthy_z_range=0.6,2",
        "env.ctrl_cost_weight=0.01",
    ]
    config = resolve("Hopper-v5", device="cpu", overrides=overrides, num_envs=8)
    assert config.env_params == {
        "exclude_current_positions_from_observation": False,
        "healthy_z_range": [0.6, 2],
        "ctrl_cost_weight": 0.01,
    }
    with build.build(config).env as env:
        assert env.single_observation_space.shape == (12,)
        assert env.params.healthy_z_range_low == 0.6
    assert comparable(config)  # Gymnasium's Hopper takes the same keywords
    assert not comparable(resolve("Hopper-v5", device="cpu", overrides=["env.healthy_z_range_low=0.6"]))
    with pytest.raises(ConfigError, match="healthy_z_range"):
        resolve("Hopper-v5", device="cpu", overrides=["env.healthy_z_range=3"])


@pytest.mark.parametrize(
    ("engine", "collector"), [("torch", "eager"), ("fused", "fused"), ("auto", "auto"), (None, "auto")]
)
def test_runs_from_before_there_were_collectors_go_on_as_they_were(engine, collector):
    document = resolve("CartPole-v1").to_dict()
    del document["settings"]["collector"]
    if engine is None:
        del document["settings"]["engine"]
    else:
        document["settings"]["engine"] = engine
    assert RunConfig.from_dict(document).settings["collector"] == collector
