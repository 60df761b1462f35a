"""Versioned copies of a policy's weights: what collected which horizon, and what the collectors may read while it learns."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from learners.fence import Fence
from learners.networks import Policy


class History:
    """The acting tensors of the last `depth` versions, on the policy's own device."""

    def __init__(self, policy: Policy, depth: int) -> None:
        self._policy = policy
        self._copies = [[tensor.clone() for tensor in policy.acting_tensors()] for _ in range(depth)]

    @torch.no_grad()
    def keep(self, version: int) -> None:
        """The policy as it stands is `version` and takes the place of the oldest."""
        for copy, tensor in zip(self._copies[version % len(self._copies)], self._policy.acting_tensors(), strict=True):
            copy.copy_(tensor)

    def get(self, version: int) -> tuple[Tensor, ...]:
        """The tensors of one of the last `depth` versions."""
        return tuple(self._copies[version % len(self._copies)])

    def state_dict(self) -> list[list[Tensor]]:
        """All copies; safe to keep."""
        return [[tensor.clone() for tensor in copy] for copy in self._copies]

    def load_state_dict(self, state: list[list[Tensor]]) -> None:
        """Take a `state_dict` of the same depth over."""
        for copy, loaded in zip(self._copies, state, strict=True):
            for tensor, value in zip(copy, loaded, strict=True):
                tensor.copy_(value)


class Published:
    """The newest weights, for readers on other threads that ask whenever they like.

    Each version is a policy of its own that nobody changes; it goes when its last reader lets go of it.
    """

    def __init__(self, policy: Policy, version: int, device: torch.device) -> None:
        self._policy, self._device = policy, device
        self._lock = threading.Lock()
        self.publish(version)

    def publish(self, version: int) -> None:
        """The learner's weights as they stand are `version`."""
        copy = self._policy.copy_on(self._device)
        with self._lock:
            self._newest = copy, version

    def newest(self) -> tuple[Policy, int]:
        """(policy, version), never to be changed."""
        with self._lock:
            return self._newest


class Leases:
    """The newest weights in copies that are used again and again, for readers that say when they have done.

    A copy that somebody has leased is never written to; when all are in use another is made.
    """

    def __init__(self, policy: Policy, version: int, device: torch.device | str, fence: Fence | None = None) -> None:
        self._policy, self._device, self._fence = policy, device, fence or Fence()
        self._lock = threading.Lock()
        self._copies: list[Policy] = []
        self._readers: dict[int, int] = {}  # id of a copy -> how many read it
        self._newest: tuple[Policy, int] | None = None
        self.nbytes = 0  # written so far
        self.publish(version)

    @torch.no_grad()
    def publish(self, version: int) -> None:
        """The learner's weights as they stand are `version`. Only one thread may publish."""
        with self._lock:
            newest = self._newest[0] if self._newest else None
            free = [copy for copy in self._copies if copy is not newest and not self._readers.get(id(copy))]
        with self._fence.work():  # whoever leases it next may read on any stream
            if free:
                copy = free[0]
                for target, source in zip(copy.acting_tensors(), self._policy.acting_tensors(), strict=True):
                    target.copy_(source)
            else:
                copy = self._policy.copy_on(self._device)
                self._copies.append(copy)
        self.nbytes += sum(tensor.nbytes for tensor in copy.acting_tensors())
        with self._lock:
            self._newest = copy, version

    @property
    def version(self) -> int:
        """Of the newest weights."""
        assert self._newest is not None
        return self._newest[1]

    @contextlib.contextmanager
    def lease(self) -> Iterator[tuple[Policy, int]]:
        """(policy, version), not to be changed, and safe to read within."""
        with self._lock:
            assert self._newest is not None
            policy, version = self._newest
            self._readers[id(policy)] = self._readers.get(id(policy), 0) + 1
        try:
            yield policy, version
        finally:
            with self._lock:
                self._readers[id(policy)] -= 1


def load_fields(rollout: Any, fields: dict[str, Tensor]) -> None:
    """Write what `save_fields` returned into a rollout of the same shape, on any device."""
    for name, value in fields.items():
        if name != "has_value":
            getattr(rollout, name).copy_(value)
    rollout.has_value = bool(fields["has_value"])


def save_fields(rollout: Any) -> dict[str, Tensor]:
    """What a learner reads of a horizon: copies of its tensors by name, and whether there are values among them."""
    nbytes = rollout.learner_bytes
    names = [name for name, field in rollout.fields.items() if field.offset < nbytes]
    return {name: getattr(rollout, name).clone() for name in names} | {"has_value": torch.tensor(rollout.has_value)}
