"""The commands on an environment in a file: trained, evaluated, changed, refused. A file is read once per process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpuenvs.user_files import ENV, write

ROOT = Path(__file__).parents[2]


@pytest.fixture
def command(tmp_path):
    """Runs one command line in the folder of drift.py; (exit code, stdout, stderr)."""

    def call(*args):
        env = {**os.environ, "PYTHONPATH": str(ROOT), "GPURL_CACHE_DIR": str(tmp_path / "cache")}
        line = [sys.executable, "-m", "cli.main", *map(str, args)]
        done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    return call


def test_a_changed_environment_is_refused_until_told(command, tmp_path, tiny):
    write(tmp_path)
    code, out, err = command("train", "drift.py:SPEC", *tiny, "-o", "run", "-q", "--eval-episodes", "2")
    assert code == 0, err
    assert "eval: gpuenvs Drift-v0" in out
    digest = json.loads((tmp_path / "run" / "config.json").read_text())["source"]
    assert digest["parts"]["constants.py: GAIN"] == "=2.0"

    (tmp_path / "drift.py").write_text(ENV.replace("import constants\n", "import constants  # a comment\n"))
    assert command("eval", "run", "-e", "2")[0] == 0

    write(tmp_path, gain=3.0)
    for refused in (("eval", "run"), ("play", "run", "-o", "x.gif"), ("resume", "run", "-t", "2000")):
        code, _, err = command(*refused)
        assert code == 1
        (line,) = err.strip().splitlines()
        assert line.startswith("error: Drift-v0 has changed since this run was made: constants.py: GAIN (2.0 -> 3.0)")
        assert "--allow-changed-env" in line
    assert command("eval", "run", "-e", "2", "--allow-changed-env")[0] == 0
    assert command("eval", "run", "-e", "2")[0] == 1  # an evaluation changes nothing about that

    code, _, err = command("resume", "run", "-t", "1000", "-q", "--eval-episodes", "0", "--allow-changed-env")
    assert code == 0, err
    assert command("eval", "run", "-e", "2")[0] == 0  # from now on it is the changed environment's run


def test_ranges_and_mistakes_on_the_command_line(command, tmp_path, tiny):
    write(tmp_path)
    code, out, _ = command("train", "drift.py", "--list-settings")
    assert code == 0
    assert "env.rate" in out
    code, _, err = command("train", "drift.py:SPEC", *tiny, "-q", "--set", "env.rate=2..1")
    assert (code, "low <= high" in err) == (2, True)
    code, _, err = command("train", "drift.py:SPEK", *tiny, "-q")
    assert (code, "did you mean SPEC" in err) == (2, True)
    (tmp_path / "drift.py").write_text(ENV + "\nprint(1 / 0)\n")
    code, _, err = command("train", "drift.py:SPEC", *tiny, "-q")
    (line,) = err.strip().splitlines()
    assert code == 1
    assert "ZeroDivisionError" in line
    assert f"line {len(ENV.splitlines()) + 2}" in line
