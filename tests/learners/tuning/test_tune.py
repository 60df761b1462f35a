"""A whole tuning on a machine of our making: what is measured, what is tried, and what is decided from it."""

import itertools
import json
import math

import pytest

from gpuenvs.errors import ConfigError, DeviceError, RunError
from learners.build import resolve
from learners.tuning import file
from learners.tuning.model import DEFAULT
from learners.tuning.tune import Meters, best_split, decision_of, tune
from learners.tuning.verdict import Point, Trial


class Machine:
    """An imagined machine: an update costs 1 ms + 4 us a row, a horizon 50 us + 1 us a step. Its clock goes by what is done.

    `helps` says how many times as fast as by its work alone a training learns.
    """

    def __init__(self, helps=lambda config: 1.0, cores=2):
        self.helps, self.now, self.trained = helps, 0.0, []
        self.meters = Meters(
            self.sampling, self.updating, self.training, self.train,
            free=lambda device: None, cores=lambda: cores, clock=lambda: self.now,
        )  # fmt: skip

    def sampling(self, config):
        self.now += 0.3
        rows = config.settings["num_envs"] * config.settings["num_steps"]
        return rows / (50e-6 + 1e-6 * rows)

    def updating(self, config):
        self.now += 0.3
        batch = config.settings["batch_size"]
        return batch / (1e-3 + 4e-6 * batch)

    def training(self, config):
        self.now += 0.3
        if config.algo == "ppo":
            rows = config.settings["num_envs"] * config.settings["num_steps"]
            return rows / (1e-3 + 1e-6 * rows)
        return 1000.0 * {0: 1.0, 1: 1.5}.get(config.schedule_settings.get("sampler_cores", 0), 0.5)

    def train(self, config, name, seconds):
        self.now += 1.3 * seconds
        if seconds > 0.1:  # else it is to load what is compiled
            self.trained.append((name, config))
        points = tuple(
            Point(t, round(1000 * t), 100 * (1 - math.exp(-self.helps(config) * t / seconds)), 0.1)
            for t in (seconds * k / 12 for k in range(13))
        )
        return Trial(name, config.seed, seconds, points)


def sac(*overrides, schedule="sync", **options):
    return resolve("Pendulum-v1", algo="sac", schedule=schedule, device="cpu", overrides=overrides, **options)


PLAIN = ("num_envs=16", "num_steps=1", "batch_size=256", "update_to_data=256")


def test_a_tuning_finds_what_learns_sooner():
    machine = Machine(lambda config: 3.0 if config.settings["update_to_data"] < 256 else 1.0)
    config, lines = sac(*PLAIN, seed=7), []
    found = tune(config, 45, say=lines.append, meters=machine.meters)
    assert machine.now <= 45 + 2  # warming up comes on top
    decision = found["decision"]
    assert decision["chosen"] != DEFAULT and decision["settings"]["update_to_data"] < 256
    # Every candidate with one seed, the best and the default with another; neither is the run's own.
    names = [(name, config.seed) for name, config in machine.trained]
    assert names[0] == (DEFAULT, 8) and names[-2:] == [(decision["chosen"], 9), (DEFAULT, 9)]
    assert {seed for _, seed in names[:-2]} == {8}
    assert any(decision["why"] in line for line in lines)
    # Nothing that was measured is left out, the default is in it.
    assert 256 in [point["batch_size"] for point in found["updates"]]
    assert {"num_envs": 16, "num_steps": 1} in [
        {key: point[key] for key in ("num_envs", "num_steps")} for point in found["sampling"]
    ]
    assert len(found["trials"]) == len(names)


def test_raw_speed_does_not_decide():
    """All that samples or updates faster learns slower here."""
    machine = Machine(lambda config: 3.0 if config.settings["update_to_data"] == 256 else 1.0)
    found = tune(sac(*PLAIN), 45, meters=machine.meters)
    assert found["candidates"][1]["speedup"] > 1.0
    assert found["decision"]["chosen"] == DEFAULT and found["decision"]["settings"] == {}


@pytest.mark.parametrize("helps", [1.0, 3.0])
def test_the_decision_follows_from_the_file(helps, tmp_path):
    machine = Machine(lambda config: helps if config.settings["batch_size"] != 256 else 1.0)
    path = tmp_path / "deep" / "t.json"
    file.save(path, tune(sac(*PLAIN, schedule="spreeze"), 45, meters=machine.meters))
    document = file.read(path)
    assert {**decision_of(document), "placement": document["decision"]["placement"]} == document["decision"]


