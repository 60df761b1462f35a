"""From what the user asked for to a schedule that is ready to run: one resolved, recorded config in between."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuenvs.errors import CheckpointError, ConfigError, DeviceError, RunError
from gpuenvs.runtime.threads import allowed_cores
from learners import compat, env_options, envs, nvidia, schedule_choice
from learners.config import make_config, options, parse_overrides, to_dict
from learners.distributed import Group, local_device, local_size, place
from learners.placement import (
    FITTING,
    PLACEMENTS,
    Placement,
    choose,
    free_memory,
    measure,
    require_memory,
    this_machine,
)
from learners.placement import place as locate
from learners.presets import preset

# Rows of metrics.csv and checkpoints that a run of default settings makes.
ROWS_PER_RUN, CHECKPOINTS_PER_RUN = 1000, 20
CHECKPOINT_MIN_SECONDS = 2.0
REPLAY_MIN_SECONDS = 30.0  # where the replay is saved as well
AUTO = "auto"  # the schedule that a short trial finds faster
MAX_LOG_EVERY = 50  # a run that nobody means to finish should show rows all the same


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run, with no default left open. JSON holds it (`to_dict`, `from_dict`).

    Args:
        env_id, env_params: the environment and what differs from its spec.
        algo, schedule: names in `learners.compat`.
        settings: every field of the algorithm's config.
        seed: of weights, environments and noise, in [0, 2**63).
        device: `cpu` or `cuda:N`, of the learner.
        dtype: of the environments; networks are float32.
        threads: most CPU threads of an env step; does not change results.
        torch_threads: CPU threads of torch; another number may round sums differently.
        log_every: iterations per row of metrics.
        checkpoint_every: environment steps between checkpoints …
        checkpoint_min_seconds: … unless the last one was made less than this long ago.
        keep_checkpoints: latest checkpoints kept, beside the best.
        placement, transfer: see `learners.placement` and `learners.transfer`.
        env_device: `cpu` or `cuda:N`, of the environments.
        schedule_settings: every field of the schedule's config.
        env_backend: `device` (kernels) or `host` (Gymnasium's environments in processes of their own).
        executors: processes that step host environments; 0 chooses. Does not change results.
        actors: threads that infer for host environments. Does not change results.
        actor_device: `cpu` or `cuda:N`, of the actor's updates where those are not on `device`; empty where they are.
    """

    env_id: str
    env_params: dict[str, Any]
    algo: str
    schedule: str
    settings: dict[str, Any]
    seed: int
    device: str
    dtype: str
    threads: int
    torch_threads: int
    log_every: int
    checkpoint_every: int
    checkpoint_min_seconds: float
    keep_checkpoints: int
    placement: str
    env_device: str
    transfer: str
    schedule_settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    env_backend: str = "device"
    executors: int = 0
    actors: int = 1
    actor_device: str = ""

    @property
    def total_steps(self) -> int:
        """Environment steps of the whole run."""
        return int(self.settings["total_steps"])

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> RunConfig:
        """From a run's config.json. Raises `RunError` if something is missing or wrong."""
        fields = dataclasses.fields(cls)
        names = [field.name for field in fields]
        if "device" in document:  # older runs had one device
            document = {**_on_one(str(document["device"])), **document}
        later = {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}
        document = {"schedule_settings": {}, **later, **document}
        missing = [name for name in names if name not in document]
        if missing:
            raise RunError(f"the run's config.json lacks {', '.join(missing)}")
        config = cls(**{name: document[name] for name in names})
        if isinstance(config.settings, dict) and "collector" not in config.settings:
            # Older runs chose both ways, to collect and to learn, by `engine`.
            collector = {"fused": "fused", "torch": "eager"}.get(config.settings.get("engine", "auto"), "auto")
            config = dataclasses.replace(config, settings={**config.settings, "collector": collector})
        try:
            make_config(compat.algorithm(config.algo).config_class, config.settings)
            make_config(compat.schedule(config.schedule, config.algo).config_class, config.schedule_settings)
        except ConfigError as error:
            raise RunError(f"the run's config.json does not fit this version of gpurl: {error}") from error
        return config

    def with_total_steps(self, total_steps: int) -> RunConfig:
        """The same run, shorter or longer. Annealing follows the new end."""
        cls = compat.algorithm(self.algo).config_class
        settings = to_dict(make_config(cls, {**self.settings, "total_steps": total_steps}))
        return dataclasses.replace(self, settings=settings)

    def on_device(self, device: str) -> RunConfig:
        """The same run with environments and learner on one device."""
        return dataclasses.replace(self, device=device, **_on_one(device))

    def placed(self, placement: Placement) -> RunConfig:
        """The same run in another placement."""
        return dataclasses.replace(
            self,
            device=placement.learner_device,
            placement=placement.name,
            env_device=placement.env_device,
            transfer=placement.transfer,
        )


