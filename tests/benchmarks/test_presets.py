import json
import os
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from benchmarks import preset_curves, preset_tables, presets
from benchmarks.cases import MUJOCO_IDS, MUJOCO_PRESET_CASES, PRESET_CASES, SAC_PRESET_CASES, PresetCase
from gpuenvs.errors import ConfigError
from learners.runs import CONFIG_FORMAT

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

    for case in (*PRESET_CASES, *MUJOCO_PRESET_CASES, *SAC_PRESET_CASES):
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


def _sac_runs(env_id, *means, seconds=1700.0):
    run = {"env": env_id, "algo": "sac", "std": 1.0, "env_steps": 700_000, "seconds": seconds + 9}
    run |= {"training_seconds": seconds, "machine": {"cores": 2}, "jobs": 2, "own_cores": 1}
    run["curve"] = [[350_000, 800.0, -5.0], [700_000, 1700.0, 2400.0]]
    return [{**run, "seed": seed, "mean": mean} for seed, mean in enumerate(means)]


@pytest.mark.parametrize(
    ("means", "seconds", "seeds", "met"),
    [
        ((2600.0, 2500.0, 2900.0), 1800.0, "0-2", "yes"),
        ((2600.0, 2499.0, 2900.0), 1700.0, "0-2", "no"),
        ((2600.0, 2500.0, 2900.0), 1801.0, "0-2", "no"),
        ((2600.0, 2500.0), 1700.0, "0-1, not yet 2", "no"),
    ],
)
def test_sac_asks_for_every_seed_and_for_time(means, seconds, seeds, met):
    case = next(case for case in SAC_PRESET_CASES if case.env_id == "Hopper-v5")
    row = preset_tables.sac_summary(case, _sac_runs("Hopper-v5", *means, seconds=seconds))
    assert (row[1], row[-1]) == (seeds, met)
    assert row[3] == f"{min(means):,.0f}" and row[6] == "1" and row[7] == f"{seconds:,.0f}"
    assert len(row) == len(preset_tables.TABLES[2].header)


def test_cores_that_are_shared_are_told():
    shared = [{**run, "jobs": 4, "own_cores": None} for run in _sac_runs("Ant-v5", 3000.0)]
    assert preset_tables.sac_summary(SAC_PRESET_CASES[-1], shared)[6] == "2 for 4 runs"


def _run_folder(path, rows):
    path.mkdir()
    (path / "config.json").write_text(
        json.dumps({"env_id": "CartPole-v1", "algo": "sac", "schedule": "sync", "format": CONFIG_FORMAT})
    )
    lines = ["step,wall_s,episodes,episode_return", *(",".join(map(str, row)) for row in rows)]
    (path / "metrics.csv").write_text("".join(f"{line}\n" for line in lines))
    return path


def test_a_kept_curve_is_the_mean_over_episodes(tmp_path):
    """Rows without an episode count for nothing, one with three for three times one with a single one."""
    rows = [(10, 1.0, 0, ""), (25, 2.0, 1, 40.0), (50, 3.04, 4, 80.0), (75, 4.0, 4, ""), (100, 5.0, 5, 7.0)]
    assert preset_curves.kept(_run_folder(tmp_path / "run", rows), points=2) == [[50, 3.0, 70.0], [100, 5.0, 7.0]]


def test_a_long_curve_is_thinned(tmp_path):
    rows = [(10 * k, k / 2, k, float(k)) for k in range(1, 1001)]
    curve = preset_curves.kept(_run_folder(tmp_path / "run", rows))
    assert len(curve) == preset_curves.POINTS and curve[-1][:2] == [10_000, 500.0]
    steps, _, values = zip(*curve)
    assert list(steps) == sorted(steps) and list(values) == sorted(values)


def test_runs_at_a_time_have_disjoint_cores(monkeypatch):
    """Each process that a run starts has its own core, and the caller keeps all of them."""
    allowed = getattr(os, "sched_getaffinity", lambda _: {0})(0)
    if len(allowed) < 2 or presets.machine.allowed_cores() < 2:
        pytest.skip("one core")
    command = [sys.executable, "-c", "import os; print(*os.sched_getaffinity(0))"]

    def train_once(case, seed, threads):
        cores = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        time.sleep(0.3)  # so that neither thread takes both
        return {"mean": 0.0, "seconds": 1.0, "cpu_seconds": 1.0, "threads": threads, "cores": {int(c) for c in cores}}

    monkeypatch.setattr(presets, "train_once", train_once)
    entries = []
    failed = presets.run_all([(CASE, 0), (CASE, 1)], 2, lambda case, seed, entry: entries.append(entry))
    assert not failed
    first, second = (entry["cores"] for entry in entries)
    assert first and second and not first & second and first | second <= allowed
    assert all(entry["own_cores"] == len(entry["cores"]) == entry["threads"] for entry in entries)
    assert os.sched_getaffinity(0) == allowed
    assert presets.core_shares(10**6)[0] == set() and presets.core_shares(1) == [set()]


def test_sac_has_files_of_its_own_and_a_failure_stops_no_other_run(monkeypatch, tmp_path):
    """The run that failed is told and missing, later ones are kept; runs under other settings leave the table."""

    def train_once(case, seed, threads):
        if seed == 1:
            raise ConfigError("Hopper-v5 sac seed 1: out of luck")
        return {**_sac_runs(case.env_id, 3000.0)[0], "seed": seed, "cpu_seconds": 1.0}

    monkeypatch.setattr(presets, "train_once", train_once)
    monkeypatch.setattr(presets, "settings_digest", lambda case: "new")
    monkeypatch.setattr(presets, "RESULTS", tmp_path)
    monkeypatch.setattr(presets, "PICTURE", tmp_path / "picture.svg")
    old = {presets.key(case, 7): {**_sac_runs(case.env_id, 1.0)[0], "settings": "old"} for case in SAC_PRESET_CASES}
    (tmp_path / "presets_sac.json").write_text(json.dumps({"runs": old}))
    done = CliRunner().invoke(presets.main, ["--algo", "sac", "--env", "Hopper-v5"])
    assert done.exit_code == 1
    assert "1 of 3 runs failed; the first: Hopper-v5 sac seed 1: out of luck" in done.output
    runs = json.loads((tmp_path / "presets_sac.json").read_text())["runs"]
    assert {name for name in runs if "Hopper" in name} == {"Hopper-v5/sac/s0", "Hopper-v5/sac/s2"}
    assert presets.key(SAC_PRESET_CASES[0], 7) in runs, "another environment's runs are not this one's to drop"
    assert not (tmp_path / "presets.json").exists()
    assert "Hopper-v5 | 0, 2, not yet 1 |" in (tmp_path / "presets_sac.md").read_text()
    assert (tmp_path / "picture.svg").exists()


def test_the_picture_has_a_line_per_seed_and_the_goals(tmp_path):
    path = tmp_path / "out.svg"
    runs = {case: _sac_runs(case.env_id, 3000.0, 3100.0) for case in SAC_PRESET_CASES[:4]}
    preset_curves.draw(runs, path)
    text = path.read_text()
    for label in ("seed 1", "goal 6,000", "evaluated", "HalfCheetah-v5 (SAC)", "longest run: 28 min"):
        assert f"<!-- {label} -->" in text or label in text, label
    assert "Ant-v5" not in text
