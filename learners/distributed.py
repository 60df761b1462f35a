"""Data-parallel training over processes: who they are, and what they tell each other.

A launcher such as torchrun starts the same command line several times and says by environment variables which process is
which (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT). The processes then work as one:

* `num_envs` and `total_steps` count the environments and steps of all processes together. Process r of p steps the rows
  r * num_envs / p and following of the one large batch that a single process would step.
* Every process draws the same share of each minibatch from its own rows. Gradients are averaged before each step, and
  the statistics of observations, returns and advantages are those of all rows, so all processes hold the same weights.
* Process 0 alone writes files, evaluates and prints.

Tensors on the CPU travel by gloo, those on GPUs by NCCL. Without a launcher (or with WORLD_SIZE=1) none of this is used.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuenvs.errors import ConfigError, DeviceError, ProcessError, RunError
from learners.watch import BEAT_SECONDS, SILENCE_SECONDS, Watch

if TYPE_CHECKING:
    from torch import Tensor

TIMEOUT_SECONDS = 600  # how long to wait for the others: one of them may compile or write a checkpoint
# Set to 1, all processes compare their weights after every gradient step (for tests and doubts; it is slow).
VERIFY = "GPURL_VERIFY_PROCESSES"
_HARD_END_SECONDS = 20
_met = False  # whether this process has joined the others
broken = False  # whether the group ended by an error: its connections cannot be closed in good order then


@dataclass(frozen=True)
class Place:
    """Which of the processes this is: `rank` of `size` in all, `local_rank` of `local_size` on this machine."""

    rank: int
    size: int
    local_rank: int
    local_size: int


def place() -> Place | None:
    """What the launcher says; None for a process that works alone.

    Raises:
        ConfigError: it says a part only, or nonsense.
    """
    if os.environ.get("WORLD_SIZE", "1").strip() in ("", "1"):
        return None
    size = _number("WORLD_SIZE", 1, 2**31)
    rank = _number("RANK", 0, size - 1)
    local_size = _number("LOCAL_WORLD_SIZE", 1, size, default=size)
    local_rank = _number("LOCAL_RANK", 0, local_size - 1, default=rank % local_size)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not os.environ.get(name):
            raise ConfigError(f"WORLD_SIZE={size} is set but {name} is not; start the processes with torchrun")
    _number("MASTER_PORT", 0, 2**16 - 1)
    return Place(rank, size, local_rank, local_size)


def local_size() -> int:
    """Processes of this training on this machine, which share its cores."""
    where = place()
    return where.local_size if where else 1


def local_device(device: str) -> str:
    """The device this process takes when the user asked for `device`: each process has a GPU of its own.

    Raises:
        DeviceError: one GPU was named for several processes.
    """
    where = place()
    if where is None or not device.startswith("cuda"):
        return device
    if device != "cuda" and where.local_size > 1:
        raise DeviceError(
            f"device {device!r} cannot be used by {where.local_size} processes; give --device cuda, one each"
        )
    return f"cuda:{where.local_rank}" if device == "cuda" else device


@contextlib.contextmanager
def joined() -> Iterator[Group | None]:
    """The group of all processes while the body runs; None for a process that works alone.

    When the body raises in one process, all others raise `ProcessError` at their next exchange, and end soon even if
    they never come to one.

    Raises:
        ConfigError: see `place`.
        ProcessError: the others did not come, or one of them failed.
    """
    where = place()
    if where is None:
        yield None
        return
    global _met, broken
    watch = _meet(where)
    _met = True
    try:
        yield Group(where, watch)
    except BaseException as error:
        broken = True
        watch.fail(error)
        _end_for_certain()
        raise
    import torch.distributed

    watch.leave()
    torch.distributed.destroy_process_group()


def silent(internal: bool = False) -> bool:
    """True in a process whose errors are printed by another one.

    Process 0 prints those of all once it knows the others. Before, the first process of each machine prints what the user
    did wrong, since the others would say the same; `internal` errors are printed by each.
    """
    try:
        where = place()
    except ConfigError:
        return False
    if where is None:
        return False
    return where.rank > 0 if _met else where.local_rank > 0 and not internal


class Group:
    """What the processes tell each other. Every method but the properties must be called by all, in the same order.

    Each raises `ProcessError` when another process is gone.

    Attributes:
        rank, size: this process and how many there are.
        verify_steps: whether learners call `verify` after every gradient step.
        verified: how often `verify` has found the weights equal.
    """

    def __init__(self, where: Place, watch: Watch | None = None) -> None:
        self.rank, self.size = where.rank, where.size
        self.verify_steps = os.environ.get(VERIFY, "") not in ("", "0")
        self.verified = 0
        self._watch = watch

    @property
    def first(self) -> bool:
        """True in the process that writes files and prints."""
        return self.rank == 0

    def share(self, num_envs: int) -> int:
        """How many of all `num_envs` environments one process steps. Raises ConfigError if they do not divide."""
        if num_envs % self.size:
            below = max(num_envs // self.size, 1) * self.size
            raise ConfigError(
                f"num_envs={num_envs} cannot be shared equally by {self.size} processes; "
                f"use {below} or {below + self.size}, say"
            )
        return num_envs // self.size

    def mean(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Each float32 tensor's mean over the processes, in one exchange."""
        import torch
        import torch.distributed as dist

        joint = torch.cat([tensor.reshape(-1) for tensor in tensors])
        with self._guard():
            dist.all_reduce(joint)
        joint /= self.size
        parts = joint.split([tensor.numel() for tensor in tensors])
        return tuple(part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True))

    def gather(self, tensor: Tensor) -> Tensor:
        """The tensor of every process, (size, *shape), in order of rank; all have the same shape."""
        import torch.distributed as dist

        out = tensor.new_empty((self.size, *tensor.shape))
        with self._guard():
            dist.all_gather(list(out.unbind()), tensor.contiguous())
        return out

    def objects(self, value: Any) -> list[Any]:
        """Everybody's `value`, in order of rank."""
        import torch.distributed as dist

        out: list[Any] = [None] * self.size
        with self._guard():
            dist.all_gather_object(out, value)
        return out

    def collect(self, value: Any) -> list[Any]:
        """Everybody's `value` in process 0, in order of rank; an empty list elsewhere."""
        import torch.distributed as dist

        out: list[Any] | None = [None] * self.size if self.first else None
        with self._guard():
            dist.gather_object(value, out)
        return out or []

    def tell(self, value: Any = None) -> Any:
        """The `value` of process 0, in every process."""
        import torch.distributed as dist

        out = [value]
        with self._guard():
            dist.broadcast_object_list(out)
        return out[0]

    def agree(self, settings: Mapping[str, Any]) -> None:
        """Raise ConfigError unless all processes were started with the same settings."""
        for rank, other in enumerate(self.objects(dict(settings))):
            for name, value in settings.items():
                if other.get(name) != value:
                    raise ConfigError(
                        f"process {rank} has {name}={other.get(name)} and process {self.rank} has {name}={value}; "
                        "start all processes with the same command line"
                    )

    def verify(self, tensors: Iterable[tuple[str, Any]], what: str) -> None:
        """Raise RunError unless the named tensors are the same bits in every process."""
        import torch

        from learners.checkpoint import weights_hash

        digest = torch.frombuffer(bytearray.fromhex(weights_hash(tensors)), dtype=torch.uint8)
        different = [rank for rank, other in enumerate(self.gather(digest)) if not torch.equal(other, digest)]
        if different:
            raise RunError(
                f"{what}: the weights of process {different[0]} differ from those of process {self.rank}; "
                "do all machines run the same versions of gpurl and torch?"
            )
        self.verified += 1

    def verify_step(self, optimizers: Sequence[Any]) -> None:
        """`verify` weights and moments after a gradient step, if the user asked for that."""
        if self.verify_steps:
            self.verify(learned(*optimizers), "after a gradient step")

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            failure = self._watch.wait_for_failure(3 * BEAT_SECONDS) if self._watch else None
            reason = " ".join(str(error).split()).partition("] ")[2].partition(". ")[0] or type(error).__name__
            lost = f"process {self.rank} of {self.size} lost the connection to another one; was it killed? ({reason})"
            raise ProcessError(failure or lost) from error


