"""Two or more storages on the CPU between a collector and a learner on threads of their own: nothing is copied but weights.

Who may touch a storage is decided by the schedule, which opens one for the next horizon only after the learner has released
it. The collector acts with copies of the weights that change only between horizons.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from learners.networks import Policy
from learners.rollout import Rollout
from learners.snapshots import load_fields, save_fields

# A horizon may begin under new weights while slow environments are still in the one before (`run_ahead`).
POLICIES = 2


class Swap:
    """`learners.transfer.Transfer` of one CPU with `slots` storages; see there.

    Attributes:
        policy: the copy that was published last; `publish` goes on to the other one.
    """

    kind = "alias"

    def __init__(self, policy: Policy, make_rollout: Callable[[], Rollout], slots: int) -> None:
        self._source = policy
        self._rollouts = [make_rollout() for _ in range(slots)]
        self._policies = [policy.copy_on("cpu") for _ in range(POLICIES)]
        self._published = self._begun = self._received = 0
        self._sent: deque[Rollout] = deque()
        self._newest = self._rollouts[0]

    @property
    def policy(self) -> Policy:
        return self._policies[self._published % POLICIES]

    def begin(self) -> Rollout:
        self._begun += 1
        return self._rollouts[(self._begun - 1) % len(self._rollouts)]

    def collecting(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def send(self) -> None:
        self._newest = self._rollouts[(self._received + len(self._sent)) % len(self._rollouts)]
        self._sent.append(self._newest)

    def receive(self) -> Rollout:
        return self._sent.popleft()

    def learning(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def release(self) -> None:
        self._received += 1

    @torch.no_grad()
    def publish(self) -> None:
        self._published += 1
        for target, source in zip(self.policy.acting_tensors(), self._source.acting_tensors(), strict=True):
            target.copy_(source)

    def reset(self) -> None:
        self.publish()

    def statistics(self) -> AbstractContextManager[Rollout]:
        return contextlib.nullcontext(self._newest)

    def drain(self) -> None:
        pass

    def metrics(self) -> dict[str, float]:
        return {"transfer_bytes_per_step": 0.0}

    def pending(self) -> list[dict[str, Tensor]]:
        """The horizons that were sent and not received, oldest first."""
        return [save_fields(rollout) for rollout in self._sent]

    def restore(self, horizons: list[dict[str, Tensor]]) -> None:
        """Begin anew with these sent; nothing else may be under way."""
        self._begun = self._received = 0
        self._sent.clear()
        for fields in horizons:
            load_fields(self.begin(), fields)
            self.send()
