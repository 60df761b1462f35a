"""Options of train and resume: who looks at the training while it goes on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from cli.options import Count

_OPTIONS = (
    click.option(
        "--eval-every",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help="Evaluate in a process of its own while training goes on, so often; 0: all the time.  [default: not at all]",
    ),
    click.option(
        "--eval-every-episodes", type=Count(), default=10, show_default=True, help="Episodes of each such evaluation."
    ),
    click.option(
        "--video-every", type=Count(0), default=0, metavar="K", help="Film an episode after every K such evaluations."
    ),
    click.option("--watch", is_flag=True, help="Serve a page, to this machine only, on which the policy acts."),
    click.option(
        "--watch-port",
        type=click.IntRange(1, 65535),
        default=8080,
        show_default=True,
        help="Of the page; the next free one if that is taken.",
    ),
)


def observer_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options; the command gets `watching`, checked `ObserverOptions`."""

    @functools.wraps(function)
    def command(
        eval_every: float | None,
        eval_every_episodes: int,
        video_every: int,
        watch: bool,
        watch_port: int,
        **others: Any,
    ) -> Any:
        from learners.observers.attached import ObserverOptions

        watching = ObserverOptions(eval_every, eval_every_episodes, video_every, watch, watch_port)
        watching.check()
        return function(watching=watching, **others)

    for option in reversed(_OPTIONS):
        command = option(command)
    return command
