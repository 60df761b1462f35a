"""What a learner does about rows that older weights collected.

| name | gradient at | rows are weighted by | advantages and targets from |
|---|---|---|---|
| `delayed` | the weights that collected | nothing: they are on-policy there | those weights' values |
| `ratio` | the current weights | pi / mu, by the stored log-probs (PPO clips it) | the current values |
| `vtrace` | the current weights | min(1, pi / mu) | V-trace (Espeholt et al. 2018, arXiv 1802.01561) |
| `none` | the current weights | nothing, as if they were on-policy | the current values |

`delayed` is HTS-RL's one-step delayed gradient (Liu et al. 2020, arXiv 2012.09849), applied to the current weights:
theta_{j+1} = theta_j + eta grad J(theta_{j-1}, D_{j-1}). An algorithm that makes several steps on a horizon makes all of them
as if from theta_{j-1}: theta_j is moved by what they come to, so the gradient of every step is that of the weights that
collected, moved on by the steps before it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from learners import functional as F
from learners.native.rollout import fused_vtrace
from learners.normalize import RewardNorm
from learners.rollout import Batch, Rollout, final_values, make_batch

CORRECTIONS = ("delayed", "ratio", "vtrace", "none")


@dataclass(frozen=True)
class Correction:
    """How an update treats its rows; the default is for rows that the current weights collected.

    Args:
        kind: one of `CORRECTIONS`, or `""` where there is nothing to correct.
        behaviour: for `delayed`: the acting tensors (see `Policy.acting_tensors`) of the weights that collected, on the
            learner's device.
    """

    kind: str = ""
    behaviour: tuple[Tensor, ...] = ()

    @property
    def weighted(self) -> bool:
        """Whether the surrogate is to be weighted by the ratio against the stored log-probs."""
        return self.kind == "ratio"

    @contextlib.contextmanager
    def applied(self, policy: Any) -> Iterator[None]:
        """Inside, `policy` has the weights whose gradient is wanted; what is learned there ends up in its own weights."""
        if self.kind != "delayed":
            yield
            return
        tensors = policy.acting_tensors()
        own = [tensor.clone() for tensor in tensors]
        for tensor, then in zip(tensors, self.behaviour, strict=True):
            tensor.copy_(then)
        try:
            yield
        except BaseException:
            tensors[0].copy_(own[0])
            raise
        else:
            weights, then = policy.flat, self.behaviour[0]
            weights.sub_(then).add_(own[0])
        finally:
            for tensor, mine in zip(tensors[1:], own[1:], strict=True):
                tensor.copy_(mine)


ON_POLICY = Correction()


# (features (B + n, d), action (B, ...)) -> values (B + n,), log-probs (B,) of the first B rows, at the weights as they stand
Passes = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@torch.no_grad()
def corrected_batch(
    policy: Any,
    rollout: Rollout,
    gamma: float,
    gae_lambda: float,
    reward_norm: RewardNorm | None = None,
    correction: Correction = ON_POLICY,
    passes: Passes | None = None,
) -> Batch:
    """`make_batch` for rows of older weights; call it inside of `correction.applied(policy)`.

    `passes` computes values and log-probs faster than PyTorch.
    """
    if correction.kind in ("", "delayed"):
        return make_batch(policy, rollout, gamma, gae_lambda, reward_norm)
    features, action = policy.features(rollout.obs).flatten(0, 1), rollout.action.flatten(0, 1)
    value, log_prob = passes(features, action) if passes else _passes(policy, features, action)
    # Values of the weights that collected are out of date: the critic as it stands knows better.
    rollout.value.copy_(value.view(rollout.value.shape))
    rollout.final_value.copy_(final_values(policy, rollout))
    rollout.has_value = True
    if correction.kind == "vtrace":
        return _vtrace_batch(rollout, features[: rollout.rows], log_prob, gamma, gae_lambda, reward_norm)
    batch = make_batch(policy, rollout, gamma, gae_lambda, reward_norm)
    return batch._replace(log_prob=log_prob) if correction.kind == "none" else batch


def _passes(policy: Any, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """`Passes` by PyTorch."""
    return policy.value(features), policy.distribution(features[: len(action)]).log_prob(action)


def _vtrace_batch(
    rollout: Rollout,
    features: Tensor,
    log_prob: Tensor,
    gamma: float,
    gae_lambda: float,
    reward_norm: RewardNorm | None,
) -> Batch:
    """Advantages carry the truncated ratio, so the batch's log-probs are those of the current weights."""
    value = rollout.value
    reward = rollout.reward if reward_norm is None else reward_norm(rollout.reward, rollout.done())
    log_probs = rollout.log_prob, log_prob.view(rollout.log_prob.shape)
    ends = rollout.terminated, rollout.truncated, rollout.final_value
    if reward.device.type == "cpu":
        target, advantage = torch.empty_like(reward), torch.empty_like(reward)
        arrays = (tensor.numpy() for tensor in (*log_probs, reward, value, *ends))
        fused_vtrace(*arrays, gamma, gae_lambda, target.numpy(), advantage.numpy())
    else:
        target, advantage = F.vtrace(*log_probs, reward, value[:-1], value[-1], *ends, gamma, trace_lambda=gae_lambda)
    action = rollout.action.flatten(0, 1)
    return Batch(features, action, log_prob, value[:-1].flatten(), advantage.flatten(), target.flatten())
