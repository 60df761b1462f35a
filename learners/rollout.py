"""One horizon of experience in fixed tensors, and what every on-policy learner computes from it first."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from learners.functional import gae
from learners.images import in_chunks, is_image
from learners.native.rollout import fused_gae
from learners.networks import Policy, action_head, obs_shape
from learners.normalize import RewardNorm

_FEATURE_MAJOR = ("obs", "final_obs")
# Where a field may begin in a chunk: whole lines of every cache, and what a GPU's widest loads want.
ALIGNMENT = 256
# Images that go through a network together where nothing is learned: some 200 KB of floats each.
IMAGE_ROWS = 256


class Field(NamedTuple):
    """One tensor of a rollout: its shape in memory, and where in the chunk its bytes are."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int
    nbytes: int


class Rollout:
    """Storage of T = num_steps rows for n = num_envs environments; every tensor is allocated once and reused.

    | tensor | shape | meaning of row t |
    |---|---|---|
    | obs | (T+1, n, d) f32 | raw observation the action was chosen on; row T is what follows the horizon |
    | action | (T, n) i64 or (T, n, k) f32 | raw action, before the environment clips it |
    | log_prob | (T, n) f32 | of that action under the behaviour policy |
    | value | (T+1, n) f32 | V(obs) under the behaviour policy; only if `has_value` |
    | final_value | (T, n) f32 | V(final_obs) where an episode was truncated; only if `has_value` |
    | reward | (T, n) f32 | raw reward |
    | terminated, truncated | (T, n) bool | as the environment reported them |
    | final_obs | (T, n, d) f32 | the ended state's observation; valid only where an episode ended |
    | episode_return, episode_length | (T, n) f32, i32 | of the ended episode; valid only where one ended |
    | version | (T, n) i64 | number of updates behind the weights that chose the action |

    obs and final_obs are feature-major in memory, as the environments are, so storing a step is a plain copy. Of images they
    are (…, n, C, H, W) uint8, in that order.

    All of them are views of `chunk`, one array of bytes, so that a horizon goes to another device in one copy. What a
    learner does not read is at the end: `learner_bytes` leaves it out of that copy.

    `totals` are the sums of the environments' own metrics over the horizon (see `BatchEnv.take_totals`), None where there are
    none.

    Args:
        num_steps, num_envs: T and n.
        observation_space, action_space: of one environment.
        device: where to allocate the chunk.
        chunk: zeroed bytes (`Rollout.size(...)`,) uint8 to use instead, on any device.
    """

    obs: Tensor
    action: Tensor
    log_prob: Tensor
    value: Tensor
    final_value: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    final_obs: Tensor
    episode_return: Tensor
    episode_length: Tensor
    version: Tensor

    def __init__(
        self,
        num_steps: int,
        num_envs: int,
        observation_space: Any,
        action_space: Any,
        device: str | torch.device = "cpu",
        chunk: Tensor | None = None,
    ) -> None:
        self.num_steps = num_steps
        self.num_envs = num_envs
        self.fields = _fields(num_steps, num_envs, observation_space, action_space)
        nbytes = _end(self.fields)
        self.chunk = torch.zeros(nbytes, dtype=torch.uint8, device=device) if chunk is None else chunk
        for field in self.fields.values():
            part = self.chunk[field.offset : field.offset + field.nbytes].view(field.dtype).view(field.shape)
            turned = field.name in _FEATURE_MAJOR and not is_image(observation_space)
            setattr(self, field.name, part.transpose(1, 2) if turned else part)
        self.has_value = False
        self.totals: Any = None

    @staticmethod
    def size(num_steps: int, num_envs: int, observation_space: Any, action_space: Any) -> int:
        """Bytes of the chunk."""
        return _end(_fields(num_steps, num_envs, observation_space, action_space))

    @property
    def learner_bytes(self) -> int:
        """How many of the chunk's first bytes hold everything that `make_batch` reads."""
        return self.fields["episode_return" if self.has_value else "value"].offset

    @property
    def rows(self) -> int:
        """T * n."""
        return self.num_steps * self.num_envs

    def done(self) -> Tensor:
        """(T, n) bool: an episode ended in this step, either way."""
        return self.terminated | self.truncated

    def finished_episodes(self) -> tuple[Tensor, Tensor]:
        """Returns and lengths of the episodes that ended in this horizon, in order of time, then environment."""
        done = self.done()
        return self.episode_return[done], self.episode_length[done]


