"""`gpurl train ENV`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.observing import observer_options
from cli.options import QUIET, SEED, Count, device_option, eval_episodes_option
from cli.tune import tuned_request, tuning_options

if TYPE_CHECKING:
    from learners.observers.attached import ObserverOptions

RUNS = Path("runs")


@click.command("train")
@click.argument("env")
@click.option("-a", "--algo", default="ppo", show_default=True, help="Algorithm: ppo, a2c, sac, td3 or dqn.")
@click.option(
    "--schedule",
    default="sync",
    show_default=True,
    help="Who collects and learns when: sync (in turns), hts (at the same time, rows one update old, reproducible to the "
    "bit), async (nobody waits), spreeze (sac, td3 and dqn: every part at its own pace), or auto, which measures sync and "
    "hts.",
)
@click.option(
    "--env-backend",
    metavar="device|host",
    default="device",
    show_default=True,
    help="gpurl's own kernels, or any of Gymnasium's environments in processes of their own.",
)
@click.option(
    "--executors", type=Count(0), default=0, help="With host: processes that step environments.  [default: measured]"
)
@click.option("--actors", type=Count(), default=1, show_default=True, help="With host: threads that choose actions.")
@click.option("-t", "--total-steps", type=Count(), help="Environment steps to train for.  [default: the preset's]")
@click.option(
    "-n",
    "--num-envs",
    type=Count(),
    help="Environments stepped at once, by all processes together.  [default: the preset's]",
)
@SEED
@device_option("auto")
@click.option(
    "--placement",
    metavar="auto|cpu|colocated|split|host",
    help="Who works where: all on the CPU, all on one GPU, environments and learner on a GPU each, or environments on the "
    "CPU and the learner on a GPU; auto measures them.  [default: all on --device]",
)
@click.option("--learner-device", metavar="cuda[:N]", help="With split: the learner's GPU.  [default: the next one]")
@click.option(
    "--critic-device",
    metavar="cpu|cuda[:N]",
    help="With spreeze: where the replay is and the critics learn, apart from the actor.",
)
@click.option(
    "--actor-device",
    metavar="cpu|cuda[:N]",
    help="With spreeze: where the actor learns, at the same time as the critics.",
)
@click.option(
    "--transfer",
    metavar="auto|alias|peer|staged|pinned|remote",
    default="auto",
    show_default=True,
    help="How experience gets to the learner's device.",
)
@click.option(
    "--collector",
    metavar="auto|fused|graph|eager",
    help="How experience is collected; as --set collector=NAME.  [default: auto]",
)
@click.option(
    "-o",
    "--run-dir",
    type=click.Path(path_type=Path),
    help="Folder of this run.  [default: runs/ENV/ALGO-SCHEDULE-sSEED-TIME]",
)
@click.option("--set", "overrides", multiple=True, metavar="NAME=VALUE", help="Change a setting; may be repeated.")
@click.option("--list-settings", is_flag=True, help="Show what --set can change, then exit.")
@click.option("--dtype", type=click.Choice(["float32", "float64"]), default="float32", help="Of the environments.")
@click.option("--threads", type=Count(), help="Most CPU threads that step environments.  [default: all allowed]")
@click.option(
    "--torch-threads",
    type=Count(),
    default=1,
    show_default=True,
    help="CPU threads of torch; more pay for wide networks only.",
)
@click.option(
    "--checkpoint-every", type=Count(), help="Steps between checkpoints.  [default: a 20th of the run, at least 2 s]"
)
@click.option("--keep", type=Count(), default=3, show_default=True, help="Latest checkpoints kept, beside the best.")
@tuning_options
@eval_episodes_option
@observer_options
@QUIET
def command(
    env: str,
    algo: str,
    schedule: str,
    overrides: tuple[str, ...],
    list_settings: bool,
    run_dir: Path | None,
    keep: int,
    eval_episodes: int,
    watching: ObserverOptions,
    quiet: bool,
    collector: str | None,
    auto_tune: bool,
    tuned: Path | None,
    **options: Any,
) -> int:
    """Train a policy in ENV with settings known to work, then evaluate it in Gymnasium's own environment.

    Ctrl-C saves a checkpoint and stops; `gpurl resume RUN` goes on from there, bit for bit.

    \b
    gpurl train CartPole-v1
    gpurl train Pendulum-v1 -a ppo -s 3 -t 1e6 --set learning_rate=3e-4
    gpurl train CartPole-v1 --set env.gravity=5 --set hidden_sizes=32,32
    gpurl train ALE/Pong-v5 --env-backend host --schedule hts
    gpurl train path/to/my_env.py:SPEC
    torchrun --nproc-per-node 2 -m cli.main train CartPole-v1
    """
    if list_settings:
        _print_settings(env, options["env_backend"], algo, schedule)
        return 0
    from cli.training import finish, run_session
    from learners.build import resolve
    from learners.envs import env_name
    from learners.runs import check_new, default_path
    from learners.session import begin
    from learners.tuning.file import NAME, save

    overrides += (f"collector={collector}",) if collector else ()
    tuning = None
    if auto_tune or tuned is not None:
        if auto_tune and tuned is not None:
            raise click.UsageError("--auto-tune makes a tuning, --tuned takes one over; use one of them")
        if run_dir is not None:
            check_new(run_dir)
        tuning, overrides, options = tuned_request(env, algo, schedule, overrides, options, tuned, quiet)
    lines: list[str] = []
    config = resolve(
        env, algo=algo, schedule=schedule, overrides=overrides, keep_checkpoints=keep, say=lines.append, **options
    )
    path = run_dir or default_path(RUNS, env_name(config), algo, config.schedule, config.seed)
    with begin(config, path) as session:
        if not quiet and (session.group is None or session.group.first):
            for line in lines:
                click.echo(line, err=True)
        if tuning is not None and (session.group is None or session.group.first):
            save(session.run.path / NAME, tuning)
        outcome = run_session(session, quiet, watching)
        return finish(session, outcome, eval_episodes)


def _print_settings(env: str, backend: str, algo: str, schedule: str) -> None:
    """Every name `--set` knows, with the value it has for this environment."""
    from cli.tables import print_table
    from learners import compat, envs
    from learners.config import options
    from learners.presets import preset

    spec, _ = envs.configured(env, backend, ())
    values = preset(spec.id, algo, getattr(spec, "image", False))
    auto = "sync" if compat.off_policy(algo) else "hts"
    own = auto if schedule == "auto" else schedule
    rows = [
        [name, _text(values.get(name, option.default)), option.valid(), option.help]
        for cls in (compat.algorithm(algo).config_class, compat.schedule(own, algo).config_class)
        for name, option in options(cls).items()
    ]
    if backend == "host":
        rows.append(["env.NAME", "", "see the environment's documentation", f"keyword of {spec.id}'s constructor"])
        rows.append(["env.max_episode_steps", _text(spec.max_episode_steps), "an integer >= 1", "time limit in steps"])
        print_table(("setting", "value", "accepts", "meaning"), rows)
        return
    for name, value in spec.params._asdict().items():
        shown = str(spec.ranges.get(name, _text(value)))
        rows.append([f"env.{name}", shown, "a number, or a range low..high", f"parameter of {spec.id}"])
    for name in spec.options:
        rows.append([f"env.{name}", "", "see the environment's documentation", f"option of {spec.id}"])
    rows.append(["env.max_episode_steps", _text(spec.max_episode_steps), "an integer >= 1", "time limit in steps"])
    print_table(("setting", "value", "accepts", "meaning"), rows)


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
