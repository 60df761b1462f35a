"""What a chunk holds and what transfers promise; `tests/protocol` proves their order."""

import pytest
import torch
from gymnasium import spaces

import gpuenvs
from learners.a2c import A2C, A2CConfig
from learners.networks import Policy
from learners.rollout import ALIGNMENT, Rollout
from learners.transfer import SLOTS, Alias, make_transfer
from tests.protocol.runs import loop, parts, recorder

OBS = spaces.Box(-1, 1, (3,))
SPACES = {"discrete": spaces.Discrete(4), "continuous": spaces.Box(-1, 1, (2,))}
READ = ("obs", "final_obs", "action", "log_prob", "reward", "terminated", "truncated", "version")
VALUES = ("value", "final_value")
PEOPLE = ("episode_return", "episode_length")


def fill(rollout):
    for k, field in enumerate(rollout.fields.values()):
        tensor = getattr(rollout, field.name)
        tensor.copy_(
            (torch.arange(tensor.numel()).view(tensor.shape) + k) % 2 if tensor.dtype is torch.bool else tensor + k + 1
        )


@pytest.mark.parametrize("kind", SPACES)
def test_every_tensor_has_bytes_of_its_own_in_the_chunk(kind):
    rollout = Rollout(5, 7, OBS, SPACES[kind])
    first, end = rollout.chunk.data_ptr(), 0
    for field in rollout.fields.values():
        tensor = getattr(rollout, field.name)
        assert tensor.data_ptr() - first == field.offset >= end
        assert field.offset % ALIGNMENT == 0 and tensor.nbytes == field.nbytes
        end = field.offset + field.nbytes
    assert end == rollout.chunk.nbytes == Rollout.size(5, 7, OBS, SPACES[kind])
    assert {*rollout.fields} == {*READ, *VALUES, *PEOPLE}


@pytest.mark.parametrize("has_value", [False, True])
@pytest.mark.parametrize("kind", SPACES)
def test_the_learners_bytes_are_all_that_it_reads_and_no_more(kind, has_value):
    source, target = (Rollout(5, 7, OBS, SPACES[kind]) for _ in range(2))
    source.has_value = has_value
    fill(source)
    target.chunk[: source.learner_bytes] = source.chunk[: source.learner_bytes]
    for name in source.fields:
        wanted = name in READ or (has_value and name in VALUES)
        assert torch.equal(getattr(target, name), getattr(source, name)) is wanted, name


def test_features_lie_together_as_in_the_environments():
    rollout = Rollout(5, 7, OBS, SPACES["discrete"])
    assert rollout.obs.shape == (6, 7, 3) and rollout.obs.stride() == (21, 1, 7)
    assert rollout.final_obs.shape == (5, 7, 3) and rollout.final_obs.stride() == (21, 1, 7)


def test_on_one_device_nothing_is_copied():
    config = A2CConfig(num_envs=4, num_steps=3, hidden_sizes=(8,))
    env = gpuenvs.make("CartPole-v1", 4, device="cpu")
    algo = A2C(config, env.single_observation_space, env.single_action_space)
    transfer = make_transfer("alias", None, env, algo, config)
    assert isinstance(transfer, Alias)
    assert transfer.policy is algo.policy
    assert transfer.begin() is transfer.receive() is transfer.begin()
    with transfer.statistics() as rollout:
        assert rollout is transfer.begin()
    assert transfer.metrics() == {"transfer_bytes_per_step": 0.0}


def test_a_policy_on_another_device_acts_alike_and_has_its_own_memory():
    policy = Policy(OBS, SPACES["continuous"], seed=3)
    assert policy.obs_norm is not None
    policy.obs_norm.update(torch.randn(50, 3, generator=torch.Generator().manual_seed(0)))
    other = policy.copy_on("cpu")
    obs, noise = torch.ones(6, 3), torch.full((6, 2), 0.5)
    assert torch.equal(other.act(obs, noise), policy.act(obs, noise))
    before = policy.flat.clone()
    with torch.no_grad():
        other.flat.zero_()
        assert all((parameter == 0).all() for parameter in other.parameters())
    assert torch.equal(policy.flat, before)
    for target, source in zip(other.acting_tensors(), policy.acting_tensors(), strict=True):
        assert target.is_contiguous() and source.is_contiguous()
        target.copy_(source)
    assert torch.equal(other.act(obs, noise), policy.act(obs, noise))


@pytest.mark.parametrize("case", ["peer", "staged", "remote", "pinned"])
def test_chunks_are_used_in_turn_and_arrive_as_they_were_sent(case):
    with recorder(case) as machine:
        _, _, _, transfer = parts(machine, case)
        sent = []
        for k in range(SLOTS):
            rollout = transfer.begin()
            rollout.has_value = k == 1
            with transfer.collecting():
                rollout.reward.fill_(k + 1.0)
            transfer.send()
            sent.append(rollout)
        assert len({rollout.chunk.data_ptr() for rollout in sent}) == SLOTS
        for k in range(SLOTS):
            rollout = transfer.receive()
            assert str(rollout.reward.device) == ("cuda:0" if case == "pinned" else "cuda:1")
            assert rollout.has_value is (k == 1)
            with transfer.learning():
                assert rollout.reward.tolist() == [[k + 1.0] * 6] * 4
            transfer.release()
        assert transfer.begin() is sent[0]


@pytest.mark.parametrize("case", ["peer", "staged", "remote", "pinned"])
def test_the_collector_sees_published_weights_from_the_next_begin_on(case):
    def actor(transfer):
        return transfer.policy.flat.cpu().clone()

    with recorder(case) as machine:
        _, algo, _, transfer = parts(machine, case)
        before = actor(transfer)
        algo.policy.flat.add_(1.0)
        transfer.begin()
        assert torch.equal(actor(transfer), before)
        transfer.publish()
        transfer.begin()
        assert torch.equal(actor(transfer), before + 1.0)
        assert algo.policy.obs_norm is not None
        algo.policy.obs_norm.shift.add_(2.0)
        transfer.reset()
        transfer.begin()
        assert (transfer.policy.obs_norm.shift == 2.0).all()


def test_learning_one_horizon_late_learns_something_else():
    """The harness of the protocol tests really does what its lag says."""
    weights = []
    for lag in (0, 1):
        with recorder("peer") as machine:
            weights.append(loop(machine, "peer", iterations=3, lag=lag).policy.flat)
    assert not torch.equal(*weights)
