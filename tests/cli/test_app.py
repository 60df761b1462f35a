import subprocess
import sys

import click
import pytest

from cli import app
from gpuenvs.errors import HostError, RunError


def test_help_lists_every_command(gpurl):
    result = gpurl("--help")
    assert result.code == 0
    for name in app.COMMANDS:
        assert f"  {name}" in result.out
    assert gpurl("-h").out == result.out


@pytest.mark.parametrize("name", app.COMMANDS)
def test_every_command_has_help_with_one_meaning_per_option(gpurl, name):
    result = gpurl(name, "--help")
    assert result.code == 0 and result.out.startswith(f"Usage: gpurl {name}")
    command = app.gpurl.get_command(click.Context(app.gpurl), name)
    flags = [flag for parameter in command.params if isinstance(parameter, click.Option) for flag in parameter.opts]
    assert len(flags) == len(set(flags))
    assert all(p.help for p in command.params if isinstance(p, click.Option))


def test_version(gpurl):
    import gpuenvs

    assert gpurl("--version").out == f"gpurl {gpuenvs.__version__}\n"


def test_help_imports_nothing_slow():
    code = "import sys; from cli.app import run; run(['train', '--help']); print([m for m in %r if m in sys.modules])"
    slow = ["torch", "numba", "cupy", "matplotlib", "tensorboard", "scipy"]
    done = subprocess.run([sys.executable, "-c", code % slow], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_unknown_command_suggests(gpurl):
    result = gpurl("trian", "CartPole-v1")
    assert result.code == 2 and result.err == "error: no command 'trian' (did you mean train?)\n"
    assert "there are: envs, check, train" in gpurl("xyzzy").err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["train"], "Missing argument 'ENV'"),
        (["train", "CartPole-v1", "--sede", "1"], "No such option '--sede'"),
        (["train", "CartPole-v1", "-n", "many"], "'many' is not a whole number"),
        (["train", "CartPole-v1", "-n", "0"], "must be at least 1, got 0"),
        (["train", "CartPole-v1", "-t", "-5"], "must be at least 1, got -5"),
        (["train", "CartPole-v1", "-t", "1.5"], "'1.5' is not a whole number"),
        (["eval", "x", "--on", "moon"], "'moon' is not one of"),
    ],
)
def test_usage_errors_are_one_line_and_code_2(gpurl, args, message):
    result = gpurl(*args)
    assert result.code == 2 and result.out == ""
    assert result.err.startswith("error: ") and result.err.count("\n") == 1
    assert message in result.err and f"gpurl {args[0]} --help" in result.err


def failing(error):
    @click.command()
    def command():
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (RunError("two\nlines"), 1, "error: two lines"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError(), 1, "error: out of memory"),
    ],
)
def test_an_error_is_one_line(gpurl, monkeypatch, error, code, line):
    monkeypatch.setattr(app.gpurl, "get_command", lambda ctx, name: failing(error))
    result = gpurl("envs")
    shown = result.err.strip()  # click ends the line that shows ^C
    assert result.code == code and shown.startswith(line) and "\n" not in shown


def test_an_error_that_nobody_foresaw_shows_its_traceback_and_ends_with_one_line(gpurl, monkeypatch):
    monkeypatch.setattr(app.gpurl, "get_command", lambda ctx, name: failing(ZeroDivisionError("by zero")))
    result = gpurl("envs")
    assert result.code == 1 and result.err.startswith("Traceback") and result.err.count("Traceback") == 1
    assert result.err.endswith("\nerror: internal error: ZeroDivisionError: by zero\n")


def test_an_error_in_a_host_environment_shows_the_traceback_of_its_process(gpurl, monkeypatch):
    monkeypatch.setattr(
        app.gpurl, "get_command", lambda ctx, name: failing(HostError("env 3 raised", "Traceback there"))
    )
    result = gpurl("envs")
    assert result.code == 1 and result.err == "Traceback there\nerror: env 3 raised\n"


def test_debug_shows_the_traceback_wherever_it_stands(gpurl, monkeypatch):
    monkeypatch.setattr(app.gpurl, "get_command", lambda ctx, name: failing(RunError("broken")))
    for args in (["--debug", "envs"], ["envs", "--debug"]):
        result = gpurl(*args)
        assert "Traceback" in result.err and result.err.endswith("error: broken\n")


def test_a_closed_pipe_is_no_error():
    code = "import sys; sys.path.insert(0, '.'); from cli.main import main; main()"
    command = f'{sys.executable} -c "{code}" doctor --json | head -c 1'
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stdout == "[" and done.stderr == ""
