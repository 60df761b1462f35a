"""Options and argument types that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


class Count(click.ParamType):
    """A whole number, which may be written 1e6, 1_000_000, 500k or 2M; at least `low`."""

    name = "number"

    def __init__(self, low: int = 1) -> None:
        self._low = low

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip().replace("_", "")
        scale = {"k": 1e3, "M": 1e6, "G": 1e9}.get(text[-1:], 1)
        digits = text[:-1] if scale != 1 else text
        try:
            number = int(digits) if scale == 1 and digits.lstrip("+-").isdigit() else float(digits) * scale
            whole = int(number)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a whole number", param, ctx)
        if whole != number:
            self.fail(f"{value!r} is not a whole number", param, ctx)
        if whole < self._low:
            self.fail(f"must be at least {self._low}, got {value}", param, ctx)
        return whole


RUN = click.argument("run", type=click.Path(path_type=Path))
SEED = click.option("-s", "--seed", type=Count(0), default=0, show_default=True, help="Random seed.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
QUIET = click.option("-q", "--quiet", is_flag=True, help="No progress line.")


def checkpoint_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--checkpoint, which of a run's policies to take."""
    return click.option(
        "-c",
        "--checkpoint",
        default="latest",
        show_default=True,
        metavar="latest|best|STEP",
        help="Which of the run's checkpoints.",
    )(function)


def device_option(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """--device with a default."""
    return click.option(
        "-d", "--device", default=default, show_default=True, metavar="auto|cpu|cuda[:N]", help="Where to compute."
    )


def eval_episodes_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--eval-episodes of train and resume."""
    return click.option(
        "--eval-episodes",
        type=Count(0),
        default=100,
        show_default=True,
        help="Episodes of the closing evaluation; 0 leaves it out.",
    )(function)


def changed_env_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--allow-changed-env of eval, play and resume."""
    return click.option(
        "--allow-changed-env",
        is_flag=True,
        help="Go on although the environment's code is not what the run was made with.",
    )(function)


def moved_env_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--env of eval, play and resume."""
    return click.option(
        "--env",
        metavar="FILE:NAME",
        help="Where the environment is now, if its file was moved.  [default: where it was]",
    )(function)