def all_moments(mean: Tensor, m2: Tensor, group: Group | None) -> list[tuple[Tensor, Tensor]]:
    """Mean and sum of squared deviations of each process's rows, float64 of one shape each, in order of rank.

    Merged in this order they give the same bits in all processes. Without a group they are the ones given.
    """
    import torch

    if group is None:
        return [(mean, m2)]
    return [(mean, m2) for mean, m2 in group.gather(torch.stack((mean, m2)))]


def learned(*optimizers: Any) -> list[tuple[str, Any]]:
    """Named tensors that have to be the same in all processes: the weights of each optimiser and its state."""
    return [
        (f"{number}.{name}", value)
        for number, optimizer in enumerate(optimizers)
        for name, value in (("weights", optimizer.param), *optimizer.state_dict().items())
    ]


def _number(name: str, low: int, high: int, default: int | None = None) -> int:
    text = os.environ.get(name)
    if text is None:
        if default is None:
            raise ConfigError(f"WORLD_SIZE is set but {name} is not; start the processes with torchrun")
        return default
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise ConfigError(f"{name}={text} must be an integer in {low}..{high}")
    return value


def _meet(where: Place) -> Watch:
    """Join the other processes and begin to watch over them."""
    import torch
    import torch.distributed as dist

    timeout = datetime.timedelta(seconds=TIMEOUT_SECONDS)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    gpus = torch.cuda.is_available() and dist.is_nccl_available()
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo", timeout=timeout)
        parts: Any = dist  # TCPStore and PrefixStore are public, but not re-exported for type checkers
        store = parts.TCPStore(address, port, is_master=False, timeout=datetime.timedelta(seconds=SILENCE_SECONDS))
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        watch = Watch(parts.PrefixStore(f"gpurl/{attempt}", store), where.rank, where.size)
        dist.all_gather_object([None] * where.size, where.rank)  # every process has given its first sign
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ProcessError(
            f"process {where.rank} could not meet the {where.size - 1} others at {address}:{port} ({reason})"
        ) from error
    watch.start()
    return watch


def _end_for_certain() -> None:
    """Have the system end this process soon: an interpreter that closes waits for pending collectives."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_HARD_END_SECONDS)
