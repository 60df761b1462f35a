"""The ring of transitions: what is in it, what can be drawn from it, and when."""

import threading

import numpy as np
import pytest
import torch
from gymnasium import spaces

from gpuenvs.errors import CheckpointError, ConfigError
from learners import checkpoint, draws
from learners.replay import Replay

OBS, BOX = spaces.Box(-np.inf, np.inf, (2,)), spaces.Box(-1, 1, (3,))
ENVS, HORIZON, STEPS = 3, 4, 20  # of the ring: 16 steps of capacity and a horizon to spare


def ring(spare=1, **options):
    return Replay(16 * ENVS, ENVS, OBS, BOX, HORIZON, spare=spare, **options)


def write(replay, end=lambda t, env: 0):
    """One horizon of records that say where they belong; `end` -> 0 going on, 1 terminated, 2 truncated.

    obs = (t, env), next_obs = (t + 1, env), env + 0.5 where an episode ended; action = t + env / 10; reward = 2^-(t % 8).
    """
    block = replay.begin()
    for k in range(block.num_steps):
        t = block.first + k
        for env in range(block.num_envs):
            kind = end(t, env)
            block.obs[k, env] = torch.tensor([t, env])
            block.next_obs[k, env] = torch.tensor([t + 1, env + 0.5 * (kind > 0)])
            block.action[k, env] = t + env / 10
            block.reward[k, env] = 2.0 ** -(t % 8)
            block.terminated[k, env], block.truncated[k, env] = kind == 1, kind == 2
    block.version.fill_(block.first)
    replay.commit(block)
    return block


def everything(replay):
    """Flat numbers of all rows that can be drawn, oldest first."""
    slots = torch.arange(replay.committed - replay.visible, replay.committed) % replay.steps
    return (slots[:, None] * replay.num_envs + torch.arange(replay.num_envs)).flatten()


def test_a_record_is_a_whole_transition_and_a_discrete_action_one_number():
    replay = ring()
    assert replay.data.shape == (STEPS, ENVS, 2 + 3 + 2 + 3) and replay.data.dtype is torch.float32
    assert [part.stop - part.start for part in replay.columns.values()] == [2, 3, 2, 1, 1, 1]
    assert replay.obs.shape == (STEPS, ENVS, 2) and replay.reward.shape == (STEPS, ENVS)
    replay.next_obs[3, 1] = 7
    assert replay.data[3, 1].tolist() == [0, 0, 0, 0, 0, 7, 7, 0, 0, 0]  # views, not copies
    assert Replay(10, 2, OBS, spaces.Discrete(5), 5).action.shape == (10, 2, 1)
    assert Replay.nbytes(16 * ENVS, ENVS, OBS, BOX, HORIZON) == replay.data.nbytes == STEPS * ENVS * 10 * 4


def test_capacity_is_kept_at_least_and_the_spare_horizons_come_on_top():
    replay = Replay(33, 4, OBS, BOX, 4, spare=3)  # 33 transitions are three horizons of 16
    assert replay.steps == (3 + 3) * 4
    for _ in range(20):
        replay.commit(replay.begin())
    assert replay.visible == 12 and replay.size == 48 and replay.committed == 80


def test_one_horizon_after_the_other_and_nothing_of_the_one_under_way():
    replay = ring()
    with pytest.raises(ValueError, match="cannot draw from 0"):
        replay.draw(0, 0, 4)
    block = write(replay)
    assert (block.first, replay.committed, replay.visible, replay.size) == (0, 4, 4, 12)
    other = replay.begin()
    other.data.fill_(float("nan"))
    assert replay.size == 12 and not replay.sample(replay.draw(0, 0, 500), 3, 0.9).next_obs.isnan().any()
    with pytest.raises(ValueError, match="step 0 is committed, but step 4 is next"):
        replay.commit(block)
    # Beginning again gives the same rows; what was written is still there.
    assert replay.begin().obs.data_ptr() == other.obs.data_ptr()