def test_the_same_file_makes_the_same_run(tmp_path):
    machine = Machine(lambda config: 3.0 if config.settings["update_to_data"] < 256 else 1.0)
    document = json.loads(json.dumps(tune(sac(*PLAIN), 45, meters=machine.meters)))
    own = ("hidden_sizes=32,32", "gamma=0.9")
    made = []
    for _ in range(2):
        overrides, options = file.applied(document, "Pendulum-v1", "sac", "sync", own, {"seed": 3})
        made.append(resolve("Pendulum-v1", algo="sac", schedule="sync", overrides=overrides, **options))
    assert made[0] == made[1]
    settings = made[0].settings
    assert settings["gamma"] == 0.9 and made[0].seed == 3
    assert document["decision"]["settings"].items() <= settings.items()


def test_memory_bounds_what_is_measured():
    machine = Machine()
    meters = machine.meters
    needed = 120 * 2**20  # of 1,000,000 transitions of 12 numbers there is room for the replay, not for large batches

    def guarded(device):
        return needed

    document = tune(
        sac(*PLAIN, "buffer_size=1000"), 1000, meters=Meters(
            meters.sampling, meters.updating, meters.training, meters.train, guarded, meters.cores, meters.clock,
        ),
    )  # fmt: skip
    assert max(point["batch_size"] for point in document["updates"]) < 32768
    assert document["skipped"] and all("free and the run needs" in entry["why"] for entry in document["skipped"])
    with pytest.raises(DeviceError, match="free and the run needs"):
        tune(sac(*PLAIN), 45, meters=Meters(meters.sampling, meters.updating, free=lambda device: 1000))


def test_what_the_user_gave_is_neither_measured_nor_changed():
    machine = Machine(lambda config: 3.0 if config.settings["update_to_data"] < 256 else 1.0)
    document = tune(sac(*PLAIN), 45, ["num_envs", "batch_size"], meters=machine.meters)
    assert [point["batch_size"] for point in document["updates"]] == [256]
    assert {point["num_envs"] for point in document["sampling"]} == {16}
    assert not {"num_envs", "batch_size"} & document["decision"]["settings"].keys()


def test_cores_are_split_where_that_is_faster():
    config = sac(*PLAIN, schedule="spreeze")
    document = tune(config, 45, meters=Machine().meters)
    assert [split["sampler_cores"] for split in document["splits"]] == [0, 1]
    assert document["decision"]["schedule_settings"] == {"sampler_cores": 1}
    assert tune(config, 45, meters=Machine(cores=1).meters)["splits"] == []
    assert tune(config, 45, ["sampler_cores"], meters=Machine().meters)["splits"] == []
    assert tune(sac(*PLAIN), 45, meters=Machine().meters)["splits"] == []
    splits = [{"sampler_cores": 0, "hz": 100.0}, {"sampler_cores": 1, "hz": 104.0}]
    assert best_split(splits) == 0 and best_split([]) == 0


def test_on_policy():
    machine = Machine(lambda config: 64 / config.settings["num_envs"])
    config = resolve("CartPole-v1", device="cpu")
    document = tune(config, 45, meters=machine.meters)
    assert document["updates"] == document["sampling"] == []
    assert {point["num_envs"] for point in document["training"]} == {16, 32, 64, 128, 256, 512}
    name = document["decision"]["chosen"]
    assert name == DEFAULT or document["decision"]["settings"].keys() == {"num_envs"}
    assert decision_of(document)["chosen"] == name


def test_there_must_be_time():
    with pytest.raises(ConfigError, match="at least 10"):
        tune(sac(*PLAIN), 3)


# --- the file ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def document():
    machine = Machine(lambda config: 3.0 if config.settings["update_to_data"] < 256 else 1.0)
    return tune(sac(*PLAIN), 45, meters=machine.meters)


def without(document, *path):
    changed = json.loads(json.dumps(document))
    target = changed
    for key in path[:-1]:
        target = target[key]
    del target[path[-1]]
    return changed


def with_value(document, value, *path):
    changed = json.loads(json.dumps(document))
    target = changed
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return changed


