"""Who works where: the environments' device, the learner's device, and how horizons get from one to the other.

| placement | environments | learner | transfers |
|---|---|---|---|
| `cpu` | CPU | CPU | alias |
| `colocated` | a GPU | the same GPU | alias |
| `split` | a GPU | another GPU | peer, staged, remote |
| `host` | CPU | a GPU | pinned |

Where `--learner-device` names the environments' own GPU, `split` puts the two roles on streams of their own there.

`auto` trains a moment in each placement that is possible here and takes the fastest.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuenvs.errors import ConfigError, DeviceError, GpurlError, near_names

PLACEMENTS = ("cpu", "colocated", "split", "host")
# Which transfers each placement can use; the first is taken where the user leaves it open and the machine allows it.
FITTING = {"cpu": ("alias",), "colocated": ("alias",), "split": ("peer", "staged", "remote"), "host": ("pinned",)}
NEEDS_LINK = ("peer", "remote")
CALIBRATION_SECONDS = 0.5


@dataclass(frozen=True)
class Placement:
    """One of `PLACEMENTS` with its devices (`cpu` or `cuda:N`), one of `learners.transfer.TRANSFERS`, and why."""

    name: str
    env_device: str
    learner_device: str
    transfer: str
    why: str = ""

    def describe(self) -> str:
        """One line for people."""
        if self.env_device == self.learner_device and self.transfer == "alias":
            where = f"environments and learner on {self.env_device}"
        else:
            where = f"environments on {self.env_device}, learner on {self.learner_device}, transfer {self.transfer}"
        return f"{self.name}: {where}{f' ({self.why})' if self.why else ''}"


@dataclass(frozen=True)
class Machine:
    """What there is to choose from.

    Args:
        gpus: how many CUDA devices both environments and learners can use.
        problem: why there are none, in words.
        linked: (from, to) pairs of device numbers with peer access.
    """

    gpus: int
    problem: str = ""
    linked: frozenset[tuple[int, int]] = frozenset()

    @property
    def reason(self) -> str:
        """Why no GPU is used, without the advice."""
        return f"no GPU: {self.problem.partition('; ')[0]}"

    def link(self, a: str, b: str) -> bool:
        """Whether the two devices access each other's memory directly, both ways."""
        pair = _index(a), _index(b)
        return pair[0] == pair[1] or (pair in self.linked and pair[::-1] in self.linked)


def this_machine() -> Machine:
    """Looks at this process's devices; never raises."""
    from learners.build import resolve_device

    try:
        resolve_device("cuda")
    except DeviceError as error:
        return Machine(0, str(error).partition("cannot be used: ")[2] or str(error))
    from learners.devices import CudaRuntime, cuda

    runtime = CudaRuntime()
    numbers = range(runtime.device_count())
    pairs = {(a, b) for a in numbers for b in numbers if a != b and runtime.reaches(cuda(a), cuda(b))}
    return Machine(len(numbers), "", frozenset(pairs))


def place(
    name: str, machine: Machine, device: str = "auto", learner_device: str | None = None, transfer: str = "auto"
) -> Placement:
    """The placement `name` on this machine.

    `device` is where the environments are (with `host`: where the learner is), as `--device` gives it; `auto` is the first
    that fits.

    Raises:
        ConfigError: the options contradict each other.
        DeviceError: the machine has not what it takes. One line that says what to do, either way.
    """
    if name not in PLACEMENTS:
        known = ("auto", *PLACEMENTS)
        hint = near_names(name, known) or f"; use one of {', '.join(known)}"
        raise ConfigError(f"unknown placement {name!r}{hint}")
    if transfer != "auto" and transfer not in FITTING[name]:
        fitting = [p for p in PLACEMENTS if transfer in FITTING[p]]
        way = f"it is for --placement {' or '.join(fitting)}" if fitting else "there is no such transfer"
        raise ConfigError(
            f"--transfer {transfer} does not fit --placement {name} ({way}); use {' or '.join(FITTING[name])}"
        )
    env, learner = _devices(name, machine, device, learner_device)
    chosen, why = FITTING[name][0] if transfer == "auto" else transfer, ""
    if name == "split" and not machine.link(env, learner):
        if transfer in NEEDS_LINK:
            raise DeviceError(
                f"--transfer {transfer}: {env} and {learner} have no direct link (peer access); use --transfer staged or auto"
            )
        chosen, why = "staged", f"{env} and {learner} have no direct link: horizons go through pinned host memory"
    return Placement(name, env, learner, chosen, why)


