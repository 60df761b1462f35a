"""A ring of transitions on the learner's device, from which off-policy learners draw their batches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpuenvs.errors import CheckpointError, ConfigError
from learners import draws
from learners.images import is_image
from learners.networks import action_head, obs_shape


class Sample(NamedTuple):
    """Transitions to learn from, B of them. obs, action and reward may be views of one table of records."""

    obs: Tensor  # (B, d) raw
    action: Tensor  # (B, k), as the policy put it out; discrete: (B, 1), the number of the action
    reward: Tensor  # (B,) discounted sum over the steps taken
    next_obs: Tensor  # (B, d) raw, after the last of them
    discount: Tensor  # (B,) gamma^steps, what V(next_obs) is worth; 0 where the episode terminated


class Layout(NamedTuple):
    """The columns of a record."""

    columns: dict[str, slice]
    width: int


def layout(observation_space: Any, action_space: Any) -> Layout:
    """Where the parts of a transition are in its record of float32 numbers.

    Raises:
        ConfigError: observations are no vectors, or the action space is not supported.
    """
    if is_image(observation_space):
        raise ConfigError("a replay holds vectors and this environment's observations are images; use ppo or a2c")
    obs_dim = obs_shape(observation_space)[0]
    head, outputs = action_head(action_space)
    action_dim = 1 if head.action_dtype is torch.int64 else outputs
    sizes = {"obs": obs_dim, "action": action_dim, "next_obs": obs_dim, "reward": 1, "terminated": 1, "truncated": 1}
    columns, width = {}, 0
    for name, size in sizes.items():
        columns[name] = slice(width, width + size)
        width += size
    return Layout(columns, width)


class Views:
    """The parts of records (..., width) by their names; reward and the two flags (1.0 or 0.0) without a last axis."""

    obs: Tensor
    action: Tensor
    next_obs: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor

    def __init__(self, data: Tensor, columns: dict[str, slice]) -> None:
        self.data, self.columns = data, columns
        for name, part in columns.items():
            view = data[..., part]
            setattr(self, name, view.squeeze(-1) if name in ("reward", "terminated", "truncated") else view)


class Block(Views):
    """One horizon of the ring, T = num_steps steps of n = num_envs environments, to be written or just written.

    obs, action, next_obs, reward, terminated, truncated (T, n, ...) are views of the ring, and so is version (T,) int64, on
    the host. They hold this horizon until the ring comes round.

    Attributes:
        first: number of the first step, counted from the beginning of the run.
        episode_return, episode_length: (T, n) f32, i32 of the ended episode; valid only where one ended. This block's own.
        totals: as of a `learners.rollout.Rollout`.
    """

    def __init__(self, data: Tensor, columns: dict[str, slice], version: Tensor, first: int) -> None:
        super().__init__(data, columns)
        self.version, self.first = version, first
        self.num_steps, self.num_envs = data.shape[:2]
        self.episode_return = torch.zeros(data.shape[:2], device=data.device)
        self.episode_length = torch.zeros(data.shape[:2], dtype=torch.int32, device=data.device)
        self.totals: Any = None

    @property
    def rows(self) -> int:
        """T * n."""
        return self.num_steps * self.num_envs

    def done(self) -> Tensor:
        """(T, n) bool: an episode ended in this step, either way."""
        return (self.terminated + self.truncated) > 0

    def finished_episodes(self) -> tuple[Tensor, Tensor]:
        """Returns and lengths of the episodes that ended in this horizon, in order of time, then environment."""
        done = self.done()
        return self.episode_return[done], self.episode_length[done]

    def beside(self, device: torch.device) -> Block:
        """A block of the same shape that is part of no ring, on `device`; on a CPU from where a GPU can fetch it itself."""
        pin = device.type == "cpu" and self.data.is_cuda
        data = torch.zeros(self.data.shape, device=device, pin_memory=pin)
        return Block(data, self.columns, torch.zeros_like(self.version), self.first)

    def take(self, other: Block) -> None:
        """Copy what another block of the same shape holds, on any device."""
        self.data.copy_(other.data)
        self.episode_return.copy_(other.episode_return)
        self.episode_length.copy_(other.episode_length)

    def fill(self, **parts: Any) -> None:
        """Copy whole parts (T, n, ...) by their names, each in one go, from anything that speaks DLPack."""
        for name, part in parts.items():
            target = getattr(self, name)
            source = torch.from_dlpack(part)
            target.copy_(source.view_as(target) if source.numel() == target.numel() else source)


class Replay(Views):
    """The newest transitions of `num_envs` environments: a ring over time steps, each a row of one record per environment.

    A record holds a whole transition, its next observation too, so that a batch is one gather, and what followed the end of
    an episode is what the environment says it was.

    One thread writes whole horizons: `begin`, fill the block, `commit`. Any number of threads read what is committed, without
    a lock: `draw`, then `sample`. What the writer may be filling is never drawn. A reader is safe while the writer is no
    further than `spare` horizons beyond what was committed when the reader drew; that is for the schedule to see to.

    Args:
        capacity: transitions to keep at least.
        num_envs: n.
        observation_space, action_space: of one environment.
        horizon: steps that are written together.
        device: where the records are.
        spare: horizons beside the capacity.

    Raises ConfigError for images and for spaces that no policy knows.

    Attributes:
        data: (steps, num_envs, width) f32, all records; obs, action, next_obs, reward, terminated, truncated are views of it.
        columns: where in a record each part is.
        version: (steps,) int64 on the host, of the weights that chose the actions of a step.
        committed: steps ever committed. Step number t is in slot t % steps.
    """

    def __init__(
        self,
        capacity: int,
        num_envs: int,
        observation_space: Any,
        action_space: Any,
        horizon: int,
        device: str | torch.device = "cpu",
        spare: int = 1,
    ) -> None:
        columns, width = layout(observation_space, action_space)
        self.steps, self.horizon, self.spare = _steps(capacity, num_envs, horizon, spare), horizon, spare
        super().__init__(torch.zeros((self.steps, num_envs, width), device=device), columns)
        self.num_envs, self.device = num_envs, self.data.device
        self.version = torch.zeros(self.steps, dtype=torch.int64)
        self.committed = 0
        self._records = self.data.view(-1, width)
        self._tail = self._records[:, self.columns["reward"].start :]  # reward, terminated, truncated

    @staticmethod
    def nbytes(
        capacity: int, num_envs: int, observation_space: Any, action_space: Any, horizon: int, spare: int = 1
    ) -> int:
        """Bytes that a replay with these arguments takes on its device."""
        return _steps(capacity, num_envs, horizon, spare) * num_envs * 4 * layout(observation_space, action_space).width

    @property
    def visible(self) -> int:
        """Steps that can be sampled from."""
        return min(self.committed, self.steps - self.spare * self.horizon)

    @property
    def size(self) -> int:
        """Transitions that can be sampled from."""
        return self.visible * self.num_envs

    # --- writing ---------------------------------------------------------------------------------------------------------

    def begin(self) -> Block:
        """The block to write next. Until it is committed, beginning again gives the same rows."""
        first = self.committed
        rows = slice(first % self.steps, first % self.steps + self.horizon)
        return Block(self.data[rows], self.columns, self.version[rows], first)

    def commit(self, block: Block) -> None:
        """From now on the block can be sampled from.

        Raises:
            ValueError: another block was committed since this one was begun.
        """
        if block.first != self.committed:
            raise ValueError(f"the block of step {block.first} is committed, but step {self.committed} is next")
        self.committed += self.horizon

    # --- reading ---------------------------------------------------------------------------------------------------------

    def draw(self, seed: int, update: int, count: int, committed: int | None = None) -> Tensor:
        """Flat numbers (count,) int64 on the device, of transitions drawn with replacement from all that can be sampled from.

        A function of its arguments and of `committed`, which is how many steps were committed; None: as it is now.

        Raises:
            ValueError: there are none.
        """
        newest = self.committed if committed is None else committed
        visible = self.steps - self.spare * self.horizon
        index = draws.indices(newest, visible, self.num_envs, self.steps, seed, update, count)
        return index if self.device.type == "cpu" else index.pin_memory().to(self.device, non_blocking=True)

    def sample(self, index: Tensor, n_step: int, gamma: float, committed: int | None = None) -> Sample:
        """The transitions `index` (B,), flat numbers slot * num_envs + env, over `n_step` steps each.

        Fewer steps where the episode ends, either way, and where the newest row is reached: V(next_obs) follows there, after
        gamma to the power of the steps that were taken. Nothing waits for the device.
        """
        rows = self._records.index_select(0, index)
        reward, terminated, truncated = rows[:, self.columns["reward"].start :].unbind(-1)
        next_obs = rows[:, self.columns["next_obs"]]
        discount = torch.full_like(reward, gamma)
        if n_step > 1:
            newest = (self.committed if committed is None else committed) - 1
            # Rows that follow each one before the newest is passed.
            left = torch.remainder(newest - torch.div(index, self.num_envs, rounding_mode="floor"), self.steps)
            going, last = (terminated + truncated) == 0, index
            for k in range(1, n_step):
                going = going & (left >= k)
                last = torch.where(going, torch.remainder(index + k * self.num_envs, len(self._records)), last)
                later, ended, cut = self._tail.index_select(0, last).unbind(-1)
                reward = torch.where(going, reward + gamma**k * later, reward)
                discount = torch.where(going, gamma ** (k + 1), discount)
                terminated = torch.where(going, ended, terminated)
                going = going & ((ended + cut) == 0)
            next_obs = self._records.index_select(0, last)[:, self.columns["next_obs"]]
        obs, action = rows[:, self.columns["obs"]], rows[:, self.columns["action"]]
        return Sample(obs, action, reward, next_obs, discount * (1 - terminated))

    # --- checkpoints -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What can be sampled from, oldest first, as copies on the host. No horizon may be under way."""
        slots = self._visible_slots()
        return {
            "committed": self.committed,
            "data": torch.cat([self.data[part].cpu() for part in slots]),
            "version": torch.cat([self.version[part] for part in slots]),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold what the replay of a `state_dict` held, in the same places.

        Raises:
            CheckpointError: that one was of another size.
        """
        before, self.committed = self.committed, int(state["committed"])
        slots = self._visible_slots()
        expected = (self.visible, *self.data.shape[1:])
        if self.committed % self.horizon or tuple(state["data"].shape) != expected:
            self.committed = before
            raise CheckpointError(
                f"the checkpoint's replay holds {tuple(state['data'].shape)} numbers and this run's {expected}; resume with "
                "the num_envs, num_steps and buffer_size of the run"
            )
        at = 0
        for part in slots:
            rows = slice(at, at + part.stop - part.start)
            self.data[part] = state["data"][rows].to(self.device)
            self.version[part] = state["version"][rows]
            at = rows.stop

    def _visible_slots(self) -> list[slice]:
        """What can be sampled from, oldest first, as one or two ranges of slots."""
        first, count = (self.committed - self.visible) % self.steps, self.visible
        before_end = min(count, self.steps - first)
        return [slice(first, first + before_end), slice(0, count - before_end)]


def _steps(capacity: int, num_envs: int, horizon: int, spare: int) -> int:
    """Slots of the ring: the capacity in whole horizons, and the spare ones."""
    if min(capacity, num_envs, horizon, spare) < 1:
        raise ConfigError(
            f"a replay needs a capacity, environments and steps, got {capacity}, {num_envs} and {horizon}"
        )
    return (math.ceil(capacity / (num_envs * horizon)) + spare) * horizon
