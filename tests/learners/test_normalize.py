"""Running normalisers."""

import numpy as np
import torch

from learners.normalize import ObsNorm, RewardNorm


def rows(n=1000, d=3):
    generator = torch.Generator().manual_seed(3)
    return torch.randn(n, d, generator=generator) * torch.tensor([1.0, 100.0, 1e-3]) + torch.tensor([0.0, 1e4, 5.0])


def test_the_identity_before_any_update():
    obs = torch.tensor([[1.0, -2.0, 3.0]])
    assert torch.equal(ObsNorm(3)(obs), obs)


def test_statistics_are_those_of_all_rows():
    norm, obs = ObsNorm(3), rows()
    for chunk in obs.split(137):
        norm.update(chunk)
    assert norm.count.item() == 1000
    np.testing.assert_allclose(norm.mean, obs.double().mean(0), rtol=1e-12)
    np.testing.assert_allclose(norm.m2 / norm.count, obs.double().var(0, correction=0), rtol=1e-9)
    out = norm(obs)
    np.testing.assert_allclose(out.mean(0), np.zeros(3), atol=2e-3)
    np.testing.assert_allclose(out.std(0), np.ones(3), rtol=6e-3)


def test_chunking_hardly_matters():
    whole, pieces = ObsNorm(3), ObsNorm(3)
    whole.update(rows())
    for chunk in rows().flip(0).split(7):
        pieces.update(chunk)
    torch.testing.assert_close(whole.mean, pieces.mean, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(whole.m2, pieces.m2, rtol=1e-10, atol=0)


def test_output_is_clipped_and_a_constant_input_stays_finite():
    norm = ObsNorm(2, clip=5.0)
    norm.update(torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
    out = norm(torch.tensor([[2.0, 1e9]]))
    assert out.tolist() == [[5.0, 5.0]]


def test_state_dict_holds_everything():
    norm, other = ObsNorm(3), ObsNorm(3)
    norm.update(rows())
    other.load_state_dict(norm.state_dict())
    assert torch.equal(other(rows()), norm(rows()))
    norm.update(rows(10))
    other.update(rows(10))
    assert all(torch.equal(a, b) for a, b in zip(norm.state_dict().values(), other.state_dict().values()))


def test_reward_norm_divides_by_the_deviation_of_the_discounted_return():
    norm = RewardNorm(2, gamma=0.5)
    reward = torch.tensor([[1.0, 4.0], [2.0, 0.0], [3.0, 0.0]])
    done = torch.tensor([[False, True], [False, False], [False, False]])
    # returns: 1, 1/2 + 2 = 2.5, 1.25 + 3 = 4.25 and 4, then 0 (episode over), 0
    returns = np.array([1, 2.5, 4.25, 4, 0, 0])
    out = norm(reward, done)
    np.testing.assert_allclose(out, reward / np.sqrt(returns.var() + 1e-8), rtol=1e-6)
    assert norm.running.tolist() == [0.5 * 4.25, 0.0]


def test_reward_norm_carries_returns_over_horizons():
    generator = torch.Generator().manual_seed(0)
    reward, done = torch.randn(6, 4, generator=generator), torch.rand(6, 4, generator=generator) < 0.3
    whole, halves = RewardNorm(4, 0.9), RewardNorm(4, 0.9)
    whole(reward, done)
    halves(reward[:3], done[:3])
    halves(reward[3:], done[3:])
    torch.testing.assert_close(whole.m2, halves.m2, rtol=1e-12, atol=0)
    assert torch.equal(whole.running, halves.running)
