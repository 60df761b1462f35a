import json

import pytest

from learners import checkpoint
from learners.runs import RunDirectory


def test_one_line_for_a_person(gpurl, trained):
    result = gpurl("eval", trained, "-e", "4")
    assert result.code == 0 and result.out.startswith("eval: Gymnasium's CartPole-v1: return ")
    assert "4 episodes, deterministic" in result.out


@pytest.mark.parametrize("on", ["gymnasium", "gpuenvs"])
def test_json(gpurl, trained, on):
    document = gpurl("eval", trained, "-e", "5", "--on", on, "-s", "3", "--json").json
    assert document["on"] == on and document["seed"] == 3 and document["episodes"] == 5
    assert len(document["returns"]) == len(document["lengths"]) == 5
    assert document["run"] == str(trained) and document["step"] == 768
    assert {"mean", "std", "stderr", "min", "max"} <= document.keys()


def test_gymnasiums_starts(gpurl, trained):
    document = gpurl("eval", trained, "-e", "5", "--on", "gpuenvs", "--same-starts", "--json").json
    there = gpurl("eval", trained, "-e", "5", "--on", "gymnasium", "--json").json
    assert document["same_starts"] and document["lengths"] == there["lengths"]
    refused = gpurl("eval", trained, "--same-starts")
    assert refused.code != 0 and "on gpuenvs" in refused.err


def test_the_seed_decides(gpurl, trained):
    first, again, other = (gpurl("eval", trained, "-e", "5", "-s", seed, "--json").json for seed in (1, 1, 2))
    assert first == again and first["returns"] != other["returns"]


def test_sampling_differs(gpurl, trained):
    sampled = gpurl("eval", trained, "-e", "5", "--sample", "--json").json
    assert sampled["deterministic"] is False


def test_every_evaluation_is_kept(gpurl, trained):
    folder = RunDirectory(trained).evaluations
    before = len(list(folder.iterdir()))
    gpurl("eval", trained, "-e", "2")
    gpurl("eval", trained, "-e", "3")
    assert len(list(folder.iterdir())) == before + 2


def test_other_checkpoints(gpurl, trained):
    run = RunDirectory(trained)
    first = checkpoint.list_steps(run.checkpoints)[0][0]
    assert gpurl("eval", trained, "-e", "1", "-c", first, "--json").json["step"] == first
    assert gpurl("eval", run.find_checkpoint(first), "-e", "1", "--json").json["step"] == first
    assert gpurl("eval", trained, "-e", "1", "-c", "best", "--json").code == 0
    result = gpurl("eval", trained, "-c", "7")
    assert result.code == 1 and "there are: latest, best" in result.err


def test_a_read_only_run_is_evaluated_all_the_same(gpurl, trained, monkeypatch):
    from gpuenvs.errors import RunError
    from learners import session

    def refuse(*args):
        raise RunError("cannot write x: Read-only file system; choose a folder that can be written and try again")

    monkeypatch.setattr(session, "save_evaluation", refuse)
    result = gpurl("eval", trained, "-e", "2", "--json")
    assert result.code == 0 and json.loads(result.out)["episodes"] == 2 and "Read-only" in result.err


def test_not_a_run(gpurl, tmp_path):
    result = gpurl("eval", tmp_path)
    assert result.code == 1 and "is not a run directory" in result.err
