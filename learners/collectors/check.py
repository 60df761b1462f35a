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
_FIELDS = ("obs", "action", "log_prob", "reward", "terminated", "truncated", *_ENDED)


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
    device = loop.device
    exact = torch.ones(rollout.num_envs, dtype=torch.bool, device=device)
    env_difference = policy_difference = 0.0
    for t in range(rollout.num_steps):
        row = {name: getattr(rollout, name)[t].to(device) for name in _FIELDS}
        seen = {"obs": loop.observe().clone(), **loop.step(row["action"])}
        policy_difference = max(policy_difference, _policy_difference(policy, row, noise[t]))
        done = row["terminated"] | row["truncated"]
        counted = exact.clone()
        for name, value in seen.items():
            rows = counted & done if name in _ENDED else counted
            value = value.to(row[name].dtype)  # a float64 environment's numbers are stored as float32
            differs = (value != row[name]).reshape(len(rows), -1).any(1) & rows
            if bool(differs.any()):
                env_difference = max(env_difference, difference(row[name][differs], value[differs]))
                exact &= ~differs
    last = rollout.obs[-1].to(device)
    env_difference = max(env_difference, difference(last[exact], loop.observe()[exact]))
    return Agreement(env_difference, policy_difference)


def _policy_difference(policy: Policy, row: dict[str, Tensor], noise: Tensor) -> float:
    dist: Any = policy.distribution(policy.features(row["obs"]))
    action = row["action"]
    found = difference(row["log_prob"], dist.log_prob(action))
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
