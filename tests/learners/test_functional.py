"""The pure functions against numbers computed by hand."""

import math

import pytest
import torch

from learners import functional as F


def column(*values):
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def flags(*values):
    return torch.tensor(values, dtype=torch.bool).unsqueeze(1)


def gae(terminated, truncated, final=(0, 0, 0), last=100.0):
    return F.gae(
        column(1, 1, 1),
        column(5, 5, 100),
        torch.tensor([last], dtype=torch.float64),
        flags(*terminated),
        flags(*truncated),
        column(*final),
        0.99,
        0.95,
    ).squeeze(1)


def test_gae_through_a_termination():
    # t=2: 1 + .99*100 - 100 = 0; t=1: 1 - 5 = -4; t=0: 1 + .99*5 - 5 + .99*.95*(-4) = -2.812
    assert gae((0, 1, 0), (0, 0, 0)).tolist() == pytest.approx([-2.812, -4.0, 0.0])


def test_gae_through_a_truncation():
    # t=1: 1 + .99*10 - 5 = 5.9; t=0: .95 + .9405*5.9 = 6.49895
    assert gae((0, 0, 0), (0, 1, 0), (0, 10, 0)).tolist() == pytest.approx([6.49895, 5.9, 0.0])


def test_gae_of_a_row_with_both_flags_does_not_bootstrap():
    assert gae((0, 1, 0), (0, 1, 0), (0, 10, 0)).tolist() == pytest.approx([-2.812, -4.0, 0.0])


def test_gae_reads_final_values_at_truncated_rows_only():
    nan = float("nan")
    assert gae((0, 1, 0), (0, 0, 0), (nan, nan, nan)).tolist() == pytest.approx([-2.812, -4.0, 0.0])
    assert gae((0, 0, 0), (0, 1, 0), (nan, 10, nan)).tolist() == pytest.approx([6.49895, 5.9, 0.0])


def test_gae_keeps_environments_apart():
    one = F.gae(
        column(1, 2), column(3, 4), torch.tensor([5.0]).double(), flags(0, 0), flags(0, 0), column(0, 0), 0.9, 0.8
    )
    wide = [torch.cat((column(9, 9), column(*v)), 1) for v in ((1, 2), (3, 4), (0, 0))]
    done = torch.tensor([[True, False], [True, False]])
    both = F.gae(
        wide[0],
        wide[1],
        torch.tensor([7.0, 5.0]).double(),
        done,
        torch.zeros_like(done),
        wide[2],
        0.9,
        0.8,
    )
    assert torch.equal(both[:, 1], one[:, 0])


def test_vtrace_on_policy_gives_the_returns_of_gae():
    reward, value = column(1, 1, 1, 2), column(5, 5, 100, 1)
    rest = (torch.tensor([3.0]).double(), flags(0, 1, 0, 0), flags(0, 0, 1, 0), column(0, 0, 10, 0))
    log_prob = column(-0.5, -1, -2, -3)
    target, advantage = F.vtrace(log_prob, log_prob, reward, value, *rest, 0.99, 0.95)
    gae = F.gae(reward, value, *rest, 0.99, 0.95)
    assert torch.allclose(target, gae + value) and torch.allclose(advantage, gae)
    # r + gamma * (0.95 v_{t+1} + 0.05 V_{t+1}) - V; row 1 terminated, row 2 was truncated with V(final_obs) = 10.
    expected = [1 + 0.99 * (0.95 * target[1].item() + 0.05 * 5) - 5, 1 - 5, 1 + 9.9 - 100, 2 + 0.99 * 3 - 1]
    assert advantage.squeeze(1).tolist() == pytest.approx(expected)


def test_vtrace_off_policy_by_hand():
    # Ratios 2 (clipped to 1) and 0.5; gamma 0.5; V = 1, 2; last V = 4.
    # delta_1 = .5 * (1 + .5*4 - 2) = .5; delta_0 = 1 * (3 + .5*2 - 1) = 3; vs_0 = 1 + 3 + .5*1*.5 = 4.25, vs_1 = 2.5
    target, advantage = F.vtrace(
        column(0, 0),
        column(math.log(2), math.log(0.5)),
        column(3, 1),
        column(1, 2),
        torch.tensor([4.0]).double(),
        flags(0, 0),
        flags(0, 0),
        column(0, 0),
        0.5,
    )
    assert target.squeeze(1).tolist() == pytest.approx([4.25, 2.5])
    assert advantage.squeeze(1).tolist() == pytest.approx([3 + 0.5 * 2.5 - 1, 0.5 * (1 + 0.5 * 4 - 2)])


def test_ppo_loss_clips_on_the_side_that_would_gain():
    old = torch.zeros(4)
    new = torch.tensor([1.5, 1.5, 0.5, 0.5]).log().requires_grad_()
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0])
    loss, ratio = F.ppo_policy_loss(new, old, advantage, 0.2)
    # min(1.5, 1.2) = 1.2; min(-1.5, -1.2) = -1.5; min(.5, .8) = .5; min(-.5, -.8) = -.8
    assert loss.item() == pytest.approx(-(1.2 - 1.5 + 0.5 - 0.8) / 4)
    (grad,) = torch.autograd.grad(loss, new)
    assert grad.tolist() == pytest.approx([0, 1.5 / 4, -0.5 / 4, 0])
    assert F.clip_fraction(ratio.detach(), 0.2).item() == 1.0


def test_policy_gradient_loss():
    assert F.policy_gradient_loss(torch.tensor([-1.0, -2.0]), torch.tensor([3.0, 1.0])).item() == pytest.approx(2.5)


def test_value_loss_with_and_without_clipping():
    value, target, old = torch.tensor([2.0, 1.0]), torch.tensor([3.0, 1.0]), torch.tensor([0.0, 1.0])
    assert F.value_loss(value, target, old).item() == pytest.approx(0.25)
    assert F.value_loss(value, target, old, 0.5).item() == pytest.approx(0.5 * 2.5**2 / 2)


def test_kl_estimate_is_exact_for_a_known_pair():
    log_prob, old = torch.tensor([math.log(0.5)]), torch.tensor([math.log(0.25)])
    assert F.approx_kl(log_prob, old).item() == pytest.approx((2 - 1) - math.log(2))
    assert F.approx_kl(old, old).item() == 0.0


def test_normalize_advantage():
    out = F.normalize_advantage(torch.tensor([1.0, 2.0, 3.0]))
    assert out.tolist() == pytest.approx([-math.sqrt(1.5), 0, math.sqrt(1.5)])


def test_explained_variance():
    target = torch.tensor([1.0, 2.0, 3.0])
    assert F.explained_variance(target, target).item() == 1.0
    assert F.explained_variance(torch.zeros(3), target).item() == 0.0
    assert math.isnan(F.explained_variance(target, torch.ones(3)).item())


def test_linear_schedule():
    assert F.linear_schedule(2.0, 0.5, 0.0) == 2.0
    assert F.linear_schedule(2.0, 0.5, 0.5) == 1.5
    assert F.linear_schedule(2.0, 0.5, 9.0) == 1.0
