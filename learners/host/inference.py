"""Actions for whichever environments are ready, bit for bit the same whatever else is ready and whoever computes them.

| kind | for | how |
|---|---|---|
| `native` | small MLPs | one call without the GIL; every row by itself |
| `torch` | any policy | environments in fixed groups; a group runs whole, each row in its own place |

A library's matrix product may round a row differently in a batch of another size, or in another place of it. Hence the
groups: env i is always row `i % group` of a batch of `group` rows. Rows whose env is not ready are computed over what they
held before, and thrown away.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from gpuenvs.errors import ConfigError
from learners.host.horizon import Horizon
from learners.host.native import make_act
from learners.native.epochs import pack
from learners.native.network import misfit, plans
from learners.networks import Policy

# Rows of a group. A policy of vectors costs its dispatch, however many rows there are. The Nature encoder takes 0.9 ms for
# one image, 1.7 ms for four and 3.6 ms for sixteen on one core: four pay as soon as two of them are ready.
VECTOR_GROUP, IMAGE_GROUP = 16, 4


class Inference(Protocol):
    """Acts for rows of a pool. One object serves all actor threads; what each of them writes is in its own `scratch`.

    `group` is how many rows belong together in one `act`; 0: any may.
    """

    why: str
    group: int

    def load(self, policy: Policy) -> Any:
        """What `act` takes as weights, of a policy that nobody changes until its rows are done."""
        ...

    def scratch(self) -> Any:
        """Buffers of one thread."""
        ...

    def act(self, scratch: Any, weights: Any, horizon: Horizon, rows: np.ndarray, times: np.ndarray) -> None:
        """Store observation, action and log-prob of rows (m,) at steps (m,), and write the pool's `action`.

        The rows are of one group.
        """
        ...


def make_inference(pool: Any, policy: Policy) -> Inference:
    """The inference for `policy` and others like it.

    Raises:
        ConfigError: the policy is not on the CPU, where the environments are.
    """
    if policy.device.type != "cpu":
        raise ConfigError(f"host environments need a policy on the CPU to act with, and this one is on {policy.device}")
    problem = native_problem(pool, policy)
    return NativeInference(pool, policy) if problem is None else TorchInference(pool, policy, problem)


def native_problem(pool: Any, policy: Policy) -> str | None:
    """Why there is no native inference for this policy, in words; None if there is."""
    if pool.obs.ndim != 2 or pool.obs.dtype != np.float32:
        return "observations are not vectors of float32"
    return misfit(policy)


class _Packed(NamedTuple):
    weights: np.ndarray
    norm: np.ndarray
    clip: np.float32


class NativeInference:
    """See the module's docstring. Compiles when made. All ready rows are one call."""

    group = 0

    def __init__(self, pool: Any, policy: Policy) -> None:
        self.why = "the policy is a small MLP: native, row by row"
        self._pool = pool
        self._plan = plans(policy)["actor"]
        self._act = make_act(self._plan)

    def load(self, policy: Policy) -> _Packed:
        """A packed copy of the weights and statistics."""
        weights = np.zeros(self._plan.size, np.float32)
        pack(weights, policy.actor_flat.numpy(), self._plan.packed, self._plan.flat)
        norm, clip = np.zeros((2, policy.obs_dim), np.float32), np.float32(np.inf)
        norm[1] = 1.0
        if policy.obs_norm is not None:
            norm[0], norm[1] = policy.obs_norm.shift.numpy(), policy.obs_norm.scale.numpy()
            clip = np.float32(policy.obs_norm.clip)
        return _Packed(weights, norm, clip)

    def scratch(self) -> np.ndarray:
        return np.zeros(self._plan.workspace_size, np.float32)

    def act(self, scratch: np.ndarray, weights: _Packed, horizon: Horizon, rows: np.ndarray, times: np.ndarray) -> None:
        pool = self._pool
        self._act(
            rows, times, pool.obs, horizon.noise, *weights, scratch, horizon.flat_obs, horizon.action, pool.action,
            horizon.log_prob,
        )  # fmt: skip


class _Buffers(NamedTuple):
    """One batch of a thread: tensors, and the same memory as arrays."""

    obs: Tensor
    noise: Tensor
    obs_array: np.ndarray
    noise_array: np.ndarray


class TorchInference:
    """See the module's docstring."""

    def __init__(self, pool: Any, policy: Policy, why_not_native: str) -> None:
        self.group = min(pool.num_envs, VECTOR_GROUP if pool.obs.ndim == 2 else IMAGE_GROUP)
        self.why = f"torch, in groups of {self.group}: {why_not_native}"
        self._pool, self._noise_shape = pool, policy.noise_shape

    def load(self, policy: Policy) -> Policy:
        """The policy itself."""
        return policy

    def scratch(self) -> _Buffers:
        obs = torch.from_numpy(np.zeros((self.group, *self._pool.obs.shape[1:]), self._pool.obs.dtype))
        noise = torch.zeros((self.group, *self._noise_shape))
        return _Buffers(obs, noise, obs.numpy(), noise.numpy())

    @torch.inference_mode()
    def act(self, scratch: _Buffers, weights: Policy, horizon: Horizon, rows: np.ndarray, times: np.ndarray) -> None:
        pool, place = self._pool, rows % self.group
        obs = pool.obs[rows]
        horizon.obs[times, rows] = obs
        scratch.obs_array[place] = obs
        scratch.noise_array[place] = horizon.noise[times, rows]
        drawn, log_prob = weights.sample(scratch.obs, scratch.noise)
        action = drawn.numpy()[place]
        horizon.action[times, rows] = action
        horizon.log_prob[times, rows] = log_prob.numpy()[place]
        pool.action[rows] = action


def split(rows: np.ndarray, of: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """(number, those `rows` (m,) whose `of` (m,) is that number), in order of the numbers."""
    if len(rows) and (of == of[0]).all():
        yield int(of[0]), rows
        return
    for number in np.unique(of).tolist():
        yield number, rows[of == number]


def use_one_thread() -> None:
    """Let torch and the libraries below it compute on the calling thread alone when called from it.

    `torch.set_num_threads` would also set the number of the learner's threads.
    """
    torch.get_num_threads()  # the first parallel operation of a thread would set the number anew
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    for name in ("omp_set_num_threads", "MKL_Set_Num_Threads_Local"):
        with contextlib.suppress(OSError, AttributeError):  # builds without OpenMP or MKL
            getattr(ctypes.CDLL(str(library)), name)(1)
