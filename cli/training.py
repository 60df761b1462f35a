"""What `train` and `resume` share: the loop with its live line, the clean stop, the closing evaluation."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from cli.progress import TrainingLine, duration, rate

if TYPE_CHECKING:
    from learners.evaluate import EvalResult
    from learners.observers.attached import ObserverOptions
    from learners.session import Session
    from learners.train import Outcome, Progress


def run_session(session: Session, quiet: bool, watching: ObserverOptions) -> Outcome:
    """Train until the end or a signal; prints what happened. The checkpoint is made either way."""
    from learners.interrupts import StopRequest
    from learners.observers.attached import Observers

    config, trainer, group = session.config, session.trainer, session.group
    if group is not None and not group.first:
        with StopRequest() as stop:
            return trainer.train(stop)
    title = f"{config.env_id} {config.algo}"
    first = trainer.step
    if not quiet:
        click.echo(f"run: {session.run.path}", err=True)
        if group is not None:
            click.echo(describe_group(session), err=True)
    with (
        StopRequest(_announce) as stop,
        TrainingLine(title, quiet) as line,
        Observers(trainer, session.run, watching, line.say, line.warn, last_resort=True) as observers,
    ):

        def on_progress(progress: Progress) -> None:
            observers(progress)
            line(progress)

        outcome = trainer.train(stop, on_progress)
        if not outcome.signum:
            observers.finish()
    if outcome.nonfinite_states:
        count = f"{outcome.nonfinite_states:,}"
        click.echo(f"note: {count} episodes were ended because their state became NaN or infinite", err=True)
    if outcome.signum:
        click.echo(f"stopped at step {outcome.step:,}; checkpoint: {outcome.checkpoint}")
        following = "resume" if outcome.step < config.total_steps else "eval"
        click.echo(f"go on with: gpurl {following} {session.run.path}")
        return outcome
    result = "" if outcome.recent_return is None else f", return {outcome.recent_return:.1f}"
    steps = f"{outcome.step - first:,} steps" if first else f"{outcome.step:,} steps"
    if group is not None and group.verify_steps:
        click.echo(f"weights: found equal in all {group.size} processes {group.verified:,} times")
    click.echo(f"trained: {steps} in {duration(outcome.seconds)} ({rate(trainer.sps)} once compiled){result}")
    return outcome


def finish(session: Session, outcome: Outcome, eval_episodes: int) -> int:
    """The closing evaluation and the run's path. Returns the exit code."""
    from learners.interrupts import exit_code
    from learners.session import evaluate_run, save_evaluation

    if outcome.signum:
        return exit_code(outcome.signum)
    if session.group is not None and not session.group.first:
        return 0
    if eval_episodes:
        policy = session.trainer.schedule.algo.policy
        result = evaluate_run(session.config, policy, eval_episodes)
        save_evaluation(session.run, result, outcome.step)
        click.echo(describe(result))
    click.echo(f"run: {session.run.path}")
    return 0


def describe_group(session: Session) -> str:
    """One line about the processes of a training."""
    algo, total = session.trainer.schedule.algo, session.config.settings["num_envs"]
    travel = "gloo" if algo.device.type == "cpu" else "NCCL"
    return (
        f"{algo.group.size} processes: {algo.num_envs:,} of the {total:,} environments each, gradients averaged by "
        f"{travel}, updates by the {algo.engine} engine"
    )


def describe(result: EvalResult) -> str:
    """One line for a person."""
    place = {"gymnasium": "Gymnasium's ", "gpuenvs": "gpuenvs ", "host": ""}[result.on]
    how = "deterministic" if result.deterministic else "sampled actions"
    starts = ", Gymnasium's starts" if result.same_starts else ""
    return (
        f"eval: {place}{result.env_id}: return {result.mean:.2f} +- {result.stderr:.2f} "
        f"(std {result.std:.2f}, {len(result.returns)} episodes, {how}{starts})"
    )


def _announce(signum: int) -> None:
    # In a signal handler: a plain write, no console that might be in the middle of a line of its own.
    os.write(2, b"\nstopping after this iteration, then saving (once more to leave at once)\n")
