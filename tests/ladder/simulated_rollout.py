"""The process that runs fused rollouts, many steps and noise in numba's CUDA simulator; see `tests.ladder.simulated`.

NUMBA_ENABLE_CUDASIM=1 NUMBA_DISABLE_JIT=1 python -m tests.ladder.simulated_rollout results.npz
"""

from __future__ import annotations

import sys

import numba
import numpy as np
import torch

import gpuenvs
from gpuenvs.runtime import cuda_policy
from gpuenvs.runtime.cuda_noise import fill_noise
from gpuenvs.runtime.cuda_rollout import OUTPUTS, StepsKernel
from learners.collectors.fused_cuda import FusedCudaRollout
from learners.collectors.noise import ActionNoise
from learners.networks import Policy
from learners.rollout import Rollout
from tests.gpuenvs.classic import CLASSIC
from tests.gpuenvs.ranged import SPECS

SEED, OFFSET, STEP = 2**63 + 11, 1000, 2**32 - 3  # the step number wraps inside the horizon
ROWS, STEPS, LIMIT = 21, 6, 4
# name -> (environment, hidden sizes, activation, correlation of the noise, normalised observations)
CASES = {
    **{env_id: (env_id, (16, 16), "tanh", 0.0, True) for env_id in CLASSIC},
    "relu": ("Acrobot-v1", (32, 16), "relu", 0.0, False),
    "correlated": ("Pendulum-v1", (16, 16), "tanh", 0.6, True),
    "one layer": ("CartPole-v1", (16,), "tanh", 0.0, True),
    "three layers": ("Pendulum-v1", (16, 32, 16), "tanh", 0.0, True),
    "four layers": ("CartPole-v1", (16, 16, 16, 16), "relu", 0.0, True),
    "looped inputs": ("Acrobot-v1", (16,), "tanh", 0.0, True),
    "InvertedPendulum-v5": ("InvertedPendulum-v5", (16, 16), "tanh", 0.0, True),
    "traced, correlated": ("InvertedPendulum-v5", (16,), "tanh", 0.6, True),
    "traced, three layers": ("InvertedPendulum-v5", (16, 16, 16), "relu", 0.0, False),
    "traced, looped inputs": ("Hopper-v5", (16, 16), "tanh", 0.0, True),
    "drawn params": (SPECS["compiled"], (16,), "tanh", 0.0, True),
    "traced, drawn params": (SPECS["traced"], (16,), "tanh", 0.0, True),
}
NOISE_SHAPE, NOISE_OFFSET = (3, 5, 6), 2**32 - 5


def make(name: str, device: str):
    """Environment, policy and rollout of a case; the same everywhere."""
    env_id, hidden, activation, correlation, norm = CASES[name]
    env = gpuenvs.make(
        env_id,
        ROWS,
        device=device,
        seed=SEED,
        env_offset=OFFSET,
        max_episode_steps=LIMIT,
        dtype="float32",
        metric_totals=True,
    )
    spaces = (env.single_observation_space, env.single_action_space)
    policy = Policy(*spaces, hidden_sizes=hidden, activation=activation, normalize_obs=norm, seed=2)
    generator = torch.Generator().manual_seed(3)
    policy.flat.add_(torch.randn(policy.flat.shape, generator=generator), alpha=0.1)  # biases and log_std count too
    if policy.obs_norm is not None:
        policy.obs_norm.update(torch.randn((50, policy.obs_dim), generator=generator) * 0.5 + 0.1)
    noise = ActionNoise(7, OFFSET, correlation, torch.device("cpu"))
    return env, policy, Rollout(STEPS, ROWS, *spaces), noise


def main(results: str) -> None:
    assert numba.config.ENABLE_CUDASIM and numba.config.DISABLE_JIT  # type: ignore[attr-defined]
    out = {}
    for name in CASES:
        env, policy, rollout, noise = make(name, "cuda:0")
        env.reset(seed=SEED)
        cuda_policy.UNROLLED_INPUTS = 2 if "looped inputs" in name else 16
        fused = FusedCudaRollout(env, policy, noise)
        for horizon in range(2):
            fused.run(policy, rollout, STEP + horizon * STEPS)
            out |= {f"{name}|{horizon}|{field}": getattr(rollout, field).numpy().copy() for field in OUTPUTS}
            out |= {f"{name}|{horizon}|env {key}": value for key, value in env.snapshot().items()}
        if noise.last is not None:
            out[f"{name}|last"] = noise.last.numpy()
    for env_id in CLASSIC:
        for actions in ("random", "constant"):
            with gpuenvs.make(env_id, ROWS, device="cuda:0", env_offset=OFFSET, max_episode_steps=LIMIT) as env:
                env.reset(seed=SEED)
                constant = np.ones_like(env.arrays["action"])
                StepsKernel(env.backend, actions).launch(STEPS, constant, seed=SEED, step=STEP)
                out |= {f"steps|{env_id}|{actions}|{key}": value for key, value in env.snapshot().items()}
    for kind in ("normal", "gumbel"):
        out[f"noise|{kind}"] = np.zeros(NOISE_SHAPE, np.float32)
        fill_noise(out[f"noise|{kind}"], kind, SEED, NOISE_OFFSET, STEP, 4)
    np.savez(results, **out)


if __name__ == "__main__":
    main(*sys.argv[1:])
