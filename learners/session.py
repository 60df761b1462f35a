"""A run from its first to its last line: folders, lock, config, trainer; begun anew or resumed."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gpuenvs.errors import RunError
from gpuenvs.runtime.threads import allowed_cores
from learners import checkpoint, replay_file, runs, source, system
from learners.build import RunConfig, build, check_kind, kind_of, load_policy, own_device
from learners.distributed import Group, joined
from learners.env_options import reference_keywords
from learners.envs import env_name, evaluation_env, moved, spec_of
from learners.evaluate import EvalResult, evaluate
from learners.host_episodes import evaluate_host
from learners.parallel import ParallelTrainer, own_state
from learners.runs import RunDirectory
from learners.train import LoopSettings, Trainer


@dataclass(frozen=True)
class Session:
    """A locked run directory and the trainer that writes into it.

    `group` are the processes that train together, None for one alone. Only the first of them locks and writes.
    """

    run: RunDirectory
    config: RunConfig
    trainer: Trainer
    group: Group | None = None


# What a caller does with (batch, steps of the training so far) before each horizon.
OnIteration = Callable[[Any, int], None]


@contextlib.contextmanager
def begin(config: RunConfig, path: Path, on_iteration: OnIteration | None = None) -> Iterator[Session]:
    """A new run at `path`. Everything is built and checked before the first folder is made.

    Under a launcher such as torchrun it is a run of all its processes; see `learners.distributed`.

    `on_iteration(env, step)` is called before each horizon, on the thread that collects it and after the environment's own
    curriculum: it may look at this process's batch and call `env.set_params`. Device environments only.

    Raises:
        RunError: `path` holds a run, is in use or cannot be written.
        ConfigError, DeviceError: the config does not fit this machine, or not the number of processes.
        ProcessError: another process failed.
    """
    with joined() as group:
        first = group is None or group.first
        if first:
            runs.check_new(path)
        if group is not None:
            path = Path(group.tell(str(path)))
            _agree(group, config)
        schedule = _build(config, group, on_iteration)
        try:
            if group is not None:
                group.objects(None)  # all have built
            with runs.new_run(path) if first else contextlib.nullcontext(RunDirectory(path)) as run:
                if first:
                    run.write_config({**_document(config, group), "collector": schedule.collector.choice._asdict()})
                yield Session(run, config, _trainer(run, schedule, config, group, None), group)
        finally:
            schedule.close()


@contextlib.contextmanager
def resume(
    path: Path | str,
    total_steps: int | None = None,
    device: str | None = None,
    allow_changed_env: bool = False,
    on_iteration: OnIteration | None = None,
    env: str | None = None,
) -> Iterator[Session]:
    """The run at `path`, continued from its latest checkpoint (from its beginning if it was killed before one).

    `total_steps` sets another end, `device` another device than the run was made on; `on_iteration` as for `begin`, `env` as
    for `open_policy`. Of several processes only the first needs to see `path`.

    Raises:
        RunError: no run there, in use, nothing left to do.
        CheckpointError: the latest checkpoint is damaged, of another run or of another number of processes; or the
            environment computes something else than when the run was made, unless `allow_changed_env`.
        ProcessError: another process failed.
    """
    with joined() as group:
        first = group is None or group.first
        with runs.existing_run(path) if first else contextlib.nullcontext(RunDirectory(Path(path))) as run:
            document, state = _read(run, total_steps, env) if first else ({}, None)
            if group is not None:
                document, state = group.tell((document, state))
            config = RunConfig.from_dict(document)
            changed = _check_source(document, state, config, allow_changed_env, training=True)
            if changed:  # what comes from now on is the changed environment's
                document = {**document, **_digest(config)}
            if total_steps is not None:
                config = config.with_total_steps(total_steps)
            if device is not None or group is not None:
                config = config.on_device(own_device(device or _kind_of_device(config.device, group)))
            if group is not None:
                _agree(group, config)
            if state is not None:
                state = own_state(state, group)
            schedule = _build(config, group, on_iteration)
            try:
                trainer = _trainer(run, schedule, config, group, state)
                if first and (total_steps is not None or device is not None or env is not None or changed):
                    run.write_config({**document, **config.to_dict()})
                yield Session(run, config, trainer, group)
            finally:
                schedule.close()


def _build(config: RunConfig, group: Group | None, on_iteration: OnIteration | None) -> Any:
    """The schedule, whose collector calls `on_iteration`."""
    schedule = build(config, group)
    if on_iteration is not None and config.env_backend == "device":
        collector, num_envs = schedule.collector, config.settings["num_envs"]
        curriculum = collector.before

        def before(step: int) -> None:
            if curriculum is not None:
                curriculum(step)
            on_iteration(collector.env, step * num_envs)

        collector.before = before
    return schedule


def _read(run: RunDirectory, total_steps: int | None, env: str | None) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """config.json, and the latest checkpoint if there is one, of a run that still has something to do."""
    document = run.read_config()
    config: RunConfig = moved(RunConfig.from_dict(document), env)
    document = {**document, "env_id": config.env_id}
    total_steps = total_steps or config.total_steps
    steps = checkpoint.list_steps(run.checkpoints)
    if not steps:
        return document, None
    if steps[-1][0] >= total_steps:
        raise RunError(
            f"nothing left to do: {run.path} is at step {steps[-1][0]} of {total_steps}; give a larger --total-steps"
        )
    step, file = steps[-1]
    state = checkpoint.load(file)
    check_kind(config, state)
    return document, replay_file.attach(run.checkpoints, step, state)


def _kind_of_device(device: str, group: Group | None) -> str:
    """The device of a run's config; of several processes each takes its own of that kind."""
    return device if group is None else device.split(":")[0]