def test_rows_drawn_around_the_end_of_the_ring_are_the_newest_and_none_is_torn():
    replay = ring()
    for count in range(1, 14):
        write(replay)
        garbage = replay.begin()
        kept = garbage.data.clone()
        garbage.data.fill_(float("nan"))  # a horizon under way
        oldest = max(0, 4 * count - 16)
        batch = replay.sample(replay.draw(5, count, 1000), 1, 0.9)
        t = batch.obs[:, 0]
        assert sorted(set(t.tolist())) == list(range(oldest, 4 * count))
        assert torch.equal(batch.next_obs[:, 0], t + 1) and torch.equal(batch.next_obs[:, 1], batch.obs[:, 1])
        assert torch.allclose(batch.action, (t + batch.obs[:, 1] / 10)[:, None].expand(-1, 3))
        assert set(replay.version[(replay.draw(5, count, 99) // ENVS)].tolist()) <= set(range(oldest, 4 * count, 4))
        garbage.data.copy_(kept)


@pytest.mark.parametrize("horizons", [3, 5, 7])  # before, at and after the ring's end
def test_n_step_returns_stop_at_an_end_and_at_the_newest_row(horizons):
    """Against a loop over each row's own future."""
    gamma, n_step = 0.5, 4
    kinds = {
        (t, env): (0, 0, 0, 1, 0, 2)[(5 * t + 2 * env + t // 6) % 6] for t in range(4 * horizons) for env in range(3)
    }
    replay = ring()
    for _ in range(horizons):
        write(replay, lambda t, env: kinds[t, env])
    batch = replay.sample(everything(replay), n_step, gamma)
    seen = set()
    for row in range(len(batch.reward)):
        t, env = (int(value) for value in batch.obs[row])
        reward, k = 0.0, 0
        while True:
            reward += gamma**k * 2.0 ** -((t + k) % 8)
            kind = kinds[t + k, env]
            k += 1
            if kind or k == n_step or t + k == replay.committed:
                break
        seen.add((kind, k))
        assert batch.reward[row] == reward
        assert batch.next_obs[row].tolist() == [t + k, env + 0.5 * (kind > 0)]
        assert batch.discount[row] == (0 if kind == 1 else gamma**k)
    assert len(seen) > 6 and {kind for kind, _ in seen} == {0, 1, 2}


def test_timeouts_bootstrap_and_terminals_do_not():
    replay = ring()
    write(replay, lambda t, env: env)  # environment 1 terminates in every step, 2 is truncated
    batch = replay.sample(everything(replay), 1, 0.9)
    assert batch.discount.view(-1, ENVS).unique(dim=0).flatten().tolist() == pytest.approx([0.9, 0, 0.9])
    assert (batch.next_obs[:, 1].view(-1, ENVS) == torch.tensor([0, 1.5, 2.5])).all()


def test_a_row_drawn_before_a_commit_can_be_read_as_of_then():
    replay = ring()
    write(replay)
    then, rows = replay.committed, everything(replay)
    before = replay.sample(rows, 3, 0.9)
    write(replay)
    assert all(map(torch.equal, replay.sample(rows, 3, 0.9, then), before))
    assert not torch.equal(replay.sample(rows, 3, 0.9).next_obs, before.next_obs)
    assert torch.equal(replay.draw(1, 1, 50, then), draws.indices(4, 16, ENVS, STEPS, 1, 1, 50))


def test_whole_parts_enter_by_dlpack():
    replay = ring()
    block = replay.begin()
    obs = np.arange(24, dtype=np.float64).reshape(4, 3, 2)
    block.fill(obs=obs, next_obs=torch.ones(4, 3, 2), reward=np.ones((4, 3), np.float32), terminated=np.eye(4, 3) > 0)
    assert (replay.obs[:4].numpy() == obs).all() and (replay.next_obs[:4] == 1).all()
    assert replay.terminated[:4].sum() == 3 and (block.done().numpy() == (np.eye(4, 3) > 0)).all()
    assert torch.from_dlpack(replay.obs).data_ptr() == replay.obs.data_ptr()
    with pytest.raises(RuntimeError):
        block.fill(obs=np.zeros((4, 3, 5)))


def test_a_checkpoint_holds_what_can_be_drawn_and_resumes_in_place(tmp_path):
    for horizons in (0, 2, 5, 8):
        replay = ring()
        for _ in range(horizons):
            write(replay, lambda t, env: (t + env) % 3)
        replay.begin().data.fill_(float("nan"))  # not part of it
        state = replay.state_dict()
        assert state["data"].shape[0] == min(4 * horizons, 16) and not state["data"].isnan().any()
        checkpoint.save(tmp_path / "a.safetensors", state, step=1)
        other = ring()
        other.load_state_dict(checkpoint.load(tmp_path / "a.safetensors"))
        assert (other.committed, other.visible) == (replay.committed, replay.visible)
        rows = everything(replay)
        assert torch.equal(other.version[rows // ENVS], replay.version[rows // ENVS])
        for goes_on in range(3):
            if horizons + goes_on:
                batches = [each.sample(each.draw(3, goes_on, 200), 3, 0.9) for each in (replay, other)]
                assert all(map(torch.equal, *batches))
            write(replay), write(other)
    state["data"][0] = -1  # a copy: the ring does not follow
    assert not (replay.data == -1).all(-1).any()


def test_a_replay_of_another_size_is_refused_and_stays_as_it_is():
    replay = ring()
    for _ in range(6):
        write(replay)
    other = Replay(8 * ENVS, ENVS, OBS, BOX, HORIZON)
    with pytest.raises(CheckpointError, match="resume with the num_envs, num_steps and buffer_size"):
        other.load_state_dict(replay.state_dict())
    assert other.committed == 0


def test_images_and_empty_sizes_are_refused_in_one_line():
    with pytest.raises(ConfigError, match="a replay holds vectors"):
        Replay(10, 1, spaces.Box(0, 255, (3, 8, 8), np.uint8), BOX, 1)
    with pytest.raises(ConfigError, match="a replay needs a capacity"):
        Replay(0, 1, OBS, BOX, 1)


def test_a_reader_never_sees_a_torn_row_while_a_writer_goes_on():
    """The schedule's rule: the writer stays within `spare` horizons of what the reader drew from."""
    replay = Replay(64 * 8, 8, spaces.Box(-1, 1, (64,)), BOX, 8, spare=2)
    turn, stop, failures, reading = threading.Condition(), threading.Event(), [], [0]

    def begin_and_fill():
        block = replay.begin()
        block.data[:, :, :32].fill_(float("nan"))
        block.data.fill_(block.first)
        return block

    def writer():
        for _ in range(400):
            with turn:
                turn.wait_for(lambda: replay.committed - reading[0] < 2 * 8 or stop.is_set())
            if stop.is_set():
                return
            replay.commit(begin_and_fill())
        stop.set()

    replay.commit(begin_and_fill())
    thread = threading.Thread(target=writer)
    thread.start()
    updates = 0
    while not stop.is_set():
        with turn:
            reading[0] = then = replay.committed
            turn.notify()
        batch = replay.sample(replay.draw(0, updates, 256, then), 1, 0.9, then)
        rows = torch.cat([batch.obs, batch.action, batch.next_obs], 1)
        if not (rows == rows[:, :1]).all() or rows.max() >= then or rows.min() < then - 72:
            failures.append(rows)
            stop.set()
        updates += 1
    with turn:
        turn.notify()
    thread.join(timeout=20)
    assert not failures and updates > 50 and replay.committed == 401 * 8
