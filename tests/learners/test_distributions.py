"""Action distributions against torch's own and against frequencies."""

import numpy as np
import pytest
import torch

from gpuenvs.rng import fill_gumbel, fill_normal
from learners.distributions import Categorical, DiagGaussian


def test_categorical_agrees_with_torch():
    logits = torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
    action = torch.tensor([0, 1, 2, 3, 0, 1, 2])
    ours, theirs = Categorical(logits), torch.distributions.Categorical(logits=logits)
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    assert torch.equal(ours.mode(), logits.argmax(-1))


def test_gaussian_agrees_with_torch():
    generator = torch.Generator().manual_seed(0)
    mean, log_std = torch.randn(7, 3, generator=generator), torch.tensor([-1.0, 0.0, 0.5])
    action = torch.randn(7, 3, generator=generator) * 5
    ours, theirs = DiagGaussian(mean, log_std), torch.distributions.Normal(mean, log_std.exp())
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action).sum(-1))
    torch.testing.assert_close(ours.entropy(), theirs.entropy().sum(-1))
    assert torch.equal(ours.mode(), mean)


def test_categorical_samples_with_the_right_frequencies():
    noise = torch.from_numpy(fill_gumbel(np.empty((1, 40_000, 3), np.float32), seed=1))[0]
    logits = torch.tensor([0.2, 0.3, 0.5]).log().expand(40_000, 3)
    action = Categorical(logits).sample(noise)
    counts = torch.bincount(action, minlength=3) / len(action)
    assert counts.tolist() == pytest.approx([0.2, 0.3, 0.5], abs=0.01)


def test_gaussian_samples_with_the_right_moments():
    noise = torch.from_numpy(fill_normal(np.empty((1, 40_000, 2), np.float32), seed=1))[0]
    dist = DiagGaussian(torch.tensor([[1.0, -2.0]]).expand(40_000, 2), torch.tensor([0.0, -1.0]))
    action = dist.sample(noise)
    assert action.mean(0).tolist() == pytest.approx([1, -2], abs=0.02)
    assert action.std(0).tolist() == pytest.approx([1, np.exp(-1)], abs=0.02)
