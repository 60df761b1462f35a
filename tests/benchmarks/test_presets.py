import json

import pytest
from click.testing import CliRunner

from benchmarks import preset_tables, presets
from benchmarks.cases import MUJOCO_IDS, MUJOCO_PRESET_CASES, PRESET_CASES, PresetCase
from gpuenvs.errors import ConfigError

CASE = PresetCase("CartPole-v1", "ppo", 490.0, each_at_least=475.0)


def _runs(*means):
    return [{"seed": seed, "mean": mean, "seconds": 10.0 + seed} for seed, mean in enumerate(means)]


@pytest.mark.parametrize(("text", "seeds"), [("0-9", list(range(10))), ("3", [3]), ("0,5-7, 2", [0, 2, 5, 6, 7])])
def test_seed_lists(text, seeds):
    assert presets.parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "3-", "5-2"])
def test_a_wrong_seed_list_is_one_clear_line(text):
    with pytest.raises(ConfigError, match="--seeds"):
        presets.parse_seeds(text)


def test_seed_ranges_read_back():
    assert preset_tables.seed_ranges([7, 0, 1, 2, 5]) == "0-2, 5, 7"


@pytest.mark.parametrize(("means", "met"), [((500.0, 480.0), "yes"), ((500.0, 474.0), "no"), ((485.0, 485.0), "no")])
def test_both_goals_count(means, met):
    row = preset_tables.summary(CASE, _runs(*means))
    assert row[-1] == met
    assert row[3] == f"{sum(means) / len(means):.1f}"


def _compared(there, here, std=10.0):
    run = {"seed": 0, "mean": there, "std": std, "episodes": 100, "env_steps": 4_014_080}
    return {
        **run,
        "seconds": 20.0,
        "training_seconds": 15.0,
        "cpu_seconds": 24.5,
        "gpuenvs": {"mean": here, "std": std},
    }


def test_agreement_is_measured_in_standard_errors_of_a_difference():
    assert preset_tables.errors_apart(_compared(100.0, 102.0)) == pytest.approx(2 / (200 / 100) ** 0.5)
    assert preset_tables.errors_apart(_compared(1000.0, 1000.0, std=0.0)) == 0.0
    assert preset_tables.errors_apart(_compared(1000.0, 999.0, std=0.0)) == float("inf")


@pytest.mark.parametrize(
    ("there", "here", "met"), [(2600.0, 2602.0, "yes"), (2600.0, 2603.0, "no"), (2499.0, 2499.0, "no")]
)
def test_a_mujoco_task_asks_for_its_goal_and_for_agreement(there, here, met):
    case = next(case for case in MUJOCO_PRESET_CASES if case.env_id == "Hopper-v5")
    row = preset_tables.mujoco_summary(case, [_compared(3000.0, 3000.0), _compared(there, here)])
    assert row[-1] == met and row[4] == ">= 2,500" and row[7] == "4.01 M"
    assert row[10] == "24.5"
    assert len(row) == len(preset_tables.TABLES[1].header)


def test_every_mujoco_task_is_a_case():
    assert {case.env_id for case in MUJOCO_PRESET_CASES} == set(MUJOCO_IDS)


def test_a_changed_preset_is_run_again():
    document = {"runs": {presets.key(CASE, 0): {"settings": "old"}, presets.key(CASE, 1): {"settings": "new"}}}
    assert presets.missing({CASE: [0, 1, 2]}, document, {CASE: "new"}) == [(CASE, 0), (CASE, 2)]


def test_every_case_has_a_preset_and_its_digest_is_stable():
    from learners.presets import preset

    for case in (*PRESET_CASES, *MUJOCO_PRESET_CASES):
        assert preset(case.env_id, case.algo), case
        assert presets.settings_digest(case) == presets.settings_digest(case)


def test_results_are_kept_run_by_run_and_reused(monkeypatch, tmp_path):
    trained = []

    def train_once(case, seed, threads):
        trained.append(seed)
        if seed == 2:
            raise ConfigError("interrupted")
        return {"env": case.env_id, "algo": case.algo, "seed": seed, "mean": 495.0, "seconds": 1.0, "cpu_seconds": 2.0}

    monkeypatch.setattr(presets, "train_once", train_once)
    monkeypatch.setattr(presets, "settings_digest", lambda case: "digest")
    path = tmp_path / "out" / "presets.json"
    arguments = ["--env", "CartPole-v1", "--algo", "ppo", "--results", str(path)]
    broken = CliRunner().invoke(presets.main, [*arguments, "--seeds", "0-2"])
    assert broken.exit_code == 1
    assert sorted(json.loads(path.read_text())["runs"]) == ["CartPole-v1/ppo/s0", "CartPole-v1/ppo/s1"]
    again = CliRunner().invoke(presets.main, [*arguments, "--seeds", "0-1"])
    assert again.exit_code == 0, again.output
    assert trained == [0, 1, 2]
    assert "| CartPole-v1 | PPO | 0-1 | 495.0 |" in path.with_suffix(".md").read_text()


def test_an_unknown_case_lists_the_known_ones():
    with pytest.raises(ConfigError, match="Acrobot-v1 ppo"):
        presets.choose("Nothing-v0", None)
