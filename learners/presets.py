"""Settings that work untouched, per environment and algorithm: overrides of the algorithm's defaults.

`total_steps` is chosen so that every seed reaches the environment's goal with some room to spare.
"""

from __future__ import annotations

from typing import Any

PRESETS: dict[tuple[str, str], dict[str, Any]] = {
    ("CartPole-v1", "ppo"): {
        "num_envs": 64,
        "num_steps": 64,
        "total_steps": 500_000,
        "learning_rate": 1e-3,
        "gamma": 0.99,
        "gae_lambda": 0.95,
    },
    ("CartPole-v1", "a2c"): {
        "num_envs": 64,
        "num_steps": 16,
        "total_steps": 1_000_000,
        "learning_rate": 2e-3,
        "gamma": 0.99,
        "gae_lambda": 0.95,
    },
    ("Acrobot-v1", "ppo"): {
        "num_envs": 64,
        "num_steps": 64,
        "total_steps": 1_000_000,
        "learning_rate": 1e-3,
        "gae_lambda": 0.95,
        "norm_obs": True,
    },
    ("MountainCar-v0", "ppo"): {
        "num_envs": 64,
        "num_steps": 64,
        "total_steps": 3_000_000,
        "learning_rate": 1e-3,
        "gamma": 0.995,
        "gae_lambda": 0.98,
        "norm_obs": True,
        "norm_reward": True,
        "ent_coef": 0.01,
    },
    ("MountainCarContinuous-v0", "ppo"): {
        "num_envs": 64,
        "num_steps": 64,
        "total_steps": 1_000_000,
        "learning_rate": 1e-3,
        "gamma": 0.999,
        "gae_lambda": 0.98,
        "norm_obs": True,
        "norm_reward": True,
        "noise_correlation": 0.95,
    },
    ("Pendulum-v1", "ppo"): {
        "num_envs": 64,
        "num_steps": 64,
        "total_steps": 2_000_000,
        "learning_rate": 1e-3,
        "gamma": 0.95,
        "gae_lambda": 0.9,
        "epochs": 10,
        "norm_obs": True,
        "norm_reward": True,
    },
}


def preset(env_id: str, algo: str) -> dict[str, Any]:
    """Overrides for an environment and algorithm; empty (the algorithm's defaults) where none are known."""
    return dict(PRESETS.get((env_id, algo), {}))
