"""A training loop of one's own: a policy written by hand in torch, over a batch whose arrays are torch tensors by DLPack.

    python examples/dlpack_torch.py                    # on the CPU
    python examples/dlpack_torch.py --device cuda

Between environments and torch nothing is copied: `obs`, `reward`, `terminated` and `truncated` are the batch's memory, and an
integer action goes back as it is. The next step overwrites them, so the loop copies what it keeps for its update: the
observations, 16 bytes a row. On CUDA policy and environments take turns on the default stream; only the list of finished
returns makes the host wait.

The update is proximal policy optimisation on whole horizons. It reaches a return of 500, the most there is.
"""

import argparse

import torch
from torch import nn
from torch.distributions import Categorical

import gpuenvs
from gpuenvs.adapters.dlpack import TensorEnv

GAMMA, LAMBDA, CLIP, EPOCHS = 0.98, 0.9, 0.2, 8
SCALE = 0.05  # of rewards, so that values are of the order of one


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


def train(steps: int, num_envs: int = 64, horizon: int = 32, seed: int = 0, device: str = "cpu") -> float:
    """Mean return of the last hundred training episodes of CartPole-v1."""
    torch.manual_seed(seed)
    env = TensorEnv(gpuenvs.make("CartPole-v1", num_envs, device=device), torch.from_dlpack)
    policy, critic = network(4, 2).to(device), network(4, 1).to(device)
    optimizer = torch.optim.Adam([*policy.parameters(), *critic.parameters()], lr=2e-3)
    finished: list[float] = []
    obs = env.reset(seed)
    for _ in range(-(-steps // (num_envs * horizon))):
        kept = []
        for _ in range(horizon):
            with torch.no_grad():
                before = obs.clone()
                chosen = Categorical(logits=policy(before))
                action = chosen.sample()
                obs, reward, terminated, truncated = env.step(action)
                ended = terminated | truncated
                # Where an episode ended, obs is the next one's first: what the value is of is the final one.
                after = torch.where(ended[:, None], env.info["final_obs"], obs)
                target = SCALE * reward + GAMMA * critic(after)[:, 0] * ~terminated
                kept.append((before, action, chosen.log_prob(action), target, ended))
                finished += env.info["episode_return"][ended].tolist()
        update(policy, critic, optimizer, [torch.stack(column) for column in zip(*kept)])
        finished = finished[-100:]
    env.close()
    return sum(finished) / len(finished)


def update(policy: nn.Module, critic: nn.Module, optimizer: torch.optim.Optimizer, columns: list[torch.Tensor]) -> None:
    """A few gradient steps on one horizon; each column is (horizon, num_envs, ...)."""
    obs, action, log_prob, target, ended = columns
    with torch.no_grad():
        error = target - critic(obs)[..., 0]
        advantage = error.clone()
        for t in range(len(error) - 2, -1, -1):
            advantage[t] += GAMMA * LAMBDA * ~ended[t] * advantage[t + 1]
        value = advantage + target - error
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    for _ in range(EPOCHS):
        chosen = Categorical(logits=policy(obs))
        ratio = (chosen.log_prob(action) - log_prob).exp()
        gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
        loss = 0.5 * (critic(obs)[..., 0] - value).square().mean() - gain.mean() - 0.01 * chosen.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Train CartPole-v1 in a loop of one's own.")
    options.add_argument("--steps", type=int, default=300_000, help="environment steps")
    options.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    print(f"return {train(given.steps, seed=given.seed, device=given.device):.1f}")
