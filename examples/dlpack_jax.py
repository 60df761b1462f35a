"""A training loop of one's own in JAX, over a batch whose arrays come by DLPack.

    python examples/dlpack_jax.py

JAX's arrays may not change, and its work on them goes on after a call has returned; the batch's arrays are overwritten by
the next step. So `copy=True`: each output is copied once a step (22 bytes a row for CartPole), and JAX takes the copy
as it is. (`jax.dlpack.from_dlpack(array, copy=True)` would not do: JAX 0.10 does not copy where it could share.)
Actions go back without a copy.

The update is the plain policy gradient, on whole episodes of CartPole-v1, with Adam written out. It reaches a
return of 200, the most there is with this time limit.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np

import gpuenvs
from gpuenvs.adapters.dlpack import TensorEnv

GAMMA, RATE, LIMIT = 0.98, 0.02, 200


def logits(weights, obs):
    (w0, b0), (w1, b1) = weights
    return jnp.tanh(obs @ w0 + b0) @ w1 + b1


@jax.jit
def act(weights, obs, key):
    return jax.random.categorical(key, logits(weights, obs)).astype(jnp.int32)


@jax.jit
def update(weights, moments, count, obs, action, advantage):
    """One step of Adam up the policy gradient; arrays are (steps, envs, ...), advantage 0 where nothing was played."""

    def loss(weights):
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits(weights, obs)), action[..., None], axis=-1)[..., 0]
        return -(chosen * advantage).sum() / (advantage != 0).sum()

    slope = jax.grad(loss)(weights)
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], slope)
    square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, moments[1], slope)
    bias = jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    weights = jax.tree.map(lambda w, m, v: w - RATE * bias * m / (jnp.sqrt(v) + 1e-8), weights, mean, square)
    return weights, (mean, square)


def advantages(reward: np.ndarray, playing: np.ndarray) -> np.ndarray:
    """Discounted returns from each step on, normalised among the environments that still played then."""
    value = np.zeros_like(reward)
    total = np.zeros(reward.shape[1], np.float32)
    for t in range(len(reward) - 1, -1, -1):
        value[t] = total = reward[t] + GAMMA * total
    mean = (value * playing).sum(1, keepdims=True) / np.maximum(playing.sum(1, keepdims=True), 1)
    centred = (value - mean) * playing
    return centred / (np.sqrt((centred**2).sum() / playing.sum()) + 1e-8)


def train(updates: int, num_envs: int = 128, seed: int = 0) -> float:
    """Mean return, at most LIMIT, of the last update's episodes."""
    key = jax.random.key(seed)
    key, k0, k1 = jax.random.split(key, 3)
    weights = [(jax.random.normal(k0, (4, 64)) / 2, jnp.zeros(64)), (jax.random.normal(k1, (64, 2)) / 80, jnp.zeros(2))]
    moments = (jax.tree.map(jnp.zeros_like, weights), jax.tree.map(jnp.zeros_like, weights))
    batch = gpuenvs.make("CartPole-v1", num_envs, device="cpu", seed=seed, max_episode_steps=LIMIT)
    env = TensorEnv(batch, jax.dlpack.from_dlpack, copy=True)
    mean = 0.0
    for count in range(1, updates + 1):
        obs, over, kept = env.reset(), jnp.zeros(num_envs, bool), []
        for _ in range(LIMIT):
            key, own = jax.random.split(key)
            action = act(weights, obs, own)
            after, reward, terminated, truncated = env.step(action)
            kept.append((obs, action, reward, ~over))
            obs, over = after, over | terminated | truncated
        seen, action, reward, playing = (jnp.stack(column) for column in zip(*kept))
        mean = float((reward * playing).sum() / num_envs)
        advantage = advantages(np.asarray(reward * playing), np.asarray(playing))
        weights, moments = update(weights, moments, count, seen, action, jnp.asarray(advantage))
    batch.close()
    return mean


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Train CartPole-v1 in a loop of one's own.")
    options.add_argument("--updates", type=int, default=40)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    print(f"return {train(given.updates, seed=given.seed):.1f} of {LIMIT}")
