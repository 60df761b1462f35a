"""`gpurl eval RUN`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from cli.options import JSON, RUN, SEED, Count, changed_env_option, checkpoint_option, device_option, moved_env_option


@click.command("eval")
@RUN
@click.option("-e", "--episodes", type=Count(), default=100, show_default=True, help="Complete episodes.")
@click.option(
    "--on",
    type=click.Choice(["gymnasium", "gpuenvs"]),
    help="Whose environment.  [default: Gymnasium's, if it has the same one]  Runs of the host backend have one only.",
)
@SEED
@click.option("--sample", is_flag=True, help="Draw actions from the policy instead of taking the most likely one.")
@click.option(
    "--same-starts", is_flag=True, help="On gpuenvs: begin where Gymnasium's episodes of this seed begin, to compare."
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="env.NAME=VALUE",
    help="Another value of a parameter, or a range to draw it from; may be repeated.  [default: the training's, and the "
    "environment's own where the training draws]",
)
@checkpoint_option
@device_option("cpu")
@JSON
@changed_env_option
@moved_env_option
def command(
    run: Path,
    episodes: int,
    on: str | None,
    seed: int,
    sample: bool,
    same_starts: bool,
    overrides: tuple[str, ...],
    checkpoint: str,
    device: str,
    as_json: bool,
    allow_changed_env: bool,
    env: str | None,
) -> None:
    """Evaluate RUN's policy over complete episodes in an environment of its own, with its own seeds.

    RUN is a run's folder, or a checkpoint file in one. The result is also saved under RUN/evaluations.
    """
    from cli.training import describe
    from gpuenvs.errors import RunError
    from learners.session import evaluate_run, open_policy, save_evaluation

    directory, config, policy, step = open_policy(run, checkpoint, device, allow_changed_env, env)
    result = evaluate_run(config, policy, episodes, on, seed, not sample, same_starts, overrides)
    if as_json:
        click.echo(json.dumps({"run": str(directory.path), "step": step, **result.to_dict()}, indent=2))
    else:
        click.echo(describe(result))
    try:
        save_evaluation(directory, result, step)
    except RunError as error:  # the result is on the screen: a read-only run is no failure
        click.echo(f"note: not saved: {error}", err=True)
