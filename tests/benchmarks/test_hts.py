import json
import statistics
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import hts, hts_cases, hts_report
from benchmarks.delays import BLOCK, Delayed, draw
from benchmarks.hts_cases import LEARNING_CASES, SPEED_CASES, SpeedCase
from benchmarks.hts_model import SCHEDULES, step_seconds, steps_per_second
from gpuenvs.errors import ConfigError

# --- delays ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("distribution", ["gamma", "lognormal"])
@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 2.0])
def test_delays_have_the_mean_and_spread_asked_for(distribution, cv):
    delays = draw(distribution, 2.0, cv, np.random.default_rng(0), 400_000)
    assert delays.min() >= 0
    assert delays.mean() == pytest.approx(2.0, rel=0.02)
    assert delays.std() / delays.mean() == pytest.approx(cv, abs=0.01, rel=0.05)


def test_the_lognormal_tail_is_the_heavier_one():
    far = [
        np.quantile(draw(name, 1.0, 2.0, np.random.default_rng(0), 400_000), 0.9999) for name in ("gamma", "lognormal")
    ]
    assert far[1] > 1.5 * far[0]


@pytest.mark.parametrize(("distribution", "mean", "cv"), [("pareto", 1, 1), ("gamma", -1, 1), ("gamma", 1, -1)])
def test_impossible_delays(distribution, mean, cv):
    with pytest.raises(ConfigError):
        Delayed(mean_ms=mean, distribution=distribution, cv=cv)


def _delays(seed, count=5, **keywords):
    env = Delayed(mean_ms=1.0, **keywords)
    env.reset(seed=seed)
    return [env._delay() for _ in range(count)]


def test_delays_are_a_function_of_the_episodes_seed():
    assert _delays(3, BLOCK + 3) == _delays(3, BLOCK + 3)
    assert _delays(3) != _delays(4)
    env = Delayed(mean_ms=1.0)
    env.reset(seed=4)
    env._delay()
    env.reset(seed=3)  # where the last episode stopped does not matter
    assert [env._delay() for _ in range(5)] == _delays(3)


def test_a_step_sleeps_first(monkeypatch):
    slept = []
    monkeypatch.setattr("benchmarks.delays.time.sleep", slept.append)
    env = Delayed(id="Acrobot-v1", mean_ms=3.0, cv=0.0)
    env.reset(seed=0)
    observation, *_ = env.step(0)
    assert slept == [0.003] and observation.shape == (6,)


# --- model ----------------------------------------------------------------------------------------------------------


def test_waiting_for_the_slowest_of_exponential_times():
    harmonic = sum(1 / k for k in range(1, 9))
    assert step_seconds("sync", 8, 64, 2.0, "gamma", 1.0) == pytest.approx(2.0 * harmonic, rel=0.01)
    assert step_seconds("async", 8, 64, 2.0, "gamma", 1.0) == pytest.approx(2.0, rel=0.01)
    assert step_seconds("hts barrier", 8, 1, 2.0, "gamma", 1.0) == pytest.approx(2.0 * harmonic, rel=0.1)


def test_barriers_cost_less_with_longer_horizons_and_less_still_without_them():
    times = {name: [step_seconds(name, 16, alpha, 1.0, "gamma", 1.0) for alpha in (1, 4, 16, 64)] for name in SCHEDULES}
    for name in ("hts barrier", "hts"):
        assert times[name] == sorted(times[name], reverse=True)
    for sync, barrier, hts_, async_ in zip(*(times[name] for name in SCHEDULES)):
        assert async_ < hts_ < barrier < 1.02 * sync


def test_without_variance_nobody_waits():
    for name in SCHEDULES:
        assert steps_per_second(name, 4, 8, 0.002, "gamma", 0.0, 0.001) == pytest.approx(4 / 0.003)


def test_running_ahead_by_hand():
    """Two environments, the second slow in horizon 0: the first waits for it at the beginning of its horizon 2 only."""
    from benchmarks.hts_model import _run_ahead

    sums = np.array([[1.0, 5.0], [1.0, 1.0], [1.0, 1.0]])
    # Ends: (1, 5); (2, 6); max(2, 5) + 1 = 6 and max(6, 5) + 1 = 7.
    assert _run_ahead(sums) == pytest.approx(7.0 / 3)
    with pytest.raises(ValueError, match="unknown schedule"):
        step_seconds("other", 1, 1, 1.0, "gamma", 1.0)


# --- speed ----------------------------------------------------------------------------------------------------------


