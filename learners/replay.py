"""Experience replay on the learner's device: a ring over (steps, num_envs), one record per transition.

| record | columns | meaning |
|---|---|---|
| obs | d | raw observation the action was chosen on |
| action | k, or 1 for a discrete action | normalised to [-1, 1]; the number of a discrete one |
| next_obs | d | raw observation that followed: where an episode ended the ended state's, never the next episode's |
| reward, terminated, truncated | 1 each | as the environment reported them; flags are 0 or 1 |

A record is contiguous, so that drawing a batch is one gather of a few cache lines per row, on either kind of device.

One writer fills a block of `horizon` steps at a time and commits it; readers look at `committed` once per batch and need no
lock. The ring is `spare` blocks longer than what is sampled from: so far may the writer get before it overwrites what readers
drew; see `learners.schedules.spreeze`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpuenvs.errors import ConfigError
from learners import draws
from learners.images import is_image
from learners.networks import action_head, obs_shape


class Sample(NamedTuple):
    """B transitions of up to n steps each."""

    obs: Tensor  # (B, d) raw
    action: Tensor  # (B, k) f32 normalised, or (B,) i64
    reward: Tensor  # (B,) discounted sum over the steps
    next_obs: Tensor  # (B, d) raw, after the last of the steps
    discount: Tensor  # (B,) gamma ** steps; 0 where the last of them terminated


class Replay:
    """See the module's docstring.

    Args:
        capacity: transitions that are sampled from when it is full, rounded up to whole horizons.
        num_envs: environments that are collected from.
        observation_space, action_space: of one environment; observations are vectors.
        horizon: steps that are written at a time.
        device: where it lives.
        spare: horizons of room beside the capacity, at least one.

    Attributes:
        data: (steps, num_envs, width) float32 records.
        version: (steps,) int64 on the host: updates behind the weights that chose the actions of a step.
        committed: steps ever committed.

    Raises:
        ConfigError: the observations are images, or the device has not enough memory.
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
        if is_image(observation_space):
            raise ConfigError("off-policy learning from images is not supported: use ppo or a2c")
        self.num_envs, self.horizon, self.spare = num_envs, horizon, spare
        self.device = torch.device(device)
        self.columns, self.width, self.discrete = _layout(observation_space, action_space)
        self.steps = _steps(capacity, num_envs, horizon, spare)
        shape = (self.steps, num_envs, self.width)
        try:
            self.data = torch.zeros(shape, device=self.device)
        except RuntimeError as error:
            gigabytes = 4 * math.prod(shape) / 1e9
            raise ConfigError(f"a replay of {gigabytes:.2f} GB does not fit; use a smaller buffer_size") from error
        self.version = torch.zeros(self.steps, dtype=torch.int64)
        self.committed = 0
        self._flat = self.data.view(-1, self.width)

    @staticmethod
    def nbytes(
        capacity: int, num_envs: int, observation_space: Any, action_space: Any, horizon: int, spare: int = 1
    ) -> int:
        """Bytes that a replay of these arguments takes on its device."""
        return 4 * _layout(observation_space, action_space)[1] * num_envs * _steps(capacity, num_envs, horizon, spare)

    def __getattr__(self, name: str) -> Tensor:
        columns = self.__dict__.get("columns", {})
        if name not in columns:
            raise AttributeError(name)
        return _column(self.data, columns, name)

    @property
    def visible(self) -> int:
        """Steps that are sampled from."""
        return min(self.committed, self.steps - self.spare * self.horizon)

    @property
    def size(self) -> int:
        """Transitions that are sampled from."""
        return self.visible * self.num_envs

    def begin(self) -> Block:
        """The next `horizon` steps of the ring, to be written; the oldest ones, once it is full."""
        return Block(self, self.committed)

    def commit(self, block: Block) -> None:
        """The block that was begun last is complete."""
        if block.first != self.committed:
            raise ValueError(f"the block of step {block.first} was begun before step {self.committed} was committed")
        self.committed += self.horizon

    def draw(self, seed: int, update: int, count: int) -> Tensor:
        """(count,) int64 indices for `sample`, uniform over what is visible now; see `learners.draws.indices`."""
        committed = self.committed  # read once: the writer may go on meanwhile
        visible = min(committed, self.steps - self.spare * self.horizon)
        return draws.indices(committed, visible, self.num_envs, self.steps, seed, update, count, self.device)

    def sample(self, index: Tensor, n_step: int = 1, gamma: float = 0.99) -> Sample:
        """The transitions at `index` (B,), each over up to `n_step` steps.

        A transition ends at the end of its episode, whether that terminated or was cut off, and at the newest row; it is
        bootstrapped from the observation after its last step unless that step terminated.
        """
        rows = self._flat.index_select(0, index)
        columns = self.columns
        reward, next_obs = rows[:, columns["reward"]].squeeze(1), rows[:, columns["next_obs"]]
        terminated = rows[:, columns["terminated"]].squeeze(1)
        discount = gamma * (1 - terminated)
        if n_step > 1:
            reward, next_obs, discount = self._look_ahead(index, n_step, gamma, rows, reward, next_obs, discount)
        action = rows[:, columns["action"]]
        return Sample(
            rows[:, columns["obs"]], action.squeeze(1).long() if self.discrete else action, reward, next_obs, discount
        )

    def _look_ahead(
        self, index: Tensor, n_step: int, gamma: float, rows: Tensor, reward: Tensor, next_obs: Tensor, discount: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        slot = index.div(self.num_envs, rounding_mode="floor")
        env = index - slot * self.num_envs
        ahead = (self.committed - 1 - slot) % self.steps  # committed steps after the row
        going = self._going(rows)
        power = gamma
        for k in range(1, n_step):
            going = going & (ahead >= k)
            rows = self._flat.index_select(0, (slot + k) % self.steps * self.num_envs + env)
            reward = torch.where(going, reward + power * rows[:, self.columns["reward"]].squeeze(1), reward)
            next_obs = torch.where(going[:, None], rows[:, self.columns["next_obs"]], next_obs)
            power *= gamma
            terminated = rows[:, self.columns["terminated"]].squeeze(1)
            discount = torch.where(going, power * (1 - terminated), discount)
            going = going & self._going(rows)
        return reward, next_obs, discount

    def _going(self, rows: Tensor) -> Tensor:
        """(B,) bool: the episode goes on after these records."""
        ends = rows[:, self.columns["terminated"]] + rows[:, self.columns["truncated"]]
        return ends.squeeze(1) == 0

    def state_dict(self) -> dict[str, Any]:
        """What is visible, oldest step first, and where the ring stands."""
        slots = torch.arange(self.committed - self.visible, self.committed) % self.steps
        return {
            "data": self.data[slots.to(self.device)],
            "version": self.version[slots],
            "committed": self.committed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict` of a replay with the same sizes, bit for bit.

        Raises:
            ValueError: the sizes differ.
        """
        data, committed = state["data"], int(state["committed"])
        visible = min(committed, self.steps - self.spare * self.horizon)
        if tuple(data.shape) != (visible, self.num_envs, self.width):
            raise ValueError(
                f"the replay in the checkpoint has shape {tuple(data.shape)}; were buffer_size or num_envs changed?"
            )
        slots = torch.arange(committed - visible, committed) % self.steps
        self.data[slots.to(self.device)] = data.to(self.device)
        self.version[slots] = state["version"].cpu()
        self.committed = committed


class Block:
    """`horizon` steps of a replay's ring, to be written in place.

    | tensor | shape | meaning of row t |
    |---|---|---|
    | obs, action, next_obs, reward, terminated, truncated | (T, n, ...) f32 | views of the records |
    | episode_return, episode_length | (T, n) f32, i32 | of the ended episode; valid only where one ended |
    | version | (T,) i64, on the host | updates behind the weights that chose the actions |

    `first` is the number of its first step since the beginning. `totals` as in `learners.rollout.Rollout`.
    """

    def __init__(self, replay: Replay, first: int) -> None:
        self.first, self.num_steps, self.num_envs = first, replay.horizon, replay.num_envs
        slot = first % replay.steps
        self.data = replay.data[slot : slot + replay.horizon]
        self.version = replay.version[slot : slot + replay.horizon]
        for name in replay.columns:
            setattr(self, name, _column(self.data, replay.columns, name))
        self.columns = replay.columns
        shape = (self.num_steps, self.num_envs)
        self.episode_return = torch.zeros(shape, device=replay.device)
        self.episode_length = torch.zeros(shape, dtype=torch.int32, device=replay.device)
        self.totals: Any = None

    obs: Tensor
    action: Tensor
    next_obs: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor

    @property
    def rows(self) -> int:
        """T * n."""
        return self.num_steps * self.num_envs

    def done(self) -> Tensor:
        """(T, n) bool: an episode ended in this step, either way."""
        return (self.terminated + self.truncated) > 0

    def finished_episodes(self) -> tuple[Tensor, Tensor]:
        """Returns and lengths of the episodes that ended in this block, in order of time, then environment."""
        done = self.done()
        return self.episode_return[done], self.episode_length[done]


def _layout(observation_space: Any, action_space: Any) -> tuple[dict[str, slice], int, bool]:
    """(columns of a record, its width, whether actions are discrete)."""
    (d,) = obs_shape(observation_space)
    head, k = action_head(action_space)
    discrete = head.action_dtype == torch.int64
    columns, end = {}, 0
    widths = {"obs": d, "action": 1 if discrete else k, "next_obs": d, "reward": 1, "terminated": 1, "truncated": 1}
    for name, width in widths.items():
        columns[name] = slice(end, end + width)
        end += width
    return columns, end, discrete


def _steps(capacity: int, num_envs: int, horizon: int, spare: int) -> int:
    """Slots of the ring: whole horizons for the capacity, and the spare ones."""
    return (-(-capacity // (num_envs * horizon)) + spare) * horizon


def _column(data: Tensor, columns: dict[str, slice], name: str) -> Tensor:
    """The view (..., width) of a column, without the last dimension for single numbers."""
    view = data[..., columns[name]]
    return view[..., 0] if name in ("reward", "terminated", "truncated") else view
