"""The mathematics of the learners as pure functions of tensors: no modules, no state, no environment.

Shapes: T is the horizon, n the number of environments. A rollout's rows are (T, n): `reward[t]`, `terminated[t]` and
`truncated[t]` belong to the step taken in `value[t]`'s state.
"""

from __future__ import annotations

import torch
from torch import Tensor


def next_values(
    value: Tensor, last_value: Tensor, terminated: Tensor, truncated: Tensor, final_value: Tensor
) -> Tensor:
    """The value each step bootstraps from, (T, n).

    In the middle of an episode that is V of the next row (`last_value` after the last one). Where an episode was cut by
    the time limit it is `final_value` = V(final_obs), the state the cut episode would have gone on from; where it
    terminated (also when both flags are set) it is zero. `final_value` is read at truncated rows only.
    """
    following = torch.cat((value[1:], last_value.unsqueeze(0)))
    following = torch.where(truncated, final_value, following)
    return following.masked_fill(terminated, 0.0)


def gae(
    reward: Tensor,
    value: Tensor,
    last_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    final_value: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Generalised advantage estimates, (T, n) (Schulman et al. 2016, arXiv 1506.02438, eq. 16).

    Both kinds of episode end stop the sum; only the bootstrap differs (see `next_values`).

    Args:
        reward, value, final_value: (T, n) floats.
        last_value: (n,) V of the observation after the last row.
        terminated, truncated: (T, n) bool.
    """
    following = next_values(value, last_value, terminated, truncated, final_value)
    delta = reward + gamma * following - value
    decay = (gamma * gae_lambda) * (~(terminated | truncated)).to(reward.dtype)
    advantage = torch.empty_like(delta)
    running = torch.zeros_like(last_value)
    for out, d, c in reversed(list(zip(advantage.unbind(0), delta.unbind(0), decay.unbind(0)))):
        running = torch.addcmul(d, c, running, out=out)
    return advantage


def vtrace(
    behaviour_log_prob: Tensor,
    log_prob: Tensor,
    reward: Tensor,
    value: Tensor,
    last_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    final_value: Tensor,
    gamma: float,
    trace_lambda: float = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """V-trace targets and policy-gradient advantages, both (T, n) (Espeholt et al. 2018, arXiv 1802.01561, eq. 1).

    With equal log-probs, `trace_lambda` = gae_lambda and bars >= 1 the advantages are GAE's and the targets GAE's returns: an
    advantage bootstraps from lambda times the next target and 1 - lambda times the next value, as rlax has it
    (vtrace_td_error_and_advantage). Episode ends are those of `gae`; past a cut the bootstrap is V(final_obs), with no
    correction beyond it.
    """
    rho = (log_prob - behaviour_log_prob).exp()
    clipped_rho = rho.clamp(max=rho_bar)
    following = next_values(value, last_value, terminated, truncated, final_value)
    going_on = (~(terminated | truncated)).to(reward.dtype)
    delta = clipped_rho * (reward + gamma * following - value)
    decay = gamma * trace_lambda * rho.clamp(max=c_bar) * going_on
    correction = torch.empty_like(delta)
    running = torch.zeros_like(last_value)
    for t in reversed(range(len(delta))):
        running = torch.addcmul(delta[t], decay[t], running, out=correction[t])
    target = value + correction
    following_target = torch.cat((target[1:], last_value.unsqueeze(0)))
    following_target = torch.lerp(following, following_target, trace_lambda * going_on)
    return target, clipped_rho * (reward + gamma * following_target - value)


def normalize_advantage(advantage: Tensor, eps: float = 1e-8) -> Tensor:
    """Zero mean, unit (population) standard deviation over every row."""
    return (advantage - advantage.mean()) / (advantage.std(correction=0) + eps)


def ppo_policy_loss(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip_coef: float | Tensor
) -> tuple[Tensor, Tensor]:
    """PPO's clipped surrogate, to be minimised, and the ratio (Schulman et al. 2017, arXiv 1707.06347, eq. 7)."""
    ratio = (log_prob - old_log_prob).exp()
    clipped = ratio.clamp(1 - clip_coef, 1 + clip_coef)  # pyright: ignore[reportCallIssue, reportArgumentType]
    return -torch.minimum(ratio * advantage, clipped * advantage).mean(), ratio


def policy_gradient_loss(log_prob: Tensor, advantage: Tensor) -> Tensor:
    """The advantage actor-critic surrogate, to be minimised (Mnih et al. 2016, arXiv 1602.01783, section 4)."""
    return -(log_prob * advantage).mean()


def value_loss(value: Tensor, target: Tensor, old_value: Tensor, clip_range: float = 0.0) -> Tensor:
    """Half the mean squared error; with `clip_range` > 0 the larger of that and of the value clipped to old +- range.

    The clipped form is the one of OpenAI's baselines (ppo2/model.py).
    """
    error = (value - target).square()
    if clip_range > 0:
        clipped = old_value + (value - old_value).clamp(-clip_range, clip_range)
        error = torch.maximum(error, (clipped - target).square())
    return 0.5 * error.mean()


def approx_kl(log_prob: Tensor, old_log_prob: Tensor) -> Tensor:
    """KL(old || new) by the low-variance, never negative estimator (r - 1) - log r, a mean over rows.

    Source: Schulman, "Approximating KL divergence", 2020, estimator k3.
    """
    log_ratio = log_prob - old_log_prob
    return (log_ratio.expm1() - log_ratio).mean()


def clip_fraction(ratio: Tensor, clip_coef: float | Tensor) -> Tensor:
    """The share of rows whose ratio lies outside 1 +- clip_coef."""
    return ((ratio - 1).abs() > clip_coef).to(ratio.dtype).mean()


def explained_variance(value: Tensor, target: Tensor) -> Tensor:
    """1 - Var(target - value) / Var(target); 1 is a perfect critic, 0 a constant one. NaN for a constant target."""
    variance = target.var(correction=0)
    return torch.where(variance > 0, 1 - (target - value).var(correction=0) / variance, torch.nan)


def linear_schedule(start: float, end_fraction: float, progress: float) -> float:
    """From `start` at progress 0 to `start * end_fraction` at progress 1 (and beyond)."""
    progress = min(max(progress, 0.0), 1.0)
    return start * (1.0 + (end_fraction - 1.0) * progress)
