"""The environments of a run, of either backend: kernels on a device, or Gymnasium's environments in host processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import gpuenvs
from gpuenvs.errors import ConfigError, UnknownEnvError, near_names
from gpuenvs.runtime.threads import allowed_cores
from learners import curriculum, env_options
from learners.distributed import Group

BACKENDS = ("device", "host")


def configured(env_id: str, backend: str, items: Iterable[str]) -> tuple[Any, dict[str, Any]]:
    """(spec, params) of an environment and the `env.name=value` strings of `--set`.

    The spec is an `EnvSpec` of the device backend, a `HostSpec` of the host backend.

    Raises:
        UnknownEnvError, ConfigError: no such environment, backend or param.
    """
    if backend not in BACKENDS:
        raise ConfigError(
            f"unknown --env-backend {backend!r}{near_names(backend, BACKENDS)}; use {' or '.join(BACKENDS)}"
        )
    if backend == "device":
        spec = gpuenvs.get(env_id)
        return spec, env_options.parse(spec, items)
    from gpuenvs.host.spec import host_spec

    keywords = {}
    for item in items:
        name, equals, text = item.removeprefix(env_options.PREFIX).partition("=")
        if not equals:
            raise ConfigError(f"--set {item}: write it as env.name=value")
        keywords[name.strip()] = env_options.option_value(text.strip())
    return host_spec(env_id, keywords), keywords


def reference(env_id: str, spec: Any) -> str:
    """What a run calls its environment: the id, or the file or module with its name that it can be loaded from again."""
    from gpuenvs import loading

    return loading.canonical(env_id) if loading.is_reference(env_id) else spec.id


def moved(config: Any, where: str | None) -> Any:
    """A run's `RunConfig` with its environment at `where`, as `file.py:NAME` or `module:NAME`; None: where it was.

    Raises:
        UnknownEnvError, LoadError: it is not there.
    """
    from gpuenvs import loading

    if where is not None:
        config = dataclasses.replace(config, env_id=where)
        return dataclasses.replace(config, env_id=reference(where, spec_of(config)))
    try:
        spec_of(config)
    except UnknownEnvError as error:
        hint = "; if it was moved, say with --env FILE:NAME where it is" if loading.is_reference(config.env_id) else ""
        raise UnknownEnvError(f"{error}{hint}") from error
    return config


def spec_of(config: Any) -> Any:
    """The `EnvSpec` or `HostSpec` of a `RunConfig`, with its params applied."""
    if config.env_backend == "host":
        from gpuenvs.host.spec import host_spec

        return host_spec(config.env_id, config.env_params)
    return env_options.configured(gpuenvs.get(config.env_id), config.env_params)


def evaluation_env(config: Any, overrides: Iterable[str] = ()) -> tuple[Any, dict[str, Any]]:
    """(spec, params) to evaluate a run's policy with: what the training draws has the spec's own number.

    `overrides` are `env.name=value` strings that say otherwise.

    Raises:
        ConfigError: an unknown name, or a value that does not fit.
    """
    if config.env_backend == "host":
        if list(overrides):
            raise ConfigError(f"{config.env_id}: --set changes environments of the device backend only")
        return spec_of(config), dict(config.env_params)
    spec = gpuenvs.get(config.env_id)
    return spec, env_options.for_evaluation(spec, config.env_params, env_options.parse(spec, overrides))


def env_name(config: Any) -> str:
    """The environment's own name, also where a run knows it by the file that it is in: an id, or a host class's name."""
    return config.env_id.rpartition(":")[2] if config.env_backend == "host" else gpuenvs.get(config.env_id).id


def make(config: Any, group: Group | None = None) -> Any:
    """The batch of a `RunConfig`; with a group the share of one of its processes."""
    num_envs = config.settings["num_envs"]
    if config.env_backend == "host":
        from gpuenvs.host.pool import HostPool

        return HostPool(spec_of(config), num_envs, executors=config.executors, seed=config.seed)
    rows = group.share(num_envs) if group else num_envs
    spec, offset = gpuenvs.get(config.env_id), group.rank * rows if group else 0
    params = curriculum.initial(spec, config.env_params, offset, rows)
    return gpuenvs.make(
        spec,
        rows,
        device=config.env_device,
        seed=config.seed,
        dtype=config.dtype,
        threads=min(config.threads, allowed_cores()),
        env_offset=offset,
        metric_totals=bool(spec.metrics),
        **params,
    )


def follow_curriculum(collector: Any, config: Any) -> None:
    """Have the environment's curriculum, if it has one, set its params before each horizon."""
    if config.env_backend == "host":
        return
    found = curriculum.of(spec_of(config), config.env_params)
    if found is not None:
        num_envs = config.settings["num_envs"]
        collector.before = lambda step: found.apply(collector.env, step * num_envs)
