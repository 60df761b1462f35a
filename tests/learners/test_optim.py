"""Adam on a flat vector."""

import pytest
import torch

from learners.optim import FlatAdam


def test_agrees_with_torch():
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(50, generator=generator)
    ours, theirs = start.clone(), torch.nn.Parameter(start.clone())
    adam, reference = FlatAdam(ours, eps=1e-5), torch.optim.Adam([theirs], lr=0.01, eps=1e-5)
    for _ in range(20):
        grad = torch.randn(50, generator=generator) * 3
        theirs.grad = grad.clone()
        torch.nn.utils.clip_grad_norm_([theirs], 0.5)
        reference.step()
        norm = adam.step(grad, 0.01, 0.5)
        assert norm.item() == pytest.approx(grad.norm().item(), rel=1e-6)
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-6, atol=1e-6)


def test_an_inactive_step_changes_nothing():
    param = torch.ones(4)
    adam = FlatAdam(param)
    adam.step(torch.ones(4), 0.1)
    before = {name: value.clone() for name, value in adam.state_dict().items()} | {"param": param.clone()}
    adam.step(torch.full((4,), 7.0), 0.1, 0.5, torch.tensor(False))
    after = adam.state_dict() | {"param": param}
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_is_skipped_and_counted(bad):
    param = torch.ones(4)
    adam = FlatAdam(param)
    adam.step(torch.tensor([1.0, bad, 1.0, 1.0]), 0.1, 0.5)
    assert torch.equal(param, torch.ones(4)) and not adam.m.any() and not adam.v.any()
    assert adam.skipped.item() == 1 and adam.steps.item() == 0
    adam.step(torch.ones(4), 0.1)
    assert torch.isfinite(param).all() and adam.steps.item() == 1


def test_state_round_trip():
    param, other = torch.ones(4), torch.ones(4)
    adam, twin = FlatAdam(param), FlatAdam(other)
    adam.step(torch.arange(4.0), 0.1)
    other.copy_(param)
    twin.load_state_dict(adam.state_dict())
    adam.step(torch.ones(4), 0.1)
    twin.step(torch.ones(4), 0.1)
    assert torch.equal(param, other)
