"""`gpurl tune ENV`, and what `gpurl train` does with --auto-tune and --tuned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from cli.options import QUIET, SEED, Count, device_option

BUDGET = click.option(
    "--budget",
    type=float,
    metavar="SECONDS",
    default=45.0,
    show_default=True,
    help="How long tuning may take; compiling kernels for the first time comes on top.",
)


def tuning_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """--auto-tune and --tuned of train."""
    options = (
        click.option("--auto-tune", is_flag=True, help="Tune first, as `gpurl tune` does, then train with the result."),
        click.option(
            "--tuned",
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            help="Take the decisions over that a tuning has made: what `gpurl tune` wrote, or a run's tuning.json.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


@click.command("tune")
@click.argument("env")
@click.option("-a", "--algo", default="ppo", show_default=True, help="Algorithm: ppo, a2c, sac, td3 or dqn.")
@click.option("--schedule", default="sync", show_default=True, help="Who collects and learns when; as of train.")
@click.option("-n", "--num-envs", type=Count(), help="Keep this number of environments.")
@SEED
@device_option("auto")
@click.option("--set", "overrides", multiple=True, metavar="NAME=VALUE", help="Keep a setting at this value.")
@BUDGET
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File of the result.  [default: runs/ENV/tuning-ALGO-SCHEDULE.json]",
)
@QUIET
def command(
    env: str,
    algo: str,
    schedule: str,
    num_envs: int | None,
    seed: int,
    device: str,
    overrides: tuple[str, ...],
    budget: float,
    out: Path | None,
    quiet: bool,
) -> None:
    """Find settings for ENV that learn sooner on this machine: measure, propose, and check by short trainings.

    What is tuned is how much is done at once (environments, horizon, batch, update-to-data ratio, cores), no more. Settings
    that you give stay as they are. The default stays unless another was ahead of it with two seeds.

    \b
    gpurl tune Pendulum-v1 -a sac --schedule spreeze
    gpurl train Pendulum-v1 -a sac --schedule spreeze --tuned runs/Pendulum-v1/tuning-sac-spreeze.json
    """
    from learners.tuning import file

    options = {"num_envs": num_envs, "seed": seed, "device": device}
    document = tuned_document(env, algo, schedule, overrides, options, budget, quiet)
    path = out or Path("runs", document["env"].replace("/", "_"), f"tuning-{algo}-{schedule}.json")
    file.save(path, document)
    print_tuning(document)
    click.echo(f"tuning: {path}")


def tuned_document(
    env: str, algo: str, schedule: str, overrides: tuple[str, ...], options: dict[str, Any], budget: float, quiet: bool
) -> dict[str, Any]:
    """Tune what `gpurl train` with these options would train."""
    from gpuenvs.errors import ConfigError
    from learners.build import resolve
    from learners.tuning.file import given_names
    from learners.tuning.tune import tune

    if schedule == "auto":
        raise ConfigError("tuning is for one schedule; name it with --schedule instead of auto")
    config = resolve(env, algo=algo, schedule=schedule, overrides=overrides, **options)
    fixed = given_names(overrides, options)
    devices = ("placement", "learner_device", "critic_device", "actor_device")
    free = options.get("device", "auto") == "auto" and all(options.get(name) is None for name in devices)
    say = (lambda line: None) if quiet else lambda line: click.echo(line, err=True)
    return tune(config, budget, fixed, free and config.env_backend == "device", say)


def tuned_request(
    env: str,
    algo: str,
    schedule: str,
    overrides: tuple[str, ...],
    options: dict[str, Any],
    tuned: Path | None,
    quiet: bool,
) -> tuple[dict[str, Any], tuple[str, ...], dict[str, Any]]:
    """(the tuning, overrides, options) of a training with the decisions of `tuned`, or of a tuning made now."""
    from learners import envs
    from learners.tuning import file
    from learners.tuning.tune import BUDGET_SECONDS

    spec, _ = envs.configured(env, options.get("env_backend", "device"), ())
    if tuned is not None:
        document, where = file.read(tuned), str(tuned)
    else:
        document = tuned_document(env, algo, schedule, overrides, options, BUDGET_SECONDS, quiet)
        where = "the tuning"
        if not quiet:
            print_tuning(document)
    return (document, *file.applied(document, spec.id, algo, schedule, overrides, options, where))


def print_tuning(document: dict[str, Any]) -> None:
    """The check: every training of a candidate, when it reached the common return, and what was decided."""
    from cli.tables import print_table
    from learners.tuning.verdict import Trial

    decision, goal = document["decision"], document["decision"]["goal"]
    speedups = {candidate["name"]: candidate["speedup"] for candidate in document["candidates"]}
    rows = []
    for entry in document["trials"]:
        trial = Trial.from_dict(entry)
        time = "-" if goal is None else f"{trial.time_to(goal):.2f}".replace("inf", "never")
        steps = f"{trial.points[-1].step:,}"
        predicted = f"{speedups[trial.name]:.2f}"
        rows.append([trial.name, str(trial.seed), predicted, f"{trial.seconds:.1f}", steps, f"{trial.last:.1f}", time])
    if rows:
        to = "seconds to it" if goal is None else f"seconds to {goal:.4g}"
        header = ["settings", "seed", "model", "seconds", "steps", "return", to]
        print_table(header, rows, right=range(1, len(header)))
    click.echo(f"{document['env']} {document['algo']} {document['schedule']}: {decision['why']}")
    decided = {**decision["settings"], **decision["schedule_settings"]}
    shown = " ".join(f"{name}={value}" for name, value in decided.items()) or "the default"
    click.echo(f"tuned in {document['seconds']:.0f} s: {shown}")
