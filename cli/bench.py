"""`gpurl bench env|train|kernels`: prints what benchmarks/ measures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from cli.options import JSON, Count, device_option

_SHARED = (
    click.option("--peers", is_flag=True, help="Also the libraries gpurl is compared with, those that are installed."),
    click.option(
        "--peers-python", metavar="PATH", help="Interpreter that has the peers.  [default: GPURL_PEERS_PYTHON]"
    ),
    click.option("--seconds", type=click.FloatRange(0.01), help="Length of a timed window."),
    click.option("--repeats", type=Count(), help="Timed processes per contender; the median counts."),
    JSON,
)


def _shared(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_SHARED):
        function = option(function)
    return function


@click.group("bench")
def command() -> None:
    """Measure this machine. Contenders take turns in processes of their own, on the same cores."""


@command.command("env", short_help="Environment steps per second.")
@click.argument("envs", nargs=-1, metavar="[ENV]...")
@_shared
def env(envs: tuple[str, ...], as_json: bool, peers_python: str | None, **options: Any) -> None:
    """Environment steps per second under random actions, resets included; all environments by default.

    ENV is an id, or an environment of your own: path/to/my_env.py:NAME or package.module:NAME.
    """
    from benchmarks import env_bench

    chosen = {"env_ids": envs} if envs else {}
    _show(env_bench, as_json, peers_python_path=peers_python, **chosen, **_given(options))


@command.command("train", short_help="Training samples per second.")
@_shared
def train(as_json: bool, peers_python: str | None, **options: Any) -> None:
    """Samples per second of PPO on CartPole: the same network, batch and epochs for every contender."""
    from benchmarks import train_bench

    _show(train_bench, as_json, peers_python_path=peers_python, **_given(options))


@command.command("kernels", short_help="Bytes, operations, and what share of the device's best is reached.")
@click.argument("envs", nargs=-1, metavar="[ENV]...")
@device_option("cpu")
@click.option("-n", "--num-envs", type=Count(), help="Environments of a batch.  [default: by device and environment]")
@click.option("--seconds", type=click.FloatRange(0.01), help="Length of a timed window.")
@click.option("--repeats", type=Count(), help="Timed processes per environment; the median counts.")
@JSON
def kernels(envs: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Each kernel against a copy and a sgemm measured in the same run; classic control by default."""
    from benchmarks import kernel_bench

    chosen = {"env_ids": envs} if envs else {}
    _show(kernel_bench, as_json, **chosen, **_given(options))


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given; the benchmark knows the defaults of the others."""
    return {name: value for name, value in options.items() if value is not None}


def _show(bench: Any, as_json: bool, **options: Any) -> None:
    from benchmarks.report import json_lines

    rows = bench.run(progress=lambda message: click.echo(message, err=True), **options)
    if as_json:
        click.echo(json_lines(rows), nl=False)
        return
    from cli.tables import console

    for table in bench.tables(rows):
        console().print(table)