def test_every_speed_case_is_one_that_train_takes():
    from learners.build import resolve

    assert len(set(SPEED_CASES)) == len(SPEED_CASES)
    kinds = {(case.schedule, case.algo, case.distribution): case for case in SPEED_CASES}
    for case in kinds.values():
        config = resolve(
            hts_cases.DELAYED,
            algo=case.algo,
            schedule=hts_cases.SCHEDULES[case.schedule][0],
            overrides=case.overrides,
            num_envs=case.num_envs,
            device="cpu",
            env_backend="host",
        )
        assert config.settings["num_steps"] == case.alpha and config.env_params["cv"] == case.cv
        wanted = {"hts barrier": ("run_ahead", False), "async unbounded": ("max_lag", 0)}.get(case.schedule)
        assert wanted is None or config.schedule_settings[wanted[0]] == wanted[1]


def test_a_case_is_measured():
    case = SpeedCase("heavy", "hts", num_envs=2, alpha=8, mean_ms=0.1)
    sample = hts.measure(case, 0.05)
    assert sample["rate"] > 0 and sample["lag_mean"] == 1 and 0 <= sample["overlap"] <= 1


def test_medians_of_turns(monkeypatch):
    order = []

    def fake(case, seconds):
        order.append(case.schedule)
        return {"rate": float(len(order)), "load": 0.0}

    monkeypatch.setattr(hts, "measure", fake)
    cases = [SpeedCase("heavy", "sync"), SpeedCase("heavy", "hts")]
    rows = hts.measure_all(cases, 1.0, 3, 60.0, lambda line: None)
    assert order == ["sync", "hts"] * 3
    assert [row["steps_per_second"] for row in rows] == [3.0, 4.0]
    order.clear()
    rows = hts.measure_all(cases, 1.0, 3, 0.0, lambda line: None)
    assert [len(row["samples"]) for row in rows] == [1, 1]


def _speed_rows(hts_over_sync=4.0, hts_of_async=1.0):
    rows = []
    for case in SPEED_CASES:
        base = 7000.0 / (1 + case.cv)
        factor = {"sync": 1.0, "async": hts_over_sync / hts_of_async, "async unbounded": hts_over_sync / hts_of_async}
        value = base * factor.get(case.schedule, hts_over_sync * (1 + case.cv / 10))
        sample = {"rate": value, "load": 0.5, "lag_mean": 1.0, "lag_max": 1, "overlap": 0.25, "learner_idle": 0.5}
        rows.append({**hts_cases.as_dict(case), "steps_per_second": value, "samples": [sample, sample]})
    return rows


def test_what_was_promised_is_checked():
    assert hts_report.missed(_speed_rows()) == []
    slow = hts_report.missed(_speed_rows(hts_over_sync=1.5))
    assert len(slow) == 1 and "of sync; promised: 2" in slow[0]
    behind = hts_report.missed(_speed_rows(hts_of_async=0.7))
    assert len(behind) == 2 and all("promised: 0.9" in line for line in behind)
    rows = _speed_rows()
    for row in hts_report.find(rows, series="variance", schedule="hts", cv=2.0):
        row["steps_per_second"] *= 0.5
    (flat,) = hts_report.missed(rows)
    assert "does not grow with the variance" in flat


MACHINE = {"cpu": "X", "cores": 2, "python": "3.11", "versions": {}}


def test_speed_tables(tmp_path):
    text = hts_report.document({"machine": MACHINE, "command": "C", "rows": _speed_rows()}, None)
    assert text.startswith("`C`; 2 cores of X, load average 0.5 to 0.5")
    assert "| hts | 11.2 k |" in text and "| 4.80x | 1.20x | 1.00 | 25% | 50% |" in text
    assert "| exponential |" in text and "| 32 |" in text and "| 256 |" in text
    hts_report.draw(_speed_rows(), tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_the_model_takes_its_overhead_from_steps_of_equal_length():
    rows = _speed_rows()
    (even,) = hts_report.find(rows, series="variance", schedule="async", cv=0.0)
    even["steps_per_second"] = 16 / 0.0025
    assert hts_report.overhead(rows, "async") == pytest.approx(0.0005)
    assert hts_report.predicted(rows, even) == pytest.approx(16 / 0.0025)
    assert hts_report.predicted(rows, {**even, "schedule": "async unbounded"}) is None


# --- learning -------------------------------------------------------------------------------------------------------


def _write_run(arguments, returns, speed):
    """What a training of these arguments leaves behind, as far as a comparison reads it."""
    from pathlib import Path

    folder = Path(arguments[arguments.index("--run-dir") + 1])
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"format": 1, "env_id": "E", "algo": "ppo", "schedule": "x"}))
    lines = [f"{100 * k},{k / speed},{100 * k},{value}" for k, value in enumerate(returns, start=1)]
    (folder / "metrics.csv").write_text("step,wall_s,episodes,episode_return\n" + "\n".join(lines) + "\n")


