"""`gpurl resume RUN`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.observing import observer_options
from cli.options import QUIET, RUN, Count, changed_env_option, eval_episodes_option, moved_env_option

if TYPE_CHECKING:
    from learners.observers.attached import ObserverOptions


@click.command("resume")
@RUN
@click.option(
    "-t", "--total-steps", type=Count(), help="New end of the run; annealing follows it.  [default: as before]"
)
@click.option("-d", "--device", metavar="auto|cpu|cuda[:N]", help="Another device.  [default: as before]")
@eval_episodes_option
@observer_options
@QUIET
@changed_env_option
@moved_env_option
def command(
    run: Path,
    total_steps: int | None,
    device: str | None,
    eval_episodes: int,
    watching: ObserverOptions,
    quiet: bool,
    allow_changed_env: bool,
    env: str | None,
) -> int:
    """Go on with RUN from its latest checkpoint, exactly as if it had never stopped."""
    from cli.training import finish, run_session
    from learners.session import resume

    with resume(run, total_steps, device, allow_changed_env, env=env) as session:
        outcome = run_session(session, quiet, watching)
        return finish(session, outcome, eval_episodes)
