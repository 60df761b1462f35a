"""`gpurl play RUN`."""

from __future__ import annotations

from pathlib import Path

import click

from cli.options import RUN, SEED, Count, changed_env_option, checkpoint_option, device_option, moved_env_option


@click.command("play")
@RUN
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The video, .mp4 or .gif.  [default: RUN/videos/…mp4]",
)
@click.option("-e", "--episodes", type=Count(), default=1, show_default=True, help="Episodes to show.")
@click.option("--max-steps", type=Count(), default=2000, show_default=True, help="Longest episode shown, in steps.")
@SEED
@click.option("--sample", is_flag=True, help="Draw actions from the policy instead of taking the most likely one.")
@checkpoint_option
@device_option("cpu")
@changed_env_option
@moved_env_option
def command(
    run: Path,
    out: Path | None,
    episodes: int,
    max_steps: int,
    seed: int,
    sample: bool,
    checkpoint: str,
    device: str,
    allow_changed_env: bool,
    env: str | None,
) -> None:
    """Render RUN's policy to a video with Gymnasium's or MuJoCo's own renderer, or with that of the host environment it was
    trained in. Needs no display and no GPU.

    \b
    gpurl play runs/CartPole-v1/ppo-sync-s0-… --out cartpole.gif
    """
    from learners.envs import evaluation_env
    from learners.session import open_policy
    from learners.video import check_output, record

    if out is not None:
        check_output(out)
    directory, config, policy, step = open_policy(run, checkpoint, device, allow_changed_env, env)
    spec, params = evaluation_env(config)
    target = out or directory.videos / f"step-{step:012d}-s{seed}.mp4"
    recording = record(
        policy,
        spec,
        target,
        episodes=episodes,
        max_steps=max_steps,
        seed=seed,
        deterministic=not sample,
        params=params,
        device=device,
        dtype=config.dtype,
    )
    returns = ", ".join(f"{value:.1f}" for value in recording.returns)
    click.echo(f"{recording.path}: {recording.frames} frames, return {returns}")