def _on_one(device: str) -> dict[str, str]:
    name = "cpu" if device == "cpu" else "colocated"
    return {"placement": name, "env_device": device, "transfer": "alias"}


def resolve(
    env_id: str,
    *,
    algo: str = "ppo",
    schedule: str = "sync",
    overrides: Iterable[str] = (),
    total_steps: int | None = None,
    num_envs: int | None = None,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "float32",
    threads: int | None = None,
    torch_threads: int = 1,
    checkpoint_every: int | None = None,
    keep_checkpoints: int = 3,
    placement: str | None = None,
    learner_device: str | None = None,
    transfer: str = "auto",
    env_backend: str = "device",
    executors: int = 0,
    actors: int = 1,
    actor_device: str | None = None,
    critic_device: str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> RunConfig:
    """Defaults, then the preset, then what the user gave; everything checked.

    `overrides` are `name=value` strings: fields of the algorithm's config or of the schedule's, or `env.<name>` for the
    environment. `placement` None follows `device`, `"auto"` measures; so does the schedule `"auto"`. `say` gets lines for
    people: where the run goes and why, and the memory it needs.

    Raises:
        UnknownEnvError, ConfigError, DeviceError: one line that says what to do.
    """
    items = [item.strip() for item in overrides]
    env_items = [item for item in items if item.startswith(env_options.PREFIX)]
    spec, env_params = envs.configured(env_id, env_backend, env_items)
    compat.check(algo, "sync" if schedule == AUTO else schedule, spec.action_space)
    cls = compat.algorithm(algo).config_class
    off_policy = compat.off_policy(algo)
    trial = "sync" if off_policy else "hts"  # what `auto` begins with
    own_cls = compat.schedule(trial if schedule == AUTO else schedule, algo).config_class
    own_items = [item for item in items if _name(item) in options(own_cls)]
    own_settings = to_dict(make_config(own_cls, parse_overrides(own_cls, own_items)))
    values = {
        **preset(spec.id, algo, getattr(spec, "image", False)),
        **parse_overrides(cls, [item for item in items if item not in env_items and item not in own_items]),
    }
    values |= {k: v for k, v in (("total_steps", total_steps), ("num_envs", num_envs)) if v is not None}
    settings = to_dict(make_config(cls, values))
    cores = allowed_cores()
    rows = settings["num_envs"] * settings["num_steps"]
    updates = -(-settings["total_steps"] // rows)
    if critic_device is not None or actor_device is not None:
        if schedule != "spreeze":
            raise ConfigError("--actor-device and --critic-device are for --schedule spreeze")
        own_settings["split"] = True
        if critic_device == "cpu" and device == "auto":
            device = "cpu"
        learner_device = learner_device or (critic_device if critic_device != "cpu" else None)
    where = _place(device, placement, learner_device, transfer)
    config = RunConfig(
        env_id=envs.reference(env_id, spec),
        env_params=env_params,
        algo=algo,
        schedule=schedule,
        schedule_settings=own_settings,
        env_backend=env_backend,
        executors=executors,
        actors=_in_range("--actors", actors, 1, 64),
        settings=settings,
        seed=_in_range("--seed", seed, 0, 2**63 - 1),
        device="cpu" if where is None else where.learner_device,
        dtype=dtype,
        threads=max(1, cores // local_size()) if threads is None else _in_range("--threads", threads, 1, cores),
        torch_threads=_in_range("--torch-threads", torch_threads, 1, cores),
        log_every=2 if schedule == "spreeze" else min(max(1, updates // ROWS_PER_RUN), MAX_LOG_EVERY),
        checkpoint_every=checkpoint_every or max(rows, settings["total_steps"] // CHECKPOINTS_PER_RUN),
        checkpoint_min_seconds=0.0
        if checkpoint_every
        else REPLAY_MIN_SECONDS
        if off_policy
        else CHECKPOINT_MIN_SECONDS,
        keep_checkpoints=keep_checkpoints,
        **_on_one("cpu"),
    )
    group = place()
    processes = group.size if group else 1
    if group is not None and (schedule != "sync" or env_backend != "device"):
        raise ConfigError("several processes train with --schedule sync and the device backend; leave the others out")
    if env_backend == "host" and where is not None and where.env_device != "cpu":
        where = (
            locate("host", this_machine(), "cpu", where.learner_device)
            if learner_device
            else Placement("cpu", "cpu", "cpu", "alias", "host environments live on the CPU")
        )
    lines: list[str] = []
    if where is None:
        where, lines = choose(this_machine(), lambda p: _trial(config.placed(p)), device, learner_device, transfer)
    config = config.placed(where)
    if actor_device is not None and (own := resolve_device(actor_device)) != config.device:
        config = dataclasses.replace(config, actor_device=own)
    if schedule == AUTO:
        config, more = schedule_choice.choose(config, _trial)
        lines += more
    for line in (f"placement {where.describe()}", *lines, *require_memory(config, free_memory, processes)):
        say(line)
    return config


def _name(item: str) -> str:
    return item.partition("=")[0].strip().replace("-", "_")


def _place(device: str, placement: str | None, learner_device: str | None, transfer: str) -> Placement | None:
    """What the options say; None where it is to be measured.

    Raises:
        ConfigError, DeviceError: see `learners.placement.place`.
    """
    if place() is not None and (placement in ("auto", "split") or learner_device is not None):
        raise ConfigError("several processes train with one GPU each; leave --placement and --learner-device out")
    if placement == "auto":
        return None
    if placement is None:
        # Which placement the other options can only mean.
        both = learner_device not in (None, "cpu", device)
        meant = [name for name in PLACEMENTS if transfer in FITTING[name] and transfer != "alias"]
        if both or meant:
            placement = meant[0] if meant else "host" if device == "cpu" else "split"
    if placement is None:
        own = own_device(device)
        why = f"--device {device}" if device != "auto" else "the first GPU" if own != "cpu" else this_machine().reason
        return Placement(_on_one(own)["placement"], own, own, "alias", why)
    return locate(placement, this_machine(), local_device(device), learner_device, transfer)


def _trial(config: RunConfig) -> float:
    """Env steps per second of a short training."""
    schedule = build(config)
    try:
        return measure(schedule)
    finally:
        schedule.close()


def build(config: RunConfig, group: Group | None = None) -> Any:
    """Environment, algorithm and schedule of a run; the schedule holds the other two.

    With a group they are those of one process: its share of the environments.

    Raises:
        ConfigError, DeviceError: the config does not fit this machine.
    """
    import torch

    from learners.devices import CudaRuntime
    from learners.transfer import make_transfer

    cores = allowed_cores()
    torch.set_num_threads(min(config.torch_threads, cores))
    if group is not None and config.device != "cpu":
        torch.cuda.set_device(config.device)  # NCCL's and torch's own work belongs on this process's GPU
    if config.placement == "split":  # raises if the run comes from a machine with a link and this one has none
        locate("split", this_machine(), config.env_device, config.device, config.transfer)
    settings = make_config(compat.algorithm(config.algo).config_class, config.settings)
    schedule = compat.schedule(config.schedule, config.algo)
    own = make_config(schedule.config_class, config.schedule_settings)
    off_policy = compat.off_policy(config.algo)
    device = resolve_device(config.device)
    env = envs.make(config, group)
    try:
        spaces = env.single_observation_space, env.single_action_space
        parted = {}
        if getattr(own, "split", False):
            parted = {"split": True, "actor_device": config.actor_device or device}
        algo = compat.algorithm(config.algo)(settings, *spaces, device, config.seed, group, **parted)
        if not off_policy:
            algo.compile_ahead()
        transfer = None  # the schedule's own, on one device; a collector writes into the replay itself
        if not off_policy and (config.transfer != "alias" or device != "cpu"):
            more = {"slots": own.slots, "apart": True} if schedule.apart else {}
            transfer = make_transfer(config.transfer, CudaRuntime(), env, algo, settings, **more)
        made = schedule(env, algo, settings, transfer, own, config.actors)
        envs.follow_curriculum(made.collector, config)
        return made
    except BaseException:
        env.close()
        raise


def policy_for(config: RunConfig, device: str = "cpu") -> Any:
    """The run's policy as it is before training, on any device; it can take over any state dict of the run's policy."""
    spec = envs.spec_of(config)
    algorithm = compat.algorithm(config.algo)
    settings = make_config(algorithm.config_class, config.settings)
    return algorithm(settings, spec.observation_space, spec.action_space, resolve_device(device), config.seed).policy


def load_policy(config: RunConfig, state: Mapping[str, Any], device: str = "cpu") -> Any:
    """The policy in a loaded checkpoint, on any device.

    Raises:
        CheckpointError: the checkpoint is of another kind of run.
    """
    check_kind(config, state)
    policy = policy_for(config, device)
    try:
        policy.load_state_dict(state["schedule"]["algo"]["policy"])
    except (KeyError, TypeError, RuntimeError) as error:
        raise misfit(error) from error
    return policy


def kind_of(config: RunConfig) -> dict[str, str]:
    """What a checkpoint says about the run it belongs to. An environment goes by its name: its file may be moved."""
    return {"env_id": envs.env_name(config), "algo": config.algo, "schedule": config.schedule}


def check_kind(config: RunConfig, state: Mapping[str, Any]) -> None:
    """Raise `CheckpointError` unless the checkpoint was made by a run of this kind."""
    kind, wanted = state.get("kind"), kind_of(config)
    found = {key: kind.get(key) for key in wanted} if isinstance(kind, dict) else {}
    if ":" in str(found.get("env_id")):  # an older checkpoint: it says in which file the environment was
        found["env_id"] = wanted["env_id"]
    if found != wanted:
        name = " ".join(map(str, found.values())) or "something else"
        raise CheckpointError(f"the checkpoint is of {name}, this run is {' '.join(wanted.values())}")


def misfit(error: Exception) -> CheckpointError:
    """One line for a checkpoint whose arrays do not fit; torch lists every mismatch on a line of its own."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[-1] if lines else type(error).__name__
    return CheckpointError(f"the checkpoint does not fit the run's config ({reason}); was config.json changed?")


def resolve_device(device: str) -> str:
    """`cpu` or `cuda:N` for `auto`, `cpu`, `cuda`, `cuda:N`: a device that environments and torch can both
    use.

    Raises:
        DeviceError: it was asked for by name and cannot be used; nothing falls back in silence.
    """
    from gpuenvs.runtime.options import resolve_device as env_device

    resolved = env_device(device)
    if resolved == "cpu":
        return resolved
    import torch

    if torch.cuda.is_available() and int(resolved.split(":")[1]) < torch.cuda.device_count():
        return resolved
    if device == "auto":
        return "cpu"
    build = "a CPU-only build" if torch.version.cuda is None else f"built for CUDA {torch.version.cuda}"
    driver = nvidia.probe().version
    against = f" and the driver is for {driver}" if driver and torch.version.cuda else ""
    raise DeviceError(
        f"device {device!r} cannot be used: torch {torch.__version__} is {build}{against}; see `gpurl doctor`"
    )


def own_device(device: str) -> str:
    """`resolve_device` for one of the processes of a training: each takes a GPU of its own.

    Raises:
        DeviceError: as `resolve_device`, or one GPU was named for several processes.
    """
    if place() is None:
        return resolve_device(device)
    if device == "auto":
        device = resolve_device("auto").split(":")[0]
    if device == "cuda":
        resolve_device(f"cuda:{local_size() - 1}")  # so that all processes of a machine with too few GPUs say so
    return resolve_device(local_device(device))


def _in_range(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise ConfigError(f"{name} must be in {low}..{high}, got {value}")
    return value
