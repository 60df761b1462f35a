import gpuenvs
from tests.gpuenvs.user_files import write


def test_the_table_names_every_environment(gpurl):
    result = gpurl("envs")
    assert result.code == 0
    for env_id in gpuenvs.ids():
        assert env_id in result.out


def test_json(gpurl):
    rows = {row["id"]: row for row in gpurl("envs", "--json").json}
    assert set(gpuenvs.ids()) == set(rows)
    cartpole = rows["CartPole-v1"]
    assert cartpole["obs_dim"] == 4 and cartpole["actions"] == "2 discrete" and cartpole["max_episode_steps"] == 500
    assert cartpole["params"]["gravity"] == 9.8


def test_environments_that_are_named_are_shown_alone_a_users_own_among_them(gpurl, tmp_path):
    file = write(tmp_path)
    rows = gpurl("envs", f"{file}:SPEC", "CartPole-v1", "--json").json
    assert [row["id"] for row in rows] == ["Drift-v0", "CartPole-v1"]
    assert rows[0]["about"] == "Drift: x moves by GAIN * push."
    refused = gpurl("envs", f"{file}:SPECK")
    assert refused.code == 2
    assert "did you mean SPEC" in refused.err