@pytest.fixture
def fake_training(monkeypatch):
    calls = []

    def gpurl(arguments, name):
        calls.append(list(arguments))
        if "--total-steps" not in arguments or "20k" not in arguments:
            _write_run(arguments, [-500, -300, -90], 3.0 if "hts" in arguments else 1.0)
        return ""

    monkeypatch.setattr(hts, "gpurl", gpurl)
    return calls


def test_trainings_take_turns_after_a_warm_up_and_are_not_repeated(fake_training, tmp_path):
    cases = [replace(case, seeds=2) for case in LEARNING_CASES if case.place == "time-Acrobot-v1-ppo"]
    hts.train_all(cases, tmp_path, 9.0, lambda line: None)
    real = [call for call in fake_training if "20k" not in call]
    assert len(fake_training) - len(real) == 3  # one for each schedule
    assert [(c[c.index("--schedule") + 1], c[c.index("--seed") + 1]) for c in real] == [
        (name, seed) for seed in ("0", "1") for name in ("sync", "hts", "async")
    ]
    count = len(fake_training)
    (tmp_path / "time-Acrobot-v1-ppo" / "hts" / "s1" / "done").unlink()  # as if it had been stopped
    hts.train_all(cases, tmp_path, 9.0, lambda line: None)
    assert len(fake_training) == count + 2
    assert len(hts.loads(cases, tmp_path)) == 6
    (found,) = hts.compare_all(cases, tmp_path)
    assert (found["env"], found["to_return"], found["series"], found["host"]) == ("Acrobot-v1", -100, "time", False)
    rows = {row["setting"]: row for row in found["rows"]}
    assert rows["sync"]["seconds_to_return"]["iqm"] == 3.0 and rows["hts"]["seconds_to_return"]["iqm"] == 1.0
    text = hts_report.document(None, {"machine": MACHINE, "command": "C", "comparisons": [found]})
    assert "| hts | 2 | 1.0 [1.0, 1.0] |" in text
    hts.train_all([replace(case, seeds=3) for case in cases], tmp_path, 0.0, lambda line: None)
    assert len(fake_training) == count + 2  # out of time
    hts.draw_learning(cases, tmp_path, tmp_path / "l.png")
    assert (tmp_path / "l.png").exists()


def test_a_return_that_was_never_reached_is_said_so():
    value = {"iqm": None, "low": 3.0, "high": None, "values": [3.0, None]}
    assert hts_report._estimate(value, "seconds_to_return") == "never, 1 of 2"
    some = {"iqm": 1e5, "low": 9e4, "high": None, "values": [1.0]}
    assert hts_report._estimate(some, "steps_to_return") == "100 k [90 k, never]"
    short = {"iqm": None, "low": None, "high": None, "values": [None]}
    assert hts_report._estimate(short, "return_at_seconds") == "-, 0 of 1"


def test_every_learning_case_is_one_that_train_takes():
    from learners.build import resolve

    assert len({(case.place, case.label) for case in LEARNING_CASES}) == len(LEARNING_CASES)
    for case in LEARNING_CASES:
        backend = "host" if case.host else "device"
        env = hts_cases.DELAYED if case.host else case.env_id
        resolve(env, algo=case.algo, schedule=case.schedule, overrides=case.settings, device="cpu", env_backend=backend)
    places = {case.place for case in LEARNING_CASES if case.series == "time"}
    assert {place.split("-v")[0] for place in places} == {"time-Pendulum", "time-Acrobot", "time-Hopper"}
    assert {case.settings for case in LEARNING_CASES if case.series == "corrections" and case.schedule == "hts"} == {
        (f"lag={lag}", f"correction={name}") for lag in (1, 8) for name in ("delayed", "ratio", "vtrace", "none")
    }


def test_command_line(monkeypatch, tmp_path):
    monkeypatch.setattr(hts, "measure", lambda case, seconds: {"rate": 1.0, "load": 0.0})
    out = tmp_path / "speed.json"
    done = CliRunner().invoke(hts.main, ["speed", "--series", "heavy", "--repeats", "1", "--out", str(out)])
    assert done.exit_code == 0, done.output
    document = json.loads(out.read_text())
    assert document["command"] == "python -m benchmarks.hts speed --repeats 1 --series heavy"
    assert len(document["rows"]) == len(hts_cases.HEAVY_CASES) and document["machine"]["cores"] >= 1
    assert statistics.fmean(row["steps_per_second"] for row in document["rows"]) == 1.0
    assert CliRunner().invoke(hts.main, ["speed", "--series", "x"]).exit_code == 2
    assert CliRunner().invoke(hts.main, ["learning", "--series", "x"]).exit_code == 2
