import pytest

from benchmarks import publish

MACHINE = {
    "benchmark": "machine",
    "cpu": "X",
    "cores": 2,
    "python": "3.11.7",
    "versions": {"numba": "0.68.1", "torch": None},
}


def test_the_readme_shows_what_was_measured():
    readme = (publish.ROOT / "README.md").read_text()
    assert publish.fill(readme, publish.sections(publish.RESULTS)) == readme


def test_tables_replace_what_stood_between_the_markers():
    document = "a\n<!-- measured:env -->\nold\n<!-- end -->\nb\n<!-- measured:train -->\n<!-- end -->\n"
    filled = publish.fill(document, {"env": "| new |\n"})
    assert filled == "a\n<!-- measured:env -->\n\n| new |\n\n<!-- end -->\nb\n<!-- measured:train -->\n<!-- end -->\n"
    assert publish.fill(filled, {"env": "| new |\n"}) == filled


def test_a_table_without_a_place_is_an_error():
    with pytest.raises(ValueError, match="presets"):
        publish.fill("nothing here", {"presets": "| x |\n"})


def test_env_table_rows():
    rows = [
        MACHINE,
        {"env": "CartPole-v1", "contender": "gpurl", "steps_per_second": 400e6, "jit_seconds": 1.5,
         "floor": {"fraction": 0.48, "bound": "arithmetic"}},
        {"env": "CartPole-v1", "contender": "EnvPool", "steps_per_second": 2e6, "gpurl_ratio": 200.0,
         "version": "1.2"},
        {"env": "CartPole-v1", "contender": "Other", "missing": "other", "install": "pip install other"},
    ]  # fmt: skip
    lines = publish.env_table(rows).splitlines()
    assert lines[0] == "2 cores of X; Python 3.11.7, numba 0.68.1."
    assert lines[4:] == [
        "| CartPole-v1 | gpurl | 400 M |  | 1.5 | 48% of arithmetic |",
        "| CartPole-v1 | EnvPool (1.2) | 2 M | 200x |  |  |",
        "| CartPole-v1 | Other | - |  |  |  |",
    ]


def test_train_table_rows():
    shape = {"num_envs": 64, "num_steps": 64, "update_epochs": 4, "num_minibatches": 4}
    rows = [MACHINE, {**shape, "contender": "rejax PPO", "samples_per_second": 250e3, "gpurl_ratio": 1.5}]
    assert publish.train_table(rows).splitlines()[-1] == "| 64 x 64 x 4 x 4 | rejax PPO | 250 k | 1.50x |  |  |"
