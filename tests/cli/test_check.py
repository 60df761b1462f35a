from tests.gpuenvs.checks import planted as checks
from tests.gpuenvs.contract import planted as contract
from tests.gpuenvs.contract.planted import marked


def test_an_environment_that_passes(gpurl):
    result = gpurl("check", "CartPole-v1", "--seed", 3)
    assert result.code == 0, result.out
    assert "CartPole-v1: passes" in result.out
    for name in ("determinism", "backend agreement", "steps/s", "registers"):
        assert name in result.out


def test_one_from_a_file_that_does_not_ends_with_one(gpurl, tmp_path):
    source = "from tests.gpuenvs.contract import planted\nBAD = planted.variant(step=planted.float64_reward)\n"
    (tmp_path / "bad_env.py").write_text(source)
    result = gpurl("check", f"{tmp_path / 'bad_env.py'}:BAD", "--json")
    assert result.code == 1
    assert result.json["ok"] is False
    (failed,) = [f for f in result.json["findings"] if f["status"] == "fail"]
    assert failed["check"] == "functions"
    assert f"planted.py, line {marked(contract.float64_reward)})" in failed["found"]
    assert "returns a float64 as reward" in failed["advice"]


def test_the_table_says_what_to_do(gpurl, tmp_path):
    source = "from tests.gpuenvs.contract import planted\nBAD = planted.variant(step=planted.prints)\n"
    (tmp_path / "bad_env.py").write_text(source)
    result = gpurl("check", f"{tmp_path / 'bad_env.py'}:BAD")
    assert result.code == 1
    assert "print cannot be compiled" in " ".join(result.out.split())
    assert "Planted-v0: does not pass (1 failed, 12 skipped)" in result.out


def test_an_unknown_environment_is_a_usage_error(gpurl):
    result = gpurl("check", "CartPool-v1")
    assert result.code == 2
    assert "did you mean CartPole-v1" in result.err


def test_training_on_an_environment_that_indexes_out_of_range_ends_in_one_line(gpurl, tmp_path, tiny):
    source = "from tests.gpuenvs.checks import planted\nBAD = planted.variant(step=planted.indexes_a_tuple)\n"
    (tmp_path / "bad_env.py").write_text(source)
    options = [word for word in tiny if word != "engine=torch"][:-1]  # in the kernel that holds policy and environment
    result = gpurl("train", f"{tmp_path / 'bad_env.py'}:BAD", *options, "--run-dir", tmp_path / "run", "-q")
    assert result.code == 1
    assert result.err.strip().count("\n") == 0, result.err
    assert f"planted.py, line {marked(checks.indexes_a_tuple)})" in result.err
