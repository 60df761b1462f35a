import sys

import pytest

from benchmarks.cases import Contender
from benchmarks.process import PEERS_VARIABLE, gpurl, measure, peers_python
from gpuenvs.errors import ConfigError

GYMNASIUM = Contender("gymnasium", "gymnasium_env", "gymnasium", "pip install gymnasium", peer=False)
REQUEST = {
    "env_id": "CartPole-v1",
    "seconds": 0.02,
    "action": {"n": 2},
    "mode": "sync",
    "batch_sizes": [1, 3],
    "threads": [1],
}


def test_a_worker_sweeps_and_answers():
    answer = measure(GYMNASIUM, sys.executable, REQUEST)
    assert [entry["num_envs"] for entry in answer["tried"]] == [1, 3]
    fastest = max(answer["tried"], key=lambda entry: entry["rate"])
    assert answer["config"] == {"num_envs": fastest["num_envs"]}
    assert answer["rate"] > 0


def test_a_given_configuration_is_measured_without_a_sweep():
    answer = measure(GYMNASIUM, sys.executable, {**REQUEST, "config": {"num_envs": 2}})
    assert answer["config"] == {"num_envs": 2}
    assert answer["tried"] == []


def test_gpurl_is_measured_through_its_public_api():
    own = Contender("gpurl", "gpurl_env", "gpuenvs", "pip install gpurl", peer=False)
    answer = measure(own, "", {**REQUEST, "batch_sizes": [8]})
    assert answer["config"] == {"num_envs": 8, "threads": 1}
    assert answer["jit_seconds"] > 0


def test_an_absent_package_is_a_missing_row(tmp_path):
    absent = Contender("EnvPool", "envpool_env", "envpool", "pip install envpool", peer=True)
    # An interpreter without site-packages has neither the contender nor anything else.
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    request = {**REQUEST, "worker": "envpool_env"}
    answer = measure(absent, str(bare), request)
    assert answer in ({"missing": "envpool"}, {"error": "ModuleNotFoundError: No module named 'numpy'"})


def test_a_failing_worker_is_an_error_row():
    answer = measure(GYMNASIUM, "", {**REQUEST, "env_id": "NoSuchEnv-v0"})
    assert answer["error"].startswith("NameNotFound")


def test_the_peers_interpreter_is_chosen_in_order(monkeypatch):
    monkeypatch.delenv(PEERS_VARIABLE, raising=False)
    assert peers_python() == sys.executable
    monkeypatch.setenv(PEERS_VARIABLE, "/bin/sh")
    assert peers_python() == "/bin/sh"
    assert peers_python(sys.executable) == sys.executable


def test_a_wrong_interpreter_path_is_one_clear_line(tmp_path):
    with pytest.raises(ConfigError, match=r"no Python interpreter at .*--peers-python"):
        peers_python(str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="no Python interpreter"):
        peers_python(str(tmp_path))


def test_a_gpurl_command_that_fails_is_one_line():
    assert "CartPole-v1" in gpurl(["envs"], "list")
    with pytest.raises(ConfigError, match=r"^it: error: .*CartPol-v1"):
        gpurl(["train", "CartPol-v1"], "it")
