"""`benchmarks.spreeze`: what is kept, what is repeated, what the tables say of it."""

import pytest

from benchmarks import spreeze, spreeze_own, spreeze_report
from benchmarks.spreeze_cases import ABLATED, ABLATION, COMMON, GOALS, PEERS


@pytest.fixture
def own(monkeypatch):
    """Trainings that take as many seconds as their seed, and never get there with seed 2; peers take ten times as long."""
    made = []

    def seconds_to_return(env_id, seed, more=()):
        made.append((env_id, seed, more))
        return {
            "seconds": None if seed == 2 else 1.0 + seed,
            "best": 0.0,
            "sampling_hz": 10.0,
            "update_frames_hz": 20.0,
        }

    def measure(peer, python, request):
        made.append((peer.name, request.get("seed"), request["what"], request["threads"]))
        if peer.name == "sbx":
            return {"missing": "sbx"}
        rate = {"update_frames_hz": 100.0 * request["threads"], "sampling_hz": 1.0}
        return rate if request["what"] == "speed" else {"seconds": 10.0 + request["seed"], "best": 0.0}

    monkeypatch.setattr(spreeze_own, "seconds_to_return", seconds_to_return)
    monkeypatch.setattr(spreeze_own, "tuned", lambda env_id: (("batch_size=512",), 40.0))
    monkeypatch.setattr(spreeze, "measure", measure)
    return made


def test_time_measures_what_is_missing_and_takes_the_best_number_of_threads(own):
    found, kept = {}, []
    who = ["gpurl", *(peer.name for peer in PEERS)]
    spreeze.measure_time(found, "Hopper-v5", who, range(1), "python", lambda: kept.append(len(found)))
    assert ("SB3", 0, "time", 2) in own and ("SB3", None, "speed", 1) in own
    assert kept == [1, 2, 3]
    before = len(own)
    spreeze.measure_time(found, "Hopper-v5", ["gpurl", "SB3"], range(3), "python", lambda: None)
    assert [call[:2] for call in own[before:]] == [("Hopper-v5", 1), ("SB3", 1), ("Hopper-v5", 2), ("SB3", 2)]
    found["gpurl/s0"]["settings"] = "others"
    spreeze.measure_time(found, "Hopper-v5", ["gpurl"], range(3), "python", lambda: None)
    assert own[-1][:2] == ("Hopper-v5", 0)


def test_the_tables_say_what_is_missing_and_what_was_not_reached(own):
    time, ablation = {}, {}
    spreeze.measure_time(time, "Hopper-v5", ["gpurl", "SB3", "sbx"], range(3), "python", lambda: None)
    spreeze.measure_ablation(ablation, range(2), "", lambda: None)
    text = spreeze_report.tables({"time": {"Hopper-v5": time}, "ablation": ablation})
    assert "| Hopper-v5 | 500 | 2.0 | 11.0 (82% less) | not installed | 3/3/0 |" in text
    assert "| as it is | 1.5 | 10 | 20 | 2 |" in text
    assert "40 s before, changed batch_size=512" in text
    assert (ABLATED, 0, ("batch_size=512",)) in own
    never = {"gpurl/s0": {"seconds": None}, "gpurl/s1": {"seconds": None}, "gpurl/s2": {"seconds": 3.0}}
    assert spreeze_report.seconds_of(never, "gpurl") == (spreeze_report.NEVER, 3)
    assert "not in 300" in spreeze_report.tables({"time": {"Hopper-v5": never}})
    slow = {"gpurl/s0": {"seconds": 30.0}, "SB3/s0": {"seconds": None}, "sbx/s0": {"seconds": 20.0}}
    text = spreeze_report.tables({"time": {"Hopper-v5": slow}})
    assert "| 30.0 | not in 300 (at least 90% less) | 20.0 (50% more) |" in text


def test_what_failed_is_measured_again_and_older_rows_are_left_out():
    entries = {"sbx/s0": {"missing": "sbx", "settings": "d"}, "sbx/s1": {"seconds": None, "settings": "d"}}
    assert spreeze.missing(entries, "sbx", range(3), "d") == [0, 2]
    assert spreeze.seeds_of("2-4") == range(2, 5) and spreeze.seeds_of("2") == range(2)
    old = {"time": [{"env": "Hopper-v5"}], "speed": [{"env": "Hopper-v5", "sb3": []}], "ablation": {"as it is": [4.0]}}
    found = spreeze.current(old)
    assert (found["time"], found["speed"], found["ablation"]) == ({}, [], {})
    assert spreeze_report.tables(found)


def test_every_variant_is_a_run_that_differs_in_what_it_names():
    plain = spreeze_own.config(ABLATED)
    assert plain.schedule == "spreeze" and plain.settings["hidden_sizes"] == (64, 64)
    for name, more in ABLATION.items():
        run = spreeze_own.config(ABLATED, more)
        assert run.schedule == ("sync" if "sync" in more else "spreeze"), name
        for item in more:
            key, sign, value = item.partition("=")
            if sign:
                got = {**run.settings, **run.schedule_settings}[key]
                assert str(got).lower() == value and got != {**plain.settings, **plain.schedule_settings}[key], name
    assert set(GOALS) == set(COMMON)


def test_the_worst_window_is_found():
    log = [(float(k), 100 * k, 1000 * k + (50 if k > 15 else 0)) for k in range(40)]
    assert spreeze_own.worst_window(log, 10.0, 10.0) == pytest.approx(50 / 10_000)
