"""The native kernels against the PyTorch path, which is their definition."""

import dataclasses

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from llvmlite import ir
from numba import njit

import gpuenvs
from gpuenvs.errors import ConfigError
from learners import functional as F
from learners.collector import Collector
from learners.native import choose_engine, vector
from learners.native.elementary import exp, square_sum
from learners.native.network import ROWS, Plan
from learners.native.rollout import fused_gae
from learners.native.vector import LANES, make_dots, make_matmul, transpose
from learners.ppo import PPO, PPOConfig
from learners.rollout import Batch, Rollout

OBS = Box(-1, 1, (5,))
SPACES = {"discrete": Discrete(3), "continuous": Box(-2, 2, (2,))}


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# --- micro-kernels ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("init", ["zero", "row", "add"])
@pytest.mark.parametrize("epilogue", ["none", "tanh", "relu"])
@pytest.mark.parametrize(("rows", "depth", "columns"), [(1, 1, LANES), (7, 5, 3 * LANES), (8, 64, 64)])
def test_matmul_is_the_matrix_product(init, epilogue, rows, depth, columns):
    kernel = make_matmul(columns, init, epilogue)

    @njit
    def run(a, b, c, extra, rows, depth):
        kernel(a, depth, 1, b, columns, c, columns, extra, rows, depth)

    a, b, c, bias = (
        normal(rows, depth),
        normal(depth, columns, seed=1),
        normal(rows, columns, seed=2),
        normal(columns, seed=3),
    )
    start = {"zero": np.zeros_like(c), "row": np.broadcast_to(bias, c.shape), "add": c.copy()}[init]
    expected = a.astype(np.float64) @ b + start
    expected = {"none": expected, "tanh": np.tanh(expected), "relu": np.maximum(expected, 0)}[epilogue]
    run(a.ctypes.data, b.ctypes.data, c.ctypes.data, bias.ctypes.data, rows, depth)
    np.testing.assert_allclose(c, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kind", ["tanh", "relu"])
def test_matmul_of_a_transpose_times_the_slope_of_the_activation(kind):
    rows, depth, columns = 6, 9, 2 * LANES
    kernel = make_matmul(columns, "zero", f"{kind}_grad")

    @njit
    def run(a, b, c, output, rows, depth):
        kernel(a, 1, rows, b, columns, c, columns, output, rows, depth)  # A is stored (depth, rows)

    a, b, c, output = (
        normal(depth, rows),
        normal(depth, columns, seed=1),
        np.zeros((rows, columns), np.float32),
        normal(rows, columns),
    )
    run(a.ctypes.data, b.ctypes.data, c.ctypes.data, output.ctypes.data, rows, depth)
    slope = 1 - output**2 if kind == "tanh" else (output > 0)
    np.testing.assert_allclose(c, (a.T @ b) * slope, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_every_vector_width_computes_the_same_product(monkeypatch, lanes):
    """Widths other than this machine's: LLVM splits or pads them, so their code can run here too."""
    monkeypatch.setattr(vector, "LANES", lanes)
    monkeypatch.setattr(vector, "_VEC", ir.VectorType(ir.FloatType(), lanes))
    monkeypatch.setattr(vector, "_TILE_VECTORS", 2 if lanes == 8 else 4)
    columns, rows, depth = 48, 9, 32
    kernel, heads = make_matmul(columns, "row", "tanh"), make_dots(columns)

    @njit
    def run(a, b, c, bias, w, out):
        kernel(a, depth, 1, b, columns, c, columns, bias, rows, depth)
        heads(c, columns, w, bias, out, ROWS, rows, 2)
        transpose(b, a, depth, columns)

    a, b, bias, w = (
        normal(48, depth),
        normal(depth, columns, seed=1),
        normal(columns, seed=2),
        normal(2, columns, seed=3),
    )
    expected = np.tanh(a[:rows] @ b + bias)
    c, out = np.zeros((rows, columns), np.float32), np.zeros((2, ROWS), np.float32)
    run(*(x.ctypes.data for x in (a, b, c, bias, w, out)))
    np.testing.assert_allclose(c, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(out[:, :rows].T, expected @ w.T + bias[:2], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(a.reshape(columns, depth), b.T)


def test_dots_and_transpose():
    rows, depth, count = 11, 2 * LANES, 3
    kernel = make_dots(depth)

    @njit
    def run(x, w, bias, out):
        kernel(x, depth, w, bias, out, ROWS, rows, count)

    x, w, bias, out = (
        normal(rows, depth),
        normal(count, depth, seed=1),
        normal(count, seed=2),
        np.zeros((count, ROWS), np.float32),
    )
    run(x.ctypes.data, w.ctypes.data, bias.ctypes.data, out.ctypes.data)
    np.testing.assert_allclose(out[:, :rows].T, x @ w.T + bias, rtol=1e-5, atol=1e-5)

    @njit
    def turn(source, target):
        transpose(source, target, 2 * LANES, 3 * LANES)

    source, target = normal(2 * LANES, 3 * LANES), np.zeros((3 * LANES, 2 * LANES), np.float32)
    turn(source.ctypes.data, target.ctypes.data)
    np.testing.assert_array_equal(target, source.T)


def test_a_matmul_of_other_than_whole_vectors_is_refused():
    with pytest.raises(ValueError, match="multiple"):
        make_matmul(LANES + 1, "zero")
    with pytest.raises(ValueError, match="multiple"):
        make_dots(LANES + 1)


def test_tanh_and_exp_are_float32_exact_to_a_few_ulp():
    kernel = make_matmul(LANES, "row", "tanh")

    @njit
    def tanh(x, out, blocks):
        for k in range(blocks):  # an empty sum: out = tanh(x)
            kernel(0, 0, 0, 0, 0, out + 4 * LANES * k, LANES, x + 4 * LANES * k, 1, 0)

    @njit
    def exps(x, out):
        for k in range(x.size):
            out[k] = exp(x[k])

    x = np.concatenate([np.linspace(-20, 20, 4096), np.geomspace(1e-6, 20, 4096)]).astype(np.float32)
    out = np.zeros_like(x)
    tanh(x.ctypes.data, out.ctypes.data, x.size // LANES)
    np.testing.assert_allclose(out, np.tanh(x.astype(np.float64)), rtol=6e-7)
    assert np.abs(out).max() <= 1.0
    x = np.linspace(-86, 87, 20001).astype(np.float32)
    out = np.zeros_like(x)
    exps(x, out)
    np.testing.assert_allclose(out, np.exp(x.astype(np.float64)), rtol=3e-7)


def test_square_sum():
    x = normal(1003)
    assert square_sum(x) == pytest.approx((x.astype(np.float64) ** 2).sum(), rel=1e-6)


# --- the update ------------------------------------------------------------------------------------------------------


def make_pair(kind, **settings):
    """Two equal PPOs, one on each engine, and a batch whose behaviour policy was a little different."""
    config = PPOConfig(num_envs=20, num_steps=19, **settings)
    native = PPO(dataclasses.replace(config, engine="fused"), OBS, SPACES[kind], seed=3)
    torch_one = PPO(dataclasses.replace(config, engine="torch"), OBS, SPACES[kind], seed=3)
    rows = config.num_envs * config.num_steps
    noise = torch.Generator().manual_seed(1)

    def draw(*shape):
        return torch.randn(shape, generator=noise)

    features = draw(rows, 5)
    action = torch.randint(0, 3, (rows,), generator=noise) if kind == "discrete" else draw(rows, 2)
    with torch.no_grad():
        log_prob = native.policy.distribution(features).log_prob(action) + 0.2 * draw(rows)
        value = native.policy.value(features) + 0.3 * draw(rows)
    return native, torch_one, Batch(features, action, log_prob, value, draw(rows), draw(rows))


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
@pytest.mark.parametrize(
    "settings",
    [
        {"minibatches": 3, "ent_coef": 0.02},
        {"minibatches": 1, "clip_value": 0.2, "max_grad_norm": 0.0, "hidden_sizes": (32,)},
        {"minibatches": 7, "activation": "relu", "hidden_sizes": (48, 16, 32), "vf_coef": 0.7},
    ],
)
def test_fused_epochs_make_the_steps_of_the_pytorch_path(kind, settings):
    native, torch_one, batch = make_pair(kind, **settings)
    before = native.policy.flat.clone()
    expected = torch_one._epochs(batch, 1e-3, 0.2, 0.01)
    found = native._fused_epochs(batch, 1e-3, 0.2, 0.01)
    moved = (torch_one.policy.flat - before).abs().max().item()
    assert moved > 1e-3
    difference = (torch_one.policy.flat - native.policy.flat).abs().max().item()
    assert difference < 1e-3 * moved
    for ours, theirs in zip(
        (native.actor_optimizer, native.critic_optimizer),
        (torch_one.actor_optimizer, torch_one.critic_optimizer),
        strict=True,
    ):
        torch.testing.assert_close(ours.m, theirs.m, rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(ours.v, theirs.v, rtol=1e-3, atol=1e-8)
        assert ours.steps == theirs.steps
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert float(found[name]) == pytest.approx(float(value), rel=2e-3, abs=2e-5), name


def test_a_kl_stop_ends_the_actors_steps_and_not_the_critics():
    native, torch_one, batch = make_pair("discrete", minibatches=4, epochs=3, target_kl=0.02)
    expected = torch_one._epochs(batch, 3e-2, 0.2, 0.0)
    found = native._fused_epochs(batch, 3e-2, 0.2, 0.0)
    assert 0 < float(expected["actor_steps"]) < 12
    assert float(found["actor_steps"]) == float(expected["actor_steps"])
    assert float(native.critic_optimizer.steps) == 12
    torch.testing.assert_close(native.policy.flat, torch_one.policy.flat, rtol=1e-3, atol=1e-4)


def test_a_gradient_that_is_not_finite_is_skipped_and_counted():
    native, _, batch = make_pair("discrete", minibatches=1, epochs=2)
    batch.target[5] = torch.inf
    before = native.policy.critic_flat.clone()
    native._fused_epochs(batch, 1e-3, 0.2, 0.0)
    torch.testing.assert_close(native.policy.critic_flat, before, rtol=0, atol=0)
    assert float(native.critic_optimizer.skipped) == 2
    assert float(native.actor_optimizer.steps) == 2


def test_threads_do_not_change_a_bit(monkeypatch):
    flats = []
    for cores in (1, 2):
        monkeypatch.setattr("learners.ppo.allowed_cores", lambda cores=cores: cores)
        native, _, batch = make_pair("continuous", minibatches=5)
        for _ in range(3):  # the first call runs on one thread in any case
            native._fused_epochs(batch, 1e-3, 0.2, 0.0)
        flats.append(native.policy.flat.clone())
    assert torch.equal(*flats)


def test_packing_covers_every_weight_once():
    plan = Plan((5, 32, 16, 3), "tanh", log_std=True)
    assert sorted(plan.flat) == list(range(5 * 32 + 32 + 32 * 16 + 16 + 16 * 3 + 3 + 3))
    assert len(set(plan.packed)) == len(plan.packed)
    assert plan.packed.max() < plan.size


# --- the rollout -----------------------------------------------------------------------------------------------------


def collect(env_id, engine, num_envs=70, num_steps=40, norm_obs=True, **env_options):
    env = gpuenvs.make(env_id, num_envs, device="cpu", seed=5, max_episode_steps=13, **env_options)
    config = PPOConfig(num_envs=num_envs, num_steps=num_steps, norm_obs=norm_obs, engine=engine)
    algo = PPO(config, env.single_observation_space, env.single_action_space, seed=2)
    rollout = Rollout(num_steps, num_envs, env.single_observation_space, env.single_action_space)
    collector = Collector(env, seed=7, collector={"torch": "eager"}.get(engine, engine))
    collector.collect(algo.policy, rollout)
    if norm_obs:  # a second horizon, now with statistics that change something
        algo.policy.obs_norm.update(rollout.obs[:-1])
        collector.collect(algo.policy, rollout)
    return algo, rollout


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("norm_obs", [False, True])
def test_fused_rollout_is_the_collectors(env_id, norm_obs):
    algo, expected = collect(env_id, "torch", norm_obs=norm_obs)
    _, found = collect(env_id, "fused", norm_obs=norm_obs)
    assert found.has_value and not expected.has_value
    exact = {"rtol": 0, "atol": 0} if env_id == "CartPole-v1" else {"rtol": 1e-4, "atol": 1e-4}
    done = expected.done()
    assert done.any()
    for name in ("terminated", "truncated", "version"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    for name in ("obs", "action", "reward"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), **exact)
    for name in ("final_obs", "episode_return", "episode_length"):
        torch.testing.assert_close(getattr(found, name)[done], getattr(expected, name)[done], **exact)
    torch.testing.assert_close(found.log_prob, expected.log_prob, rtol=1e-5, atol=2e-5)
    policy = algo.policy
    with torch.no_grad():
        value = policy.value(policy.features(found.obs))
        final_value = policy.value(policy.features(found.final_obs))
    torch.testing.assert_close(found.value, value, rtol=1e-5, atol=1e-5)
    cut = found.truncated
    assert cut.any()
    torch.testing.assert_close(found.final_value[cut], final_value[cut], rtol=1e-5, atol=1e-5)


def test_the_first_ratio_of_a_fused_update_is_exactly_one_even_when_actions_are_clipped():
    env = gpuenvs.make("Pendulum-v1", 64, device="cpu", seed=0)
    config = PPOConfig(num_envs=64, num_steps=16, epochs=1, minibatches=1, log_std_init=2.0, engine="fused")
    algo = PPO(config, env.single_observation_space, env.single_action_space, seed=0)
    rollout = Rollout(16, 64, env.single_observation_space, env.single_action_space)
    Collector(env, seed=1, collector="fused").collect(algo.policy, rollout)
    assert (rollout.action.abs() > 2).float().mean() > 0.5
    metrics = algo.update(rollout)
    assert float(metrics["approx_kl"]) == 0.0
    assert float(metrics["clip_fraction"]) == 0.0


@pytest.mark.parametrize("threads", [1, 2])
def test_fused_rollout_does_not_depend_on_threads(threads):
    _, found = collect("CartPole-v1", "fused", num_envs=130, threads=threads)
    _, again = collect("CartPole-v1", "fused", num_envs=130, threads=1)
    assert torch.equal(found.obs, again.obs)
    assert torch.equal(found.log_prob, again.log_prob)


def test_a_nan_state_in_a_fused_rollout_is_counted():
    env = gpuenvs.make("CartPole-v1", 64, device="cpu", seed=0)
    config = PPOConfig(num_envs=64, num_steps=4, engine="fused")
    algo = PPO(config, env.single_observation_space, env.single_action_space, seed=0)
    env.reset(seed=0)
    env.set_state([np.array([np.nan])] * 4, rows=[3])
    collector = Collector(env, collector="fused")
    collector._started = True
    rollout = Rollout(4, 64, env.single_observation_space, env.single_action_space)
    collector.collect(algo.policy, rollout)
    assert env.nonfinite_states == 1
    assert rollout.terminated[0, 3]


def test_fused_gae_is_gae():
    reward, value, final = normal(9, 5), normal(10, 5, seed=1), normal(9, 5, seed=2)
    flags = np.random.default_rng(3).random((2, 9, 5)) < 0.3
    advantage = np.zeros_like(reward)
    fused_gae(reward, value, *flags, final, 0.97, 0.9, advantage)
    tensors = [torch.from_numpy(a) for a in (reward, value[:-1], value[-1], *flags, final)]
    torch.testing.assert_close(torch.from_numpy(advantage), F.gae(*tensors, 0.97, 0.9), rtol=1e-5, atol=1e-5)


def test_an_engine_that_cannot_be_is_refused_and_auto_falls_back_to_pytorch():
    with pytest.raises(ConfigError, match="engine=fused needs"):
        PPO(PPOConfig(hidden_sizes=(10,), engine="fused"), OBS, SPACES["discrete"])
    assert PPO(PPOConfig(hidden_sizes=(10,)), OBS, SPACES["discrete"]).engine == "torch"
    assert PPO(PPOConfig(), OBS, SPACES["discrete"]).engine == "fused"
    assert choose_engine("torch", True) == "torch"


def test_adam_lets_moments_that_shrink_for_ever_end_at_zero():
    """float32 numbers below 1.2e-38 are slow; a unit that has died leaves none behind, and a step stays what it was."""
    from learners.native.adam import make_adam

    adam = make_adam(0.9, 0.999)

    @njit
    def steps(count, weights, grad, m, v):
        for _ in range(count):
            adam(weights, grad, m, v, np.float32(1), np.float32(1e-3), np.float32(1), np.float32(1e-8))

    weights, grad, m, v = np.zeros((4, 64), np.float32)
    m[:], v[:] = 1e-3, 1e-6
    m[32:], grad[48:] = -1e-3, 1e-20
    expected, moment = 0.0, 1e-3
    for _ in range(3000):
        moment *= 0.9
        expected -= 1e-3 * moment / 1e-3
    steps(3000, weights, grad, m, v)
    assert (m == 0).all() and (v > 1e-8).all()
    assert weights[:32] == pytest.approx(expected, rel=0.02) and weights[32:] == pytest.approx(-expected, rel=0.02)
    steps(100_000, weights, grad, m, v)
    assert (v == 0).all()
