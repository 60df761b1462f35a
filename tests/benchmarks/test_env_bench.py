import io

import pytest
from rich.console import Console

from benchmarks import env_bench
from benchmarks.cases import ENV_IDS, ENV_PEERS
from gpuenvs.errors import UnknownEnvError
from tests.gpuenvs.user_files import write


def _fake(monkeypatch, results):
    """`run` with every process replaced by an answer."""
    requests = []

    def side_by_side(contenders, request, python, repeats, progress):
        requests.append(request)
        return {contender.name: dict(results[contender.name]) for contender in contenders}

    def measure(contender, python, request):
        if contender.worker == "gpurl_operations":
            return {"operations": {"add": 30, "multiply": 70, "divide": 2, "compare": 5}}
        return {"copy_bytes_per_second": 75e9, "fma_per_second": 50e9, "div_per_second": 10e9}

    monkeypatch.setattr(env_bench, "side_by_side", side_by_side)
    monkeypatch.setattr(env_bench, "measure", measure)
    return requests


OWN = {"rate": 400e6, "samples": [400e6], "config": {"num_envs": 4096, "threads": 2}, "jit_seconds": 1.5, "sweep": []}


def test_rows_hold_ratios_and_the_predicted_floor(monkeypatch):
    answers = {peer.name: {"rate": 2e6, "samples": [2e6], "config": {}, "sweep": []} for peer in ENV_PEERS}
    requests = _fake(monkeypatch, {"gpurl": OWN, **answers})
    rows = env_bench.run(["CartPole-v1"], peers=True)
    assert rows[0]["benchmark"] == "machine"
    own, *peers = rows[1:]
    assert requests[0]["action"] == {"n": 2}
    assert own["steps_per_second"] == 400e6
    # 100 flops are 50 multiply-adds (1 ns) and 2 divisions (0.2 ns); 75 bytes at 75 GB/s are 1 ns.
    floor = own["floor"]
    assert floor["bytes_per_step"] == 75
    assert floor["arithmetic_steps_per_second"] == pytest.approx(1 / 1.2e-9)
    assert floor["memory_steps_per_second"] == pytest.approx(1e9)
    assert floor["bound"] == "arithmetic"
    assert floor["fraction"] == pytest.approx(400e6 * 1.2e-9)
    assert [row["contender"] for row in peers] == [peer.name for peer in ENV_PEERS]
    assert all(row["gpurl_ratio"] == 200 for row in peers)
    assert len(env_bench.tables(rows)) == 2


def test_only_the_environments_a_peer_has(monkeypatch):
    answers = {peer.name: {"rate": 1e6, "samples": [1e6], "config": {}, "sweep": []} for peer in ENV_PEERS}
    _fake(monkeypatch, {"gpurl": OWN, **answers})
    rows = env_bench.run(["Pendulum-v1"], peers=True)
    assert [row["contender"] for row in rows[1:]] == ["gpurl", "EnvPool", "Gymnasium SyncVectorEnv"]


def test_an_environment_in_a_file_is_measured_alone_and_told_apart_by_its_id(monkeypatch, tmp_path):
    file = write(tmp_path)
    requests = _fake(monkeypatch, {"gpurl": OWN})
    monkeypatch.chdir(tmp_path)
    rows = env_bench.run(["drift.py:SPEC"], peers=True)
    assert [row["env"] for row in rows[1:]] == ["Drift-v0"]
    assert requests[0]["env_id"] == f"{file}:SPEC"  # the worker may have another working folder


def test_a_missing_peer_is_a_row_that_says_how_to_install_it(monkeypatch):
    answers = {peer.name: {"missing": peer.package} for peer in ENV_PEERS}
    _fake(monkeypatch, {"gpurl": OWN, **answers})
    rows = env_bench.run(["Acrobot-v1"], peers=True)
    assert rows[2] == {
        "benchmark": "env",
        "env": "Acrobot-v1",
        "contender": "EnvPool",
        "missing": "envpool",
        "install": "pip install envpool",
    }
    console = Console(width=160, file=io.StringIO(), record=True)
    for table in env_bench.tables(rows):
        console.print(table)
    assert "not installed: pip install envpool" in console.export_text()


def test_without_peers_only_gpurl_is_measured(monkeypatch):
    _fake(monkeypatch, {"gpurl": OWN})
    rows = env_bench.run(peers=False)
    assert [(row["env"], row["contender"]) for row in rows[1:]] == [(env_id, "gpurl") for env_id in ENV_IDS]


def test_an_unknown_environment_is_refused_before_anything_runs(monkeypatch):
    requests = _fake(monkeypatch, {})
    with pytest.raises(UnknownEnvError, match="CartPole-v1"):
        env_bench.run(["CartPole-v0"])
    assert requests == []
