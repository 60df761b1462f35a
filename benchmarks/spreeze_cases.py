"""What `benchmarks.spreeze` compares: settings that are the same for all, goals, and the things changed one at a time."""

from __future__ import annotations

from typing import Any

from benchmarks.cases import Contender

BATCH, STARTS = 256, 1024
_RUNNING: dict[str, Any] = {
    "hidden_sizes": (256, 256), "num_envs": 16, "num_steps": 2, "update_to_data": 64, "learning_rate": 1e-3, "n_step": 3,
}  # fmt: skip
# The same for all: network, environments, steps between updates, frames per step, step size.
COMMON: dict[str, dict[str, Any]] = {
    "Pendulum-v1": {
        "hidden_sizes": (64, 64), "num_envs": 16, "num_steps": 4, "update_to_data": 32, "learning_rate": 1e-3, "n_step": 1,
    },
    "Hopper-v5": _RUNNING,
    "HalfCheetah-v5": _RUNNING,
}  # fmt: skip
SHARED = {"batch_size": BATCH, "learning_starts": STARTS, "buffer_size": 500_000}
# Return of an evaluation that ends a training; seconds of training between two evaluations; episodes of one.
GOALS = {"Pendulum-v1": (-180.0, 0.5, 20), "Hopper-v5": (500.0, 2.0, 10), "HalfCheetah-v5": (2000.0, 2.0, 3)}
LIMIT_SECONDS = 300.0
PEERS = (
    Contender(
        "SB3", worker="sac_peer", package="stable_baselines3", install="pip install stable-baselines3", peer=True
    ),
    Contender(
        "sbx",
        worker="sac_peer",
        package="sbx",
        install="pip install sbx-rl",
        peer=True,
        options={"distribution": "sbx-rl"},
    ),
)
FREE = (
    "num_envs=1024",
    "num_steps=16",
    "hidden_sizes=64,64",
    "update_to_data=0",
    "sampler_cores=1",
    "learning_rate=1e-3",
)
# What is changed, of what; words without "=" are not settings.
ABLATION: dict[str, tuple[str, ...]] = {
    "as it is": (),
    "sync: nothing at the same time": ("sync",),
    "deterministic rounds": ("deterministic=true",),
    "actor and critics apart": ("split=true",),
    "an evaluator beside it, every second": ("evaluator",),
    "a viewer beside it, its page unread": ("viewer",),
    "tuned": ("tuned",),
    "PyTorch's updates": ("engine=torch",),
    "step by step sampling": ("collector=eager",),
    **{f"batch {batch:,}": (f"batch_size={batch}",) for batch in (1024, 4096, 32768)},
}
ABLATED = "Pendulum-v1"


def request(env_id: str) -> dict[str, Any]:
    """Settings as workers take them."""
    return {"env_id": env_id, **COMMON[env_id], **SHARED}


def settings(env_id: str) -> list[str]:
    """Settings as `--set` takes them."""
    found = {**COMMON[env_id], **SHARED, "total_steps": 10**8}
    text = {k: ",".join(map(str, v)) if isinstance(v, tuple) else v for k, v in found.items()}
    return [f"{name}={value}" for name, value in text.items()]
