"""The commands on an environment in a file: trained, evaluated, changed, moved, refused. A file is read once per process, so
that a changed one is in another folder here."""

from __future__ import annotations

import json

from tests.gpuenvs.user_files import ENV, TRACED, write


def test_a_changed_environment_is_refused_until_told(gpurl, tmp_path, tiny, recwarn):
    run, file = tmp_path / "run", write(tmp_path / "first", env=TRACED)
    done = gpurl("train", f"{file}:SPEC", *tiny, "-o", run, "-q", "--eval-episodes", "2")
    assert done.code == 0, done.err
    assert "eval: gpuenvs DriftTraced-v0" in done.out
    digest = json.loads((run / "config.json").read_text())["source"]
    assert digest["parts"]["constants.py: GAIN"] == "=2.0"

    same = write(tmp_path / "same", env=TRACED.replace("import constants\n", "import constants  # a comment\n"))
    assert gpurl("eval", run, "-e", "2", "--env", f"{same}:SPEC").code == 0

    changed = ("--env", f"{write(tmp_path / 'changed', gain=3.0, env=TRACED)}:SPEC")
    for refused in (("eval", run), ("play", run, "-o", tmp_path / "x.gif"), ("resume", run, "-t", "2000")):
        done = gpurl(*refused, *changed)
        assert done.code == 1
        (line,) = done.err.strip().splitlines()
        words = "error: DriftTraced-v0 has changed since this run was made: constants.py: GAIN (2.0 -> 3.0)"
        assert line.startswith(words)
        assert "--allow-changed-env" in line
    assert gpurl("eval", run, "-e", "2", *changed, "--allow-changed-env").code == 0
    assert gpurl("eval", run, *changed).code == 1  # an evaluation changes nothing about that

    resumed = ("resume", run, "-t", "1000", "-q", "--eval-episodes", "0", "--allow-changed-env")
    assert gpurl(*resumed, *changed).code == 0
    assert gpurl("eval", run, "-e", "2").code == 0  # from now on it is the changed environment's run
    assert gpurl("eval", run, "--env", f"{file}:SPEC").code == 1


def test_a_moved_file_is_asked_for(gpurl, tmp_path, tiny):
    file = write(tmp_path / "first", env=TRACED)
    assert gpurl("train", file, *tiny, "-t", "128", "-o", tmp_path / "run", "-q", "--eval-episodes", "0").code == 0
    file.parent.rename(tmp_path / "second")
    done = gpurl("eval", tmp_path / "run")
    (line,) = done.err.strip().splitlines()
    assert done.code == 2
    assert line == f"error: no file {file}; if it was moved, say with --env FILE:NAME where it is"
    assert gpurl("eval", tmp_path / "run", "-e", "2", "--env", tmp_path / "second" / "drift.py").code == 0


def test_ranges_and_mistakes_on_the_command_line(gpurl, tmp_path, tiny):
    file = write(tmp_path)
    done = gpurl("train", file, "--list-settings")
    assert done.code == 0
    assert "env.rate" in done.out
    done = gpurl("train", f"{file}:SPEC", *tiny, "-q", "--set", "env.rate=2..1")
    assert (done.code, "low <= high" in done.err) == (2, True)
    done = gpurl("train", f"{file}:SPEK", *tiny, "-q")
    assert (done.code, "did you mean SPEC" in done.err) == (2, True)
    broken = write(tmp_path / "broken", env=ENV + "\nprint(1 / 0)\n")
    done = gpurl("train", f"{broken}:SPEC", *tiny, "-q")
    (line,) = done.err.strip().splitlines()
    assert done.code == 1
    assert "ZeroDivisionError" in line
    assert f"line {len(ENV.splitlines()) + 2}" in line
