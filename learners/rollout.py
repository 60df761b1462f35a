"""One horizon of experience in fixed tensors, and what every on-policy learner computes from it first."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from learners.functional import gae
from learners.native.rollout import fused_gae
from learners.networks import Policy, action_head, obs_size
from learners.normalize import RewardNorm


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

    obs and final_obs are feature-major in memory, as the environments are, so storing a step is a plain copy.
    """

    def __init__(
        self,
        num_steps: int,
        num_envs: int,
        observation_space: Any,
        action_space: Any,
        device: str | torch.device = "cpu",
    ) -> None:
        head, size = action_head(action_space)
        obs_dim = obs_size(observation_space)
        rows = (num_steps, num_envs)
        action_shape = rows if head.action_dtype is torch.int64 else (*rows, size)
        self.num_steps = num_steps
        self.num_envs = num_envs
        self.obs = torch.zeros((num_steps + 1, obs_dim, num_envs), device=device).transpose(1, 2)
        self.final_obs = torch.zeros((num_steps, obs_dim, num_envs), device=device).transpose(1, 2)
        self.action = torch.zeros(action_shape, dtype=head.action_dtype, device=device)
        self.log_prob = torch.zeros(rows, device=device)
        self.value = torch.zeros((num_steps + 1, num_envs), device=device)
        self.final_value = torch.zeros(rows, device=device)
        self.has_value = False
        self.reward = torch.zeros(rows, device=device)
        self.terminated = torch.zeros(rows, dtype=torch.bool, device=device)
        self.truncated = torch.zeros(rows, dtype=torch.bool, device=device)
        self.episode_return = torch.zeros(rows, device=device)
        self.episode_length = torch.zeros(rows, dtype=torch.int32, device=device)
        self.version = torch.zeros(rows, dtype=torch.int64, device=device)

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


class Batch(NamedTuple):
    """Rows to learn from, B of them, in order of time, then environment."""

    features: Tensor  # (B, d) normalised observations
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
    obs_dim = rollout.obs.shape[-1]
    features = policy.features(rollout.obs).reshape(-1, obs_dim)
    value = rollout.value if rollout.has_value else policy.value(features).view(num_steps + 1, num_envs)
    reward = rollout.reward if reward_norm is None else reward_norm(rollout.reward, rollout.done())
    if rollout.has_value and reward.device.type == "cpu":
        advantage = torch.empty_like(reward)
        ends = (rollout.terminated, rollout.truncated, rollout.final_value)
        fused_gae(*(t.numpy() for t in (reward, value, *ends)), gamma, gae_lambda, advantage.numpy())
    else:
        ends = (rollout.terminated, rollout.truncated, final_values(policy, rollout))
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
    wait for the device.
    """
    if rollout.truncated.device.type != "cpu":
        final_obs = rollout.final_obs.reshape(-1, rollout.final_obs.shape[-1])
        return policy.value(policy.features(final_obs)).view(rollout.truncated.shape)
    out = torch.zeros_like(rollout.reward)
    t, env = rollout.truncated.nonzero(as_tuple=True)
    if len(t):
        out[t, env] = policy.value(policy.features(rollout.final_obs[t, env]))
    return out
