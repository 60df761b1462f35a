import json
from dataclasses import dataclass

import pytest

from cli.app import run


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def gpurl(capsys):
    """Runs one command line in this process: `gpurl("envs", "--json")`."""

    def call(*args):
        capsys.readouterr()
        code = run([str(arg) for arg in args])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The folder of a tiny finished run; tests must not change it."""
    path = tmp_path_factory.mktemp("cli") / "run"
    assert run(["train", "CartPole-v1", *TINY, "--run-dir", str(path), "--eval-episodes", "3", "-q"]) == 0
    return path


# 8 environments x 16 steps an iteration, 6 iterations.
TINY = ("-d", "cpu", "-n", "8", "-t", "768", "--checkpoint-every", "128", "--set", "num_steps=16", "--set", "minibatches=2",
        "--set", "epochs=2", "--set", "hidden_sizes=8", "--set", "engine=torch")  # fmt: skip


@pytest.fixture
def tiny():
    return TINY
