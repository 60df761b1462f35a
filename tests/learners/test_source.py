"""Digests of an environment's source: what counts as a change, and how a change is told."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gymnasium.spaces import Box

import gpuenvs
from gpuenvs import Range
from gpuenvs.errors import CheckpointError
from learners import source
from tests.gpuenvs.user_files import ENV, write

ROOT = Path(__file__).parents[2]


def digests(folder, env=ENV, name="drift.py", **parts):
    """The fingerprint of a file in a folder of its own; this process reads a file once."""
    write(folder, env=env, **parts)
    return source.fingerprint(gpuenvs.get(str((folder / "drift.py").rename(folder / name))))


def digests_elsewhere(folder):
    """The same in another process, as a later run sees it."""
    file = write(folder)
    code = "import json, sys, gpuenvs\nfrom learners.source import fingerprint\n"
    code += "print(json.dumps(fingerprint(gpuenvs.get(sys.argv[1]))))"
    env_variables = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "random"}
    command = [sys.executable, "-c", code, str(file)]
    done = subprocess.run(command, env=env_variables, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def differing(one, other):
    return {k for k in {**one["parts"], **other["parts"]} if one["parts"].get(k) != other["parts"].get(k)}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return digests_elsewhere(tmp_path_factory.mktemp("base"))


def test_the_same_source_has_the_same_digest_in_another_folder_and_process(base, tmp_path):
    assert digests(tmp_path) == base
    assert {"drift.py: step", "helper.py: push", "constants.py: GAIN", "params.rate", "observation_space"} <= set(
        base["parts"]
    )


def test_comments_layout_and_docstrings_do_not_count(base, tmp_path):
    text = ENV.replace(
        "    return (state.x,)", '    """What is seen."""\n\n    # all of it\n    return (\n        state.x,\n    )'
    )
    text = text.replace("x > f32(1e6)", "x  >  f32(1e6)  # far")
    assert text.count("What is seen") == 1
    assert digests(tmp_path, text)["hash"] == base["hash"]


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("x > f32(1e6)", "x > f32(1e5)", "drift.py: step"),
        ("make_bias(0.0)", "make_bias(0.5)", "drift.py: value"),
        ("return x + f32(value)", "return x - f32(value)", "drift.py: make_bias.<locals>.bias"),
        ("rate: float = 1.0", "rate: float = 2.0", "params.rate"),
        ("max_episode_steps=50", "max_episode_steps=60", "max_episode_steps"),
        ("Box(-1.0, 1.0, (1,))", "Box(-2.0, 1.0, (1,))", "action_space"),
        ("(state.x,)", "(state.x + params.rate,)", "drift.py: observe"),
    ],
)
def test_a_change_of_what_is_computed_counts_and_only_it(base, tmp_path, old, new, part):
    assert ENV.count(old) >= 1
    found = digests(tmp_path, ENV.replace(old, new))
    assert differing(base, found) == {part}
    assert found["hash"] != base["hash"]


def test_a_helper_and_a_constant_in_other_files_count(base, tmp_path):
    assert differing(base, digests(tmp_path / "a", gain=3.0)) == {"constants.py: GAIN"}
    assert differing(base, digests(tmp_path / "b", factor=2.0)) == {"helper.py: push"}


def test_changes_are_told_with_values_and_files(base, tmp_path):
    file = write(tmp_path, gain=9.0, factor=2.0)
    spec = gpuenvs.get(str(file))
    assert source.changes(base, spec) == ["constants.py: GAIN (2.0 -> 9.0)", "helper.py: push"]
    with pytest.raises(CheckpointError) as caught:
        source.check(base, spec)
    said = str(caught.value)
    assert said.startswith(
        "Drift-v0 has changed since this run was made: constants.py: GAIN (2.0 -> 9.0), helper.py: push"
    )
    assert "--allow-changed-env" in said
    assert "\n" not in said
    assert source.check(base, spec, allow=True) == source.changes(base, spec)
    assert source.check(None, spec) == []  # a run of an older gpurl


def test_another_name_of_the_file_is_no_change(base, tmp_path):
    digests(tmp_path, name="moved.py")
    assert source.changes(base, gpuenvs.get(str(tmp_path / "moved.py"))) == []


def test_ranges_count_and_a_curriculum_only_while_training():
    spec = gpuenvs.get("Pendulum-v1")
    name = spec.params._fields[0]

    def curriculum(step):
        return {name: 1.0}

    before = source.fingerprint(spec)
    ranged = dataclasses.replace(spec, ranges={name: Range(0.5, 2.0)})
    assert {words.split(" (")[0] for words in source.changes(before, ranged)} >= {f"ranges.{name}"}
    planned = dataclasses.replace(spec, curriculum=curriculum)
    assert source.changes(before, planned) == []
    assert any("curriculum" in words for words in source.changes(before, planned, training=True))


def test_the_same_functions_in_another_space_are_another_environment():
    spec = gpuenvs.get("Pendulum-v1")
    other = dataclasses.replace(spec, observation_space=Box(-9, 9, (3,)))
    (words,) = source.changes(source.fingerprint(spec), other)
    assert words.startswith("observation_space (")


@pytest.mark.parametrize("env_id", gpuenvs.ids())
def test_every_built_in_environment_has_parts_of_its_own_file(env_id):
    if env_id.endswith("-v5"):
        pytest.importorskip("mujoco")
    found = source.fingerprint(gpuenvs.get(env_id))
    assert json.loads(json.dumps(found)) == found
    own = [name for name in found["parts"] if name.startswith(f"{found['file']}: ")]
    assert len(own) >= 2
    assert not any(name.startswith(("scalar.py", "rng.py", "task.py")) for name in found["parts"])


def test_options_that_change_the_environment_count():
    pytest.importorskip("mujoco")
    spec = gpuenvs.get("Hopper-v5")
    other, _ = spec.with_options({"exclude_current_positions_from_observation": False})
    assert "observation_space" in source.changes(source.fingerprint(spec), other)
