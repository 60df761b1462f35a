import gpuenvs


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