def _fields(num_steps: int, num_envs: int, observation_space: Any, action_space: Any) -> dict[str, Field]:
    """The layout of a chunk: what every learner reads, then the values, then what only people read."""
    head, size = action_head(action_space)
    shape = obs_shape(observation_space)
    image = is_image(observation_space)
    obs = (num_envs, *shape) if image else (*shape, num_envs)
    obs_dtype = torch.uint8 if image else torch.float32
    rows = (num_steps, num_envs)
    table = (
        ("obs", (num_steps + 1, *obs), obs_dtype),
        ("final_obs", (num_steps, *obs), obs_dtype),
        ("action", rows if head.action_dtype is torch.int64 else (*rows, size), head.action_dtype),
        ("log_prob", rows, torch.float32),
        ("reward", rows, torch.float32),
        ("terminated", rows, torch.bool),
        ("truncated", rows, torch.bool),
        ("version", rows, torch.int64),
        ("value", (num_steps + 1, num_envs), torch.float32),
        ("final_value", rows, torch.float32),
        ("episode_return", rows, torch.float32),
        ("episode_length", rows, torch.int32),
    )
    fields, offset = {}, 0
    for name, shape, dtype in table:
        nbytes = math.prod(shape) * dtype.itemsize
        fields[name] = Field(name, shape, dtype, offset, nbytes)
        offset = -(-(offset + nbytes) // ALIGNMENT) * ALIGNMENT
    return fields


def _end(fields: dict[str, Field]) -> int:
    """Bytes up to the end of the last field."""
    last = next(reversed(fields.values()))
    return last.offset + last.nbytes


class Batch(NamedTuple):
    """Rows to learn from, B of them, in order of time, then environment."""

    features: Tensor  # (B, d) normalised observations, or (B, C, H, W) uint8
    action: Tensor  # (B,) i64 or (B, k) f32
    log_prob: Tensor  # (B,) under the behaviour policy
    value: Tensor  # (B,) V of the row before this update
    advantage: Tensor  # (B,) GAE
    target: Tensor  # (B,) advantage + value, what the critic learns

    def select(self, index: Tensor) -> Batch:
        """The rows of a (M,) int64 index."""
        return Batch(*(part.index_select(0, index) for part in self))


@torch.no_grad()
def make_batch(
    policy: Policy, rollout: Rollout, gamma: float, gae_lambda: float, reward_norm: RewardNorm | None = None
) -> Batch:
    """Values, advantages and targets of a rollout under `policy` as it stands."""
    num_steps, num_envs = rollout.num_steps, rollout.num_envs
    features = _rows(policy.features(rollout.obs))
    value = rollout.value if rollout.has_value else _values(policy, features).view(num_steps + 1, num_envs)
    reward = rollout.reward if reward_norm is None else reward_norm(rollout.reward, rollout.done())
    if rollout.has_value and reward.device.type == "cpu":
        advantage = torch.empty_like(reward)
        ends = (rollout.terminated, rollout.truncated, rollout.final_value)
        fused_gae(*(t.numpy() for t in (reward, value, *ends)), gamma, gae_lambda, advantage.numpy())
    else:
        final = rollout.final_value if rollout.has_value else final_values(policy, rollout)
        ends = (rollout.terminated, rollout.truncated, final)
        advantage = gae(reward, value[:-1], value[-1], *ends, gamma, gae_lambda)
    return Batch(
        features[: rollout.rows],
        rollout.action.flatten(0, 1),
        rollout.log_prob.flatten(),
        value[:-1].flatten(),
        advantage.flatten(),
        (advantage + value[:-1]).flatten(),
    )


def final_values(policy: Policy, rollout: Rollout) -> Tensor:
    """V(final_obs), (T, n), correct where an episode was truncated; elsewhere it means nothing.

    On the CPU only the truncated rows are evaluated; on other devices all are, because picking them out would have to
    wait for the device. Of images they are picked out everywhere: few ends are truncated, and each is a costly pass.
    """
    if rollout.truncated.device.type != "cpu" and not policy.image:
        return policy.value(policy.features(_rows(rollout.final_obs))).view(rollout.truncated.shape)
    out = torch.zeros_like(rollout.reward)
    t, env = rollout.truncated.nonzero(as_tuple=True)
    if len(t):
        out[t, env] = _values(policy, policy.features(rollout.final_obs[t, env]))
    return out


def _rows(table: Tensor) -> Tensor:
    """(T, n, ...) -> (T * n, ...)."""
    return table.reshape(-1, *table.shape[2:])


def _values(policy: Policy, features: Tensor) -> Tensor:
    """The critic's value of each row."""
    return in_chunks(policy.value, features, IMAGE_ROWS) if policy.image else policy.value(features)