def _devices(name: str, machine: Machine, device: str, learner_device: str | None) -> tuple[str, str]:
    """(the environments' device, the learner's device)."""
    if name == "cpu":
        _refuse_gpu(name, device, "--device")
        _refuse_gpu(name, learner_device, "--learner-device")
        return "cpu", "cpu"
    if machine.gpus == 0:
        raise DeviceError(f"--placement {name} needs a CUDA device: {machine.problem}")
    if device == "cpu" and name != "host":
        raise ConfigError(
            f"--placement {name} steps environments on a GPU; leave --device cpu out or use --placement host"
        )
    if name == "host":
        asked = learner_device or ("auto" if device == "cpu" else device)
        return "cpu", _gpu(machine, asked, 0)
    env = _gpu(machine, device, 0)
    if name == "colocated":
        if learner_device is not None and _gpu(machine, learner_device, 0) != env:
            raise ConfigError(f"--learner-device {learner_device} needs --placement split: colocated has one device")
        return env, env
    if learner_device is None and machine.gpus < 2:
        raise DeviceError(
            f"--placement split needs two CUDA devices, this machine has one; use colocated, or --learner-device {env} to "
            "give both roles a stream of their own on it"
        )
    return env, _gpu(machine, learner_device or "auto", 1 if _index(env) == 0 else 0)


def _refuse_gpu(name: str, device: str | None, option: str) -> None:
    if device not in (None, "auto", "cpu"):
        raise ConfigError(f"--placement {name} uses no GPU; leave {option} {device} out")


def _gpu(machine: Machine, device: str, default: int) -> str:
    """`cuda:N` for `auto` (the default), `cuda` (likewise) and `cuda:N`."""
    if device in ("auto", "cuda"):
        return f"cuda:{default}"
    kind, _, number = device.partition(":")
    if kind != "cuda" or not number.isdigit():
        raise DeviceError(f"unknown device {device!r}; use cuda or cuda:N here")
    if int(number) >= machine.gpus:
        there = ", ".join(f"cuda:{k}" for k in range(machine.gpus))
        raise DeviceError(f"there is no {device}; this machine has {there}")
    return device


def _index(device: str) -> int:
    return int(device.partition(":")[2] or 0)


# --- memory ----------------------------------------------------------------------------------------------------------


