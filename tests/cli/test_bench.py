import json

import pytest


@pytest.fixture
def rows(monkeypatch):
    """Replaces the measurements; records with which options they were asked for."""
    from benchmarks import env_bench, kernel_bench, train_bench

    asked = {}

    def stand_in(name):
        def run(progress, **options):
            asked[name] = options
            progress("measuring")
            return [{"benchmark": name, "steps_per_second": 1.0}]

        return run

    for name, module in (("env", env_bench), ("train", train_bench), ("kernels", kernel_bench)):
        monkeypatch.setattr(module, "run", stand_in(name))
        monkeypatch.setattr(module, "tables", lambda rows: ["a table"])
    return asked


def test_json_lines(gpurl, rows):
    result = gpurl("bench", "env", "CartPole-v1", "--json", "--peers", "--seconds", "0.5")
    assert json.loads(result.out) == {"benchmark": "env", "steps_per_second": 1.0} and "measuring" in result.err
    assert rows["env"]["env_ids"] == ("CartPole-v1",) and rows["env"]["peers"] is True
    assert rows["env"]["seconds"] == 0.5 and "repeats" not in rows["env"]


def test_tables(gpurl, rows):
    assert "a table" in gpurl("bench", "train", "--repeats", "1").out
    assert rows["train"] == {"peers": False, "peers_python_path": None, "repeats": 1}


def test_kernels(gpurl, rows):
    result = gpurl("bench", "kernels", "Pendulum-v1", "--json", "--device", "cuda:1", "-n", "1e6", "--repeats", "1")
    assert json.loads(result.out) == {"benchmark": "kernels", "steps_per_second": 1.0}
    assert rows["kernels"] == {"env_ids": ("Pendulum-v1",), "device": "cuda:1", "num_envs": 10**6, "repeats": 1}
    gpurl("bench", "kernels")
    assert rows["kernels"] == {"device": "cpu"}


def test_the_options_exist_in_the_benchmarks():
    import inspect

    from benchmarks import env_bench, kernel_bench, train_bench

    for run in (env_bench.run, train_bench.run):
        assert {"peers", "peers_python_path", "seconds", "repeats", "progress"} <= inspect.signature(
            run
        ).parameters.keys()
    assert "env_ids" in inspect.signature(env_bench.run).parameters
    names = {"env_ids", "device", "num_envs", "seconds", "repeats", "progress"}
    assert inspect.signature(kernel_bench.run).parameters.keys() == names
