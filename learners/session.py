"""A run from its first to its last line: folders, lock, config, trainer; begun anew or resumed."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuenvs.errors import RunError
from learners import checkpoint, runs, system
from learners.build import RunConfig, build, check_kind, kind_of, load_policy, resolve_device
from learners.env_options import configured, reference_keywords
from learners.evaluate import EvalResult, evaluate
from learners.runs import RunDirectory
from learners.train import LoopSettings, Trainer


@dataclass(frozen=True)
class Session:
    """A locked run directory and the trainer that writes into it."""

    run: RunDirectory
    config: RunConfig
    trainer: Trainer


@contextlib.contextmanager
def begin(config: RunConfig, path: Path) -> Iterator[Session]:
    """A new run at `path`. Everything is built and checked before the first folder is made.

    Raises:
        RunError: `path` holds a run, is in use or cannot be written.
        ConfigError, DeviceError: the config does not fit this machine.
    """
    runs.check_new(path)
    schedule = build(config)
    try:
        with runs.new_run(path) as run:
            run.write_config(_document(config))
            yield Session(run, config, Trainer(run, schedule, loop_settings(config), kind_of(config)))
    finally:
        schedule.env.close()


@contextlib.contextmanager
def resume(path: Path | str, total_steps: int | None = None, device: str | None = None) -> Iterator[Session]:
    """The run at `path`, continued from its latest checkpoint (from its beginning if it was killed before one).

    `total_steps` sets another end, `device` another device than the run was made on.

    Raises:
        RunError: no run there, in use, nothing left to do.
        CheckpointError: the latest checkpoint is damaged or of another run.
    """
    with runs.existing_run(path) as run:
        document = run.read_config()
        config = RunConfig.from_dict(document)
        if total_steps is not None:
            config = config.with_total_steps(total_steps)
        if device is not None:
            config = dataclasses.replace(config, device=resolve_device(device))
        steps = checkpoint.list_steps(run.checkpoints)
        if steps and steps[-1][0] >= config.total_steps:
            raise RunError(
                f"nothing left to do: {run.path} is at step {steps[-1][0]} of {config.total_steps}; "
                "give a larger --total-steps"
            )
        state = checkpoint.load(steps[-1][1]) if steps else None
        if state is not None:
            check_kind(config, state)
        schedule = build(config)
        try:
            trainer = Trainer(run, schedule, loop_settings(config), kind_of(config), state)
            if total_steps is not None or device is not None:
                run.write_config({**document, **config.to_dict()})
            yield Session(run, config, trainer)
        finally:
            schedule.env.close()


def loop_settings(config: RunConfig) -> LoopSettings:
    """The part of the config that the training loop reads."""
    return LoopSettings(
        total_steps=config.total_steps,
        log_every=config.log_every,
        checkpoint_every=config.checkpoint_every,
        checkpoint_min_seconds=config.checkpoint_min_seconds,
        keep_checkpoints=config.keep_checkpoints,
    )


def open_policy(
    path: Path | str, which: str = "latest", device: str = "cpu"
) -> tuple[RunDirectory, RunConfig, Any, int]:
    """(run, config, policy, step) of a run directory, or of a checkpoint file inside one.

    Raises:
        RunError, CheckpointError, DeviceError: there is no run, no such checkpoint, or no such device.
    """
    run = runs.open_run(path)
    config = RunConfig.from_dict(run.read_config())
    path = Path(path)
    file = path if path.is_file() and path.suffix == checkpoint.SUFFIX else run.find_checkpoint(which)
    step = checkpoint.read_info(file).step
    return run, config, load_policy(config, checkpoint.load(file), device), step


def evaluate_run(
    config: RunConfig,
    policy: Any,
    episodes: int,
    on: str | None = None,
    seed: int = 0,
    deterministic: bool = True,
) -> EvalResult:
    """Evaluate a run's policy in the environment it was trained for.

    `on` None is Gymnasium's own environment where that is the same one, else gpuenvs.
    """
    if on is None:
        on = "gymnasium" if comparable(config) else "gpuenvs"
    options: Mapping[str, Any] = {"params": config.env_params}
    if on == "gpuenvs":
        options = {**options, "device": str(policy.device), "dtype": config.dtype}
    return evaluate(policy, config.env_id, episodes, on, seed, deterministic, **options)


def comparable(config: RunConfig) -> bool:
    """True when Gymnasium has this environment and can be given the same parameters."""
    import gpuenvs

    return reference_keywords(gpuenvs.get(config.env_id), config.env_params) is not None


def save_evaluation(run: RunDirectory, result: EvalResult, step: int) -> Path:
    """Write the result into the run. Raises `RunError` if that cannot be done."""
    stem = f"step-{step:012d}-{result.on}-s{result.seed}"
    return run.write_json(run.evaluations, stem, {"step": step, **result.to_dict()})


def _document(config: RunConfig) -> dict[str, Any]:
    """config.json of a new run."""
    import gpuenvs

    spec = configured(gpuenvs.get(config.env_id), config.env_params)
    params = spec.params._asdict() | {k: v for k, v in config.env_params.items() if k in spec.params._fields}
    return {
        **dataclasses.asdict(config),
        "env_params_resolved": params,
        "max_episode_steps": config.env_params.get("max_episode_steps", spec.max_episode_steps),
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": system.versions(),
        "machine": system.machine(),
    }