def _agree(group: Group, config: RunConfig) -> None:
    """Raise `ConfigError` unless all processes do the same in the same environment."""
    group.agree(_shared(config))
    if config.env_backend == "device":
        source.agree(group, spec_of(config))


def _shared(config: RunConfig) -> dict[str, Any]:
    """What must be the same in all processes: all but the number of the GPU and of this machine's threads."""
    document = config.to_dict()
    settings = document.pop("settings")
    del document["threads"]
    kinds = {name: document[name].split(":")[0] for name in ("device", "env_device")}
    return {**document, **settings, **kinds}


def _trainer(
    run: RunDirectory, schedule: Any, config: RunConfig, group: Group | None, state: Mapping[str, Any] | None
) -> Trainer:
    kind = {**kind_of(config), **_digest(config)}
    if group is None:
        return Trainer(run, schedule, loop_settings(config), kind, state)
    return ParallelTrainer(run, schedule, loop_settings(config), kind, group, state)


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
    path: Path | str,
    which: str = "latest",
    device: str = "cpu",
    allow_changed_env: bool = False,
    env: str | None = None,
) -> tuple[RunDirectory, RunConfig, Any, int]:
    """(run, config, policy, step) of a run directory, or of a checkpoint file inside one.

    `env` says where the environment is now, `file.py:NAME` or `module:NAME`, if its file was moved since.

    Raises:
        RunError, CheckpointError, DeviceError: there is no run, no such checkpoint, or no such device; or the environment
            computes something else than when the run was made, unless `allow_changed_env`.
    """
    run = runs.open_run(path)
    document = run.read_config()
    config: RunConfig = moved(RunConfig.from_dict(document), env)
    path = Path(path)
    file = path if path.is_file() and path.suffix == checkpoint.SUFFIX else run.find_checkpoint(which)
    step, state = checkpoint.read_info(file).step, checkpoint.load(file)
    check_kind(config, state)
    _check_source(document, state, config, allow_changed_env, training=False)
    torch.set_num_threads(min(config.torch_threads, allowed_cores()))
    return run, config, load_policy(config, state, device), step


def _digest(config: RunConfig) -> dict[str, Any]:
    """`{"source": ...}` of what the environment computes; empty where others than gpurl's kernels step it."""
    return {"source": source.fingerprint(spec_of(config))} if config.env_backend == "device" else {}


def _check_source(
    document: Mapping[str, Any], state: Mapping[str, Any] | None, config: RunConfig, allow: bool, training: bool
) -> bool:
    """True, with a warning, for a changed environment if that is allowed, else raises `CheckpointError`.

    The checkpoint's digest counts, which may be older than that of config.json; older checkpoints have none.
    """
    if config.env_backend == "host":
        return False
    recorded = (state or {}).get("kind", {}).get("source") or document.get("source")
    changed = source.check(recorded, spec_of(config), allow, training)
    if changed:
        warnings.warn(f"the environment has changed since the run was made: {', '.join(changed)}", stacklevel=3)
    return bool(changed)


def evaluate_run(
    config: RunConfig,
    policy: Any,
    episodes: int,
    on: str | None = None,
    seed: int = 0,
    deterministic: bool = True,
    same_starts: bool = False,
    overrides: Iterable[str] = (),
) -> EvalResult:
    """Evaluate a run's policy in the environment it was trained for; see `evaluate`.

    `on` None is Gymnasium's own environment where that is the same one, else gpuenvs. A run on host environments is evaluated
    in those. Params that the training draws have the environment's own values, unless `overrides` (`env.name=value` strings)
    say otherwise.
    """
    spec, params = evaluation_env(config, overrides)
    if config.env_backend == "host":
        return evaluate_host(policy, spec, episodes, on, seed, deterministic, same_starts)
    if on is None:
        on = "gymnasium" if reference_keywords(spec, params) is not None else "gpuenvs"
    options: Mapping[str, Any] = {"params": params}
    if on == "gpuenvs":
        options = {**options, "device": str(policy.device), "dtype": config.dtype}
    return evaluate(policy, spec, episodes, on, seed, deterministic, same_starts=same_starts, **options)


def comparable(config: RunConfig) -> bool:
    """True when Gymnasium has this environment and can be given the same parameters."""
    return config.env_backend == "device" and reference_keywords(*evaluation_env(config)) is not None


def save_evaluation(run: RunDirectory, result: EvalResult, step: int) -> Path:
    """Write the result into the run. Raises `RunError` if that cannot be done."""
    stem = f"step-{step:012d}-{result.on}-s{result.seed}"
    return run.write_json(run.evaluations, stem, {"step": step, **result.to_dict()})


def _document(config: RunConfig, group: Group | None) -> dict[str, Any]:
    """config.json of a new run."""
    spec = spec_of(config)
    params = dict(config.env_params)
    limit = spec.max_episode_steps
    if config.env_backend == "device":
        ranges = {name: str(value) for name, value in spec.ranges.items()}
        params = spec.params._asdict() | ranges | {k: v for k, v in params.items() if k in spec.params._fields}
        limit = config.env_params.get("max_episode_steps", limit)
    return {
        **dataclasses.asdict(config),
        **_digest(config),
        "env_name": env_name(config),
        "env_params_resolved": params,
        "max_episode_steps": limit,
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "processes": group.size if group else 1,
        "versions": system.versions(),
        "machine": system.machine(),
    }