def test_a_file_that_is_wrong_is_refused_in_one_line(document, tmp_path):
    path = tmp_path / "t.json"
    cases = [
        (with_value(document, 2, "format"), "has format 2"),
        (without(document, "trials"), "trials is missing"),
        (with_value(document, 1, "more"), "more is unknown"),
        (with_value(document, "x", "budget_seconds"), "budget_seconds is not what it should be"),
        (with_value(document, True, "seed"), "seed is not what it should be"),
        (without(document, "decision", "why"), "decision.why is missing"),
        (without(document, "decision", "placement", "device"), "decision.placement.device is missing"),
        (with_value(document, 3, "decision", "placement", "device"), "decision.placement.device is not"),
        (with_value(document, 7, "decision", "settings", "batch_sise"), "has no setting 'batch_sise'"),
        (with_value(document, -7, "decision", "settings", "batch_size"), "batch_size must be an integer >= 1"),
        (with_value(document, "none", "algo"), "unknown algorithm"),
        ({"a": 1}, "is not a file of gpurl tune"),
        ([1], "is not a file of gpurl tune"),
    ]
    for wrong, message in cases:
        path.write_text(json.dumps(wrong))
        with pytest.raises(RunError, match=message) as error:
            file.read(path)
        assert "\n" not in str(error.value) and "t.json" in str(error.value)
    path.write_text("{")
    with pytest.raises(RunError, match="not JSON"):
        file.read(path)
    with pytest.raises(RunError, match="cannot read"):
        file.read(tmp_path / "no.json")
    file.save(path, document)
    assert file.read(path) == json.loads(json.dumps(document))


def test_another_run_is_refused(document):
    def applied(env="Pendulum-v1", algo="sac", schedule="sync", overrides=(), **options):
        return file.applied(document, env, algo, schedule, overrides, options, "t.json")

    applied()
    for arguments, message in [
        ({"env": "Hopper-v5"}, "is for env Pendulum-v1, this run is Hopper-v5"),
        ({"algo": "td3"}, "add --algo sac"),
        ({"schedule": "spreeze"}, "add --schedule sync"),
        ({"overrides": ["update_to_data=8"]}, "decides update_to_data="),
        ({"overrides": ["update-to-data=8"]}, "decides update_to_data="),
        ({"device": "cuda"}, "was made with --device cpu"),
        ({"placement": "colocated"}, "was made with --placement cpu"),
    ]:
        with pytest.raises(ConfigError, match=message):
            applied(**arguments)
    overrides, options = applied(total_steps=500, device="cpu", overrides=["env.g=9"])
    assert overrides[0] == "env.g=9" and options["total_steps"] == 500
    config = resolve("Pendulum-v1", algo="sac", schedule="sync", overrides=overrides, **options)
    assert config.total_steps == 500


def test_numbers_travel_exactly(document):
    changed = with_value(document, 0.1 + 0.2, "decision", "settings", "update_to_data")
    overrides, _ = file.applied(changed, "Pendulum-v1", "sac", "sync")
    assert "update_to_data=0.30000000000000004" in overrides


# --- measuring ---------------------------------------------------------------------------------------------------------


def test_rates_by_the_clock():
    from learners.tuning.measure import hz

    ticks = itertools.count()
    # Each call of the clock is a second after the last: 3 s, 3 calls after two to warm up.
    assert hz(lambda: 10, 3.0, lambda: float(next(ticks))) == 10.0


def test_evaluations_halve_the_widest_gap():
    from learners.tuning.measure import order

    assert order(1) == [0] and order(2) == [0, 1] and order(0) == []
    found = order(9)
    assert found[:4] == [0, 8, 7, 3] and sorted(found) == list(range(9))


def test_a_real_training_is_evaluated_in_the_order_of_time():
    from learners.tuning.measure import train, training_hz

    config = resolve(
        "CartPole-v1", device="cpu", num_envs=8, total_steps=2000,
        overrides=["num_steps=16", "minibatches=2", "epochs=1", "hidden_sizes=8", "engine=torch", "collector=eager"],
    )  # fmt: skip
    found = train(config, "a", 0.3)
    seconds = [point.seconds for point in found.points]
    assert seconds == sorted(seconds) and seconds[0] == 0 and found.points[0].step == 0
    assert found.points[-1].step <= 2000 + 128 and found.points[-1].mean > 0
    assert training_hz(config, 0.05) > 0


@pytest.mark.parametrize("schedule", ["sync", "spreeze"])
def test_real_speeds_with_a_replay(schedule):
    from learners.tuning.measure import sampling_hz, train, training_hz, update_frames_hz

    config = sac("hidden_sizes=16", "batch_size=32", "engine=torch", "collector=eager", "num_steps=4", "num_envs=4",
                 "learning_starts=16", "update_to_data=32", schedule=schedule, total_steps=400)  # fmt: skip
    assert sampling_hz(config, 0.02) > 0
    assert update_frames_hz(config, 0.02) > 0
    # The run itself would end after 400 steps.
    assert training_hz(config, 0.2) > 0
    found = train(config, "a", 0.5)
    assert len(found.points) >= 2 and found.points[0].step == 0 < found.points[-1].step
