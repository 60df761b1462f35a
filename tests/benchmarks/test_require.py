import json

import pytest
from click.testing import CliRunner

from benchmarks.require import main


@pytest.mark.parametrize(("mean", "code"), [(475.0, 0), (474.9, 1)])
def test_the_goal_is_inclusive(tmp_path, mean, code):
    file = tmp_path / "eval.json"
    file.write_text(json.dumps({"env_id": "CartPole-v1", "on": "gymnasium", "mean": mean, "episodes": 100}))
    result = CliRunner().invoke(main, [str(file), "--return-at-least", "475"])
    assert result.exit_code == code
    assert f"{mean:.2f}" in result.output
