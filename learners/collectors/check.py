"""Is a rollout what the loop would have made of it? The environment and the policy are asked again, step by step."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from learners.collectors.loop import StepLoop
from learners.networks import Policy
from learners.rollout import Rollout

TOLERANCE = 1e-5  # of what is computed in float32: relative, and absolute below 1
_ENDED = ("final_obs", "episode_return", "episode_length")


class Agreement(NamedTuple):
    """How well a rollout agrees with the loop.

    Attributes:
        env: largest difference of what the environment returned for the same actions; 0 is bit-identical.
        policy: largest difference of actions and log-probs for the same observations.
    """

    env: float
    policy: float

    def problem(self, tolerance: float = TOLERANCE) -> str | None:
        """What does not agree, in words."""
        for name, size in (("environment", self.env), ("policy", self.policy)):
            if not size <= tolerance:
                return f"the {name}'s numbers differ by {size:.2g} from those of the eager loop"
        return None


@torch.no_grad()
def replay(loop: StepLoop, policy: Policy, rollout: Rollout, noise: Tensor) -> Agreement:
    """Compare a filled `rollout` with what `loop` makes of it. The environment must be where the rollout began.

    The environment gets the actions of the rollout, the policy its observations and noise: so neither sees what differences
    of the other would grow to. Where the environment's floats differ in a last bit, later rows of that environment do not
    count. Waits for the device.
    """
    exact = torch.ones(rollout.num_envs, dtype=torch.bool, device=rollout.obs.device)
    env_difference = policy_difference = 0.0
    for t in range(rollout.num_steps):
        policy_difference = max(policy_difference, _policy_difference(policy, rollout, noise[t], t))
        seen = {"obs": loop.observe(rollout.obs.device)} | loop.step(rollout, t)
        done = rollout.terminated[t] | rollout.truncated[t]
        counted = exact.clone()
        for name, value in seen.items():
            stored = getattr(rollout, name)[t]
            rows = counted & done if name in _ENDED else counted
            differs = (value != stored).reshape(len(rows), -1).any(1) & rows
            if bool(differs.any()):
                env_difference = max(env_difference, difference(stored[differs], value[differs]))
                exact &= ~differs
    last = loop.observe(rollout.obs.device)
    env_difference = max(env_difference, difference(rollout.obs[-1][exact], last[exact]))
    return Agreement(env_difference, policy_difference)


def _policy_difference(policy: Policy, rollout: Rollout, noise: Tensor, t: int) -> float:
    dist: Any = policy.distribution(policy.features(rollout.obs[t]))
    action = rollout.action[t]
    found = difference(rollout.log_prob[t], dist.log_prob(action))
    if policy.continuous:
        return max(found, difference(action, dist.sample(noise)))
    # A close call may go the other way: what counts is by how much the action chosen is not the best.
    scores = dist.logits + noise
    return max(found, difference(scores.gather(-1, action.unsqueeze(-1)).squeeze(-1), scores.amax(-1)))


def difference(a: Tensor, b: Tensor) -> float:
    """Largest difference of two tensors, relative where numbers are above 1; infinite where one alone is NaN."""
    if a.numel() == 0:
        return 0.0
    a, b = a.double(), b.double()
    apart = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs() / b.abs().clamp(min=1))
    return float(apart.nan_to_num(nan=float("inf")).max())