def memory_needed(config: Any, processes: int = 1) -> dict[str, dict[str, int]]:
    """device -> what -> bytes that one of the processes of this `RunConfig` allocates, roughly; largest first."""
    from learners.compat import off_policy
    from learners.compat import schedule as schedule_class
    from learners.config import make_config
    from learners.envs import spec_of

    if off_policy(config.algo):
        return _replay_needed(config, spec_of(config))
    from learners.networks import action_head
    from learners.rollout import Rollout
    from learners.transfer import SLOTS

    settings, spec = config.settings, spec_of(config)
    envs, steps = -(-settings["num_envs"] // processes), settings["num_steps"]
    spaces = spec.observation_space, spec.action_space
    _, outputs = action_head(spaces[1])
    chunk = Rollout.size(steps, envs, *spaces)
    rows = steps * envs
    weights, updates = _learning(spaces[0], outputs, rows, settings)
    chunks, copies = (
        (1 if config.transfer == "alias" else SLOTS),
        6,
    )  # weights, two moments and what a step makes of them
    schedule = schedule_class(config.schedule)
    if schedule.apart:
        chunks = make_config(schedule.config_class, config.schedule_settings).slots
        copies += chunks + 2  # of older versions, and of what collectors use
    needed: dict[str, dict[str, int]] = {config.env_device: {}}
    needed.setdefault(config.device, {})
    env_side, learner_side = needed[config.env_device], needed[config.device]
    env_side["environments"] = envs * _environment(spec, config)
    env_side["action noise"] = rows * outputs * 4
    if config.transfer not in ("alias", "remote"):
        env_side["horizons to send"] = chunks * chunk
    learner_side["horizons"] = chunks * chunk
    learner_side["weights"] = copies * 4 * weights
    learner_side["updates"] = updates
    return {device: dict(sorted(parts.items(), key=lambda item: -item[1])) for device, parts in needed.items()}


def _replay_needed(config: Any, spec: Any) -> dict[str, dict[str, int]]:
    """`memory_needed` of an algorithm that learns from a replay."""
    from learners.networks import action_head
    from learners.replay import Replay
    from learners.replay_loop import spare_horizons

    settings = config.settings
    envs, steps, batch = settings["num_envs"], settings["num_steps"], settings["batch_size"]
    spaces = spec.observation_space, spec.action_space
    _, outputs = action_head(spaces[1])
    spare = spare_horizons(settings["buffer_size"], envs * steps)
    weights, _ = _learning(spaces[0], 2 * outputs, batch, settings)
    units = sum(settings["hidden_sizes"]) + spaces[0].shape[0] + outputs
    learner = {
        "replay": Replay.nbytes(settings["buffer_size"], envs, *spaces, steps, spare),
        # Actor, two critics, their targets, moments, gradients and published copies: some sixteen networks of one size.
        "weights": 8 * 4 * weights,
        "updates": batch * 4 * 16 * units,
    }
    needed: dict[str, dict[str, int]] = {config.env_device: {}}
    needed.setdefault(config.device, {}).update(learner)
    needed[config.env_device]["environments"] = envs * _environment(spec, config)
    needed[config.env_device]["action noise"] = envs * steps * outputs * 4
    if config.schedule_settings.get("save_replay", True):
        # A copy that training does not change, the same as bytes, and the file's whole content.
        needed.setdefault("cpu", {})["checkpoints"] = 3 * learner["replay"]
    return {device: dict(sorted(parts.items(), key=lambda item: -item[1])) for device, parts in needed.items()}


def _environment(spec: Any, config: Any) -> int:
    """Bytes of one environment's arrays; what a host environment's own code takes is not known."""
    if config.env_backend == "host":
        obs, action = spec.observation_space, spec.action_space
        return 2 * obs.dtype.itemsize * math.prod(obs.shape) + 8 * max(1, math.prod(action.shape)) + 32
    from gpuenvs.runtime.buffers import SAME_STEP, make_layout, numpy_dtype
    from gpuenvs.runtime.options import real_dtype

    real = real_dtype(config.dtype)
    return sum(buffer.rows * numpy_dtype(buffer, real).itemsize for buffer in make_layout(spec, SAME_STEP).buffers)


def _learning(observation_space: Any, outputs: int, rows: int, settings: Mapping[str, Any]) -> tuple[int, int]:
    """(how many weights the two networks have, bytes that an update on `rows` rows takes beside them)."""
    from learners.images import encoder_sizes
    from learners.networks import obs_shape
    from learners.rollout import IMAGE_ROWS

    shape = obs_shape(observation_space)
    obs_dim = math.prod(shape)
    filters, activations, width = encoder_sizes(shape) if len(shape) == 3 else (0, 0, obs_dim)
    sizes = [width, *settings["hidden_sizes"]]
    weights = 2 * (filters + sum(a * b + b for a, b in itertools.pairwise(sizes))) + (sizes[-1] + 1) * (outputs + 1)
    minibatch, epochs = -(-rows // settings.get("minibatches", 1)), settings.get("epochs", 1)
    units = activations + sum(sizes[1:])
    # A dozen numbers per row and each epoch's order of them; activations and their gradients of a minibatch.
    batch, passes = rows * 4 * (12 + 2 * epochs), minibatch * 4 * 3 * 2 * units
    if len(shape) == 3:
        # The images of a minibatch, as they are stored and as floats; the critic's pass is one of so many at a time.
        return weights, batch + max(passes + minibatch * 5 * obs_dim, min(rows, IMAGE_ROWS) * 4 * (obs_dim + units))
    # Features of obs and final_obs; the critic's pass over all rows at once.
    return weights, batch + rows * 4 * 2 * obs_dim + max(passes, rows * 4 * 2 * max(sizes[1:], default=0))


def require_memory(config: Any, free: Callable[[str], int | None], processes: int = 1) -> list[str]:
    """Lines that name what the run needs on each GPU, and on the CPU where it is much.

    `free` tells what a device has left, None where that is unknown.

    Raises:
        DeviceError: a device has less.
    """
    from learners.devices import gibibytes

    lines = []
    for device, parts in memory_needed(config, processes).items():
        total, there = sum(parts.values()), free(device)
        listed = ", ".join(f"{what} {gibibytes(size)}" for what, size in list(parts.items())[:3])
        if there is not None and total > there:
            # What there is less of with which setting.
            settings = {"horizons": "num_steps=", "replay": "buffer_size=", "checkpoints": "save_replay=false"}
            less = " or ".join(f"--set {setting}" for part, setting in settings.items() if part in parts)
            raise DeviceError(
                f"{device} has {gibibytes(there)} free and the run needs about {gibibytes(total)} ({listed}); "
                f"use fewer --num-envs{less and ' or '}{less}"
            )
        if device != "cpu" or total >= 2**30:
            lines.append(f"memory: about {gibibytes(total)} on {device} ({listed})")
    return lines


def free_memory(device: str) -> int | None:
    """Bytes that can be had now; None where the system does not say."""
    if device != "cpu":
        from learners.devices import CudaRuntime, cuda

        return CudaRuntime().free_bytes(cuda(_index(device)))
    try:
        with open("/proc/meminfo") as file:
            found = [line.split()[1] for line in file if line.startswith("MemAvailable:")]
    except OSError:
        return None
    return int(found[0]) * 1024 if found else None


# --- the choice --------------------------------------------------------------------------------------------------------


def measure(
    schedule: Any, seconds: float = CALIBRATION_SECONDS, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Env steps per second of a schedule: two iterations to compile, then as many as fit into `seconds`."""

    def iterate() -> int:
        result = schedule.iterate()
        for value in result.metrics.values():
            float(value)  # waits for the device
        return result.env_steps

    iterate()
    iterate()
    began, steps = clock(), 0
    while True:
        steps += iterate()
        passed = clock() - began
        if passed >= seconds:
            return steps / max(passed, 1e-9)


def choose(
    machine: Machine,
    trial: Callable[[Placement], float],
    device: str = "auto",
    learner_device: str | None = None,
    transfer: str = "auto",
) -> tuple[Placement, list[str]]:
    """The fastest placement that the options allow, and lines that say what was predicted for each.

    `trial` measures one, in env steps per second. With one that is possible it is not called.

    Raises:
        DeviceError: none is possible.
    """
    possible, lines, problems = [], [], []
    for name in PLACEMENTS:
        try:
            possible.append(place(name, machine, device, learner_device, transfer))
        except (ConfigError, DeviceError) as error:
            problems.append(f"  {name:<10} not possible: {str(error).partition('; ')[0]}")
    if not possible:
        raise DeviceError(f"--placement auto: nothing fits --device {device}; {problems[-1].split(': ', 1)[1]}")
    if len(possible) == 1:
        best, why = possible[0], "the only one that the options allow" if machine.gpus else machine.reason
        return replace(best, why=_joined(best.why, why)), problems
    found: list[tuple[float, Placement]] = []
    for candidate in possible:
        try:
            sps = trial(candidate)
        except (GpurlError, RuntimeError, MemoryError) as error:
            problems.append(f"  {candidate.name:<10} failed: {' '.join(str(error).split())[:200]}")
            continue
        found.append((sps if math.isfinite(sps) else 0.0, candidate))
    if not found:
        raise DeviceError(f"--placement auto: every placement failed:{problems[-1].split(':', 1)[1]}")
    found.sort(key=lambda pair: -pair[0])
    lines = [f"  {p.name:<10} predicted {sps:>14,.0f} steps/s  {p.describe().partition(': ')[2]}" for sps, p in found]
    why = "the fastest of a short trial"
    if len(found) > 1:
        why += f", {found[0][0] / max(found[1][0], 1e-9):.2f} times {found[1][1].name}"
    best = found[0][1]
    return replace(best, why=_joined(best.why, why)), lines + problems


def _joined(*texts: str) -> str:
    return "; ".join(text for text in texts if text)
