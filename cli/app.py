"""The command group, and the one place where errors become a line on stderr and an exit code."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence

import click

# Command -> its line in `gpurl --help`. Each is `command` in cli/<command>.py, imported when it is used.
COMMANDS = {
    "envs": "List the environments.",
    "check": "Check an environment of your own.",
    "train": "Train a policy.",
    "tune": "Find settings that learn sooner on this machine.",
    "resume": "Go on with a stopped run.",
    "eval": "Evaluate a run's policy.",
    "play": "Render a run's policy to a video.",
    "plot": "Draw learning curves of runs.",
    "compare": "Compare runs: return at a time, time to a return.",
    "bench": "Measure environments or training.",
    "doctor": "Show what was found on this machine.",
}
USAGE_ERROR, FAILURE = 2, 1


class _Commands(click.Group):
    """Sub-commands that are imported only when called, so that `--help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return importlib.import_module(f"cli.{cmd_name}").command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            from gpuenvs.errors import near_names

            known = near_names(args[0], COMMANDS) or f"; there are: {', '.join(COMMANDS)}"
            raise click.UsageError(f"no command {args[0]!r}{known}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _show_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        import gpuenvs

        click.echo(f"gpurl {gpuenvs.__version__}")
        ctx.exit()


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Try:  gpurl train CartPole-v1",
)
@click.option(
    "-V",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version.",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def gpurl(ctx: click.Context, debug: bool) -> None:
    """Reinforcement learning on environments compiled for SIMD CPUs and CUDA.

    Environments are a few scalar functions, stepped thousands at a time; learners are PyTorch. Every command
    works without a GPU.
    """


def run(args: Sequence[str]) -> int:
    """Run one command line. Returns the exit code: 0, 1 for a failure, 2 for a usage error, 130 for Ctrl-C."""
    debug = "--debug" in args
    args = [arg for arg in args if arg != "--debug"]  # accepted anywhere on the line
    try:
        result = gpurl.main(args, prog_name="gpurl", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted", 130, traceback.format_exc() if debug else "", label=False)
    except BrokenPipeError:  # `gpurl envs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except Exception as error:
        message, code = _explain(error)
        return _fail(message, code, traceback.format_exc() if debug else _where(error))


def _where(error: Exception) -> str:
    """The traceback of what nobody foresaw: an error in gpurl, or in an environment that runs in another process."""
    from gpuenvs.errors import GpurlError

    foreseen = isinstance(error, click.ClickException | GpurlError | MemoryError)
    return getattr(error, "traceback", "") if foreseen else "".join(traceback.format_exception(error))


def _explain(error: Exception) -> tuple[str, int]:
    """The line and the exit code for an error."""
    from gpuenvs.errors import ConfigError, GpurlError, UnknownEnvError  # not before: `--help` needs no gpuenvs

    if isinstance(error, click.UsageError):
        hint = f" (see `{error.ctx.command_path} --help`)" if error.ctx else ""
        return error.format_message() + hint, USAGE_ERROR
    if isinstance(error, click.ClickException):
        return error.format_message(), FAILURE
    if isinstance(error, GpurlError):
        return str(error), USAGE_ERROR if isinstance(error, ConfigError | UnknownEnvError) else FAILURE
    if isinstance(error, MemoryError):
        return "out of memory; use fewer --num-envs or a smaller batch", FAILURE
    text = " ".join(str(error).split()) or "no message"
    return f"internal error: {type(error).__name__}: {text[:300]}", FAILURE


def _fail(message: str, code: int, trace: str, label: bool = True) -> int:
    if os.environ.get("WORLD_SIZE", "1") not in ("", "1"):
        from learners.distributed import silent

        if silent(message.startswith("internal error")):
            return code
    if trace:
        click.echo(trace.rstrip(), err=True)
    line = " ".join(message.split())
    click.echo(f"error: {line}" if label else line, err=True)
    return code
