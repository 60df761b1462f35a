"""An action and its log-prob are the same bits in any company."""

import threading

import numpy as np
import pytest
import torch
from gymnasium import spaces

from gpuenvs.errors import ConfigError
from learners.host.horizon import Horizon
from learners.host.inference import NativeInference, TorchInference, make_inference, split, use_one_thread
from learners.networks import Policy
from learners.rollout import Rollout
from tests.learners.host.fake_pool import FakePool

ENVS, STEPS = 22, 3
CASES = {
    "native": (NativeInference, (64, 64), False, None),
    "native-box": (NativeInference, (32,), False, spaces.Box(-1, 1, (3,))),
    "native-relu": (NativeInference, (16, 48), False, None),
    "torch": (TorchInference, (37, 61), False, None),
    "images": (TorchInference, (24,), True, None),
}


@pytest.fixture(params=CASES)
def case(request):
    kind, hidden, image, space = CASES[request.param]
    pool = FakePool(ENVS, image=image, action_space=space)
    generator = np.random.default_rng(3)
    pool.obs[:] = generator.integers(0, 255, pool.obs.shape)
    pool.obs[:] = pool.obs if image else pool.obs / 100 - 1
    activation = "relu" if request.param == "native-relu" else "tanh"
    sizes = {"hidden_sizes": hidden, "activation": activation, "seed": 2}
    policy = Policy(pool.single_observation_space, pool.single_action_space, **sizes)
    policy.flat.add_(torch.randn(policy.flat.shape, generator=torch.Generator().manual_seed(1)), alpha=0.1)
    inference = make_inference(pool, policy)
    assert type(inference) is kind
    return pool, policy, inference


def acted(case, calls, scratch=None):
    """(actions, log-probs) of step 1 after acting for each group of rows in turn."""
    pool, policy, inference = case
    rollout = Rollout(STEPS, ENVS, pool.single_observation_space, pool.single_action_space)
    noise = torch.randn((STEPS, ENVS, *policy.noise_shape), generator=torch.Generator().manual_seed(7))
    weights = inference.load(policy)
    horizon = Horizon(rollout, noise, lambda: (weights, 0))
    scratch = inference.scratch() if scratch is None else scratch
    for rows in calls:
        rows = np.array(rows)
        for _, part in split(rows, rows // (inference.group or ENVS)):
            inference.act(scratch, weights, horizon, part, np.ones(len(part), np.int64))
    assert torch.equal(rollout.action[1], torch.from_numpy(pool.action))
    assert torch.equal(rollout.obs[1], torch.from_numpy(pool.obs))
    return rollout.action[1].clone(), rollout.log_prob[1].clone()


def test_company_order_and_what_a_thread_did_before_do_not_matter(case):
    together = acted(case, [range(ENVS)])
    used = case[2].scratch()
    for buffer in (used,) if isinstance(used, np.ndarray) else (used.obs_array, used.noise_array):
        buffer[...] = 77
    shuffled = np.random.default_rng(0).permutation(ENVS)
    for calls in ([[i] for i in range(ENVS)], [shuffled[:9], shuffled[9:]], [range(0, ENVS, 2), range(1, ENVS, 2)]):
        for scratch in (None, used):
            found = acted(case, calls, scratch)
            assert torch.equal(found[0], together[0]) and torch.equal(found[1], together[1])


def test_a_library_sees_batches_of_one_shape_with_every_env_in_its_place(monkeypatch):
    """Where a library's rounding depends on neither, the bits would not show it."""
    pool = FakePool(ENVS)
    pool.obs[:, 0] = np.arange(ENVS)
    policy = Policy(pool.single_observation_space, pool.single_action_space, hidden_sizes=(9,))
    inference, sample, seen = make_inference(pool, policy), policy.sample, []

    def watched(obs, noise):
        seen.append((obs[:, 0].clone(), obs.shape, noise.shape))
        return sample(obs, noise)

    monkeypatch.setattr(policy, "sample", watched)
    acted((pool, policy, inference), [[5], [5, 3, 17], range(ENVS)])
    assert inference.group == 16
    assert {(obs, noise) for _, obs, noise in seen} == {((16, 4), (16, 3))}
    for (values, *_), rows in zip(seen, ([5], [3, 5], [17], range(16), range(16, ENVS)), strict=True):
        assert [values[row % 16] for row in rows] == list(rows)


def test_it_is_what_the_policy_does(case):
    pool, policy, _ = case
    action, log_prob = acted(case, [range(ENVS)])
    noise = torch.randn((STEPS, ENVS, *policy.noise_shape), generator=torch.Generator().manual_seed(7))[1]
    expected, likely = policy.sample(torch.from_numpy(pool.obs), noise)
    torch.testing.assert_close(action, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(log_prob, likely, rtol=1e-5, atol=1e-5)
    assert len(action.unique()) > 2


def test_weights_that_were_loaded_natively_do_not_follow_the_policy():
    pool = FakePool(2)
    policy = Policy(pool.single_observation_space, pool.single_action_space, hidden_sizes=(16,))
    inference = make_inference(pool, policy)
    loaded = inference.load(policy)
    before = loaded.weights.copy()
    policy.flat.zero_()
    np.testing.assert_array_equal(loaded.weights, before)


def test_a_thread_of_one_thread_leaves_the_others_alone():
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    found = []

    def work():
        found.append(torch.get_num_threads())
        use_one_thread()
        found.append(torch.get_num_threads())

    try:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert found == [3, 1] and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)


def test_a_policy_elsewhere_is_refused():
    pool = FakePool(2)
    policy = Policy(pool.single_observation_space, pool.single_action_space, device="meta")
    with pytest.raises(ConfigError, match="on the CPU to act with, and this one is on meta"):
        make_inference(pool, policy)


def test_rows_are_split_in_order():
    rows = np.array([7, 1, 4, 2])
    assert [(k, part.tolist()) for k, part in split(rows, rows // 3)] == [(0, [1, 2]), (1, [4]), (2, [7])]
    assert [(k, part.tolist()) for k, part in split(rows, rows * 0 + 5)] == [(5, [7, 1, 4, 2])]
    assert list(split(rows[:0], rows[:0])) == []
