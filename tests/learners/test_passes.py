"""Native values, log-probs and V-trace of whole horizons against PyTorch's."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from learners import functional as F
from learners.native.passes import FusedPasses
from learners.native.rollout import fused_vtrace
from learners.networks import Policy

DISCRETE, CONTINUOUS = spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("space", [DISCRETE, CONTINUOUS])
def test_they_are_those_of_the_policy(space, threads):
    policy = Policy(spaces.Box(-1, 1, (5,)), space, hidden_sizes=(32, 16), seed=3)
    passes = FusedPasses(policy, threads)
    generator = torch.Generator().manual_seed(0)
    for rows in (1, 37, 300):
        with torch.no_grad():
            policy.flat.add_(0.1 * torch.randn(policy.flat.shape, generator=generator))
        features = torch.randn((rows + 7, 5), generator=generator)
        action = torch.randn((rows, 2), generator=generator)
        if space is DISCRETE:
            action = torch.randint(3, (rows,), generator=generator)
        value, log_prob = passes(features, action)
        with torch.no_grad():
            torch.testing.assert_close(value, policy.value(features), rtol=1e-5, atol=1e-5)
            expected = policy.distribution(features[:rows]).log_prob(action)
            torch.testing.assert_close(log_prob, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_do_not_change_a_bit(threads):
    policy = Policy(spaces.Box(-1, 1, (5,)), DISCRETE, hidden_sizes=(32, 16), seed=3)
    features, action = torch.linspace(-1, 1, 500).view(100, 5), torch.arange(90) % 3
    once, again = FusedPasses(policy, 1)(features, action), FusedPasses(policy, threads)
    assert all(torch.equal(a, b) for _ in range(3) for a, b in zip(once, again(features, action)))


def test_native_vtrace_is_the_definition():
    generator = torch.Generator().manual_seed(1)
    steps, envs = 40, 7
    behaviour, log_prob, reward, final = (torch.randn((steps, envs), generator=generator) for _ in range(4))
    value = torch.randn((steps + 1, envs), generator=generator)
    terminated, truncated = (torch.rand((steps, envs), generator=generator) < 0.2 for _ in range(2))
    assert (terminated & truncated).any()
    expected = F.vtrace(
        behaviour, log_prob, reward, value[:-1], value[-1], terminated, truncated, final, 0.97, trace_lambda=0.8
    )
    found = torch.empty(steps, envs), torch.empty(steps, envs)
    arrays = (behaviour, log_prob, reward, value, terminated, truncated, final)
    fused_vtrace(*(tensor.numpy() for tensor in arrays), 0.97, 0.8, *(tensor.numpy() for tensor in found))
    for ours, theirs in zip(found, expected):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
