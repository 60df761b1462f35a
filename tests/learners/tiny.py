"""A run small enough for tests, and an environment that misbehaves on purpose."""

import gpuenvs
import learners.build
from gpuenvs.classic import cartpole
from gpuenvs.scalar import f32, njit
from learners import checkpoint
from learners.runs import RunDirectory

ITERATION = 8 * 16  # environment steps
SETTINGS = ("num_steps=16", "minibatches=2", "epochs=2", "hidden_sizes=8", "engine=torch")


def tiny_config(env_id="CartPole-v1", iterations=6, overrides=(), **options):
    """A config with 8 environments; one checkpoint per iteration unless told otherwise."""
    options = {"checkpoint_every": ITERATION, "device": "cpu", **options}
    return learners.build.resolve(
        env_id,
        overrides=(*SETTINGS, *overrides),
        num_envs=8,
        total_steps=iterations * ITERATION,
        **options,
    )


def weights(run: RunDirectory):
    """SHA-256 of every array of the algorithm (policy, optimisers, normalisers) in the latest checkpoint."""
    state = checkpoint.load(run.find_checkpoint())
    return checkpoint.weights_hash(arrays(state["schedule"]["algo"], "algo"))


def arrays(tree, name):
    """(name, array) of every leaf of nested dicts that is one."""
    if isinstance(tree, dict):
        return [pair for key, value in tree.items() for pair in arrays(value, f"{name}.{key}")]
    return [(name, tree)] if hasattr(tree, "shape") else []


def stable_rows(run: RunDirectory):
    """metrics.csv without what the clock decides."""
    lines = [line.split(",") for line in run.metrics_file.read_text().splitlines()]
    keep = [index for index, name in enumerate(lines[0]) if name not in ("wall_s", "sps")]
    return [[line[index] for index in keep] for line in lines]


@njit
def _nan_step(state, action, params):
    new_state, reward, terminated = cartpole.step(state, action, params)
    tilted = state.theta > params.theta_threshold_radians * f32(0.5)
    zero = state.theta - state.theta
    return new_state, zero / zero if tilted else reward, terminated


def nan_reward_env():
    """CartPole whose reward is NaN once the pole leans far to the right; registered as NaNPole-v0."""
    if "NaNPole-v0" not in gpuenvs.ids():
        base = gpuenvs.get("CartPole-v1")
        gpuenvs.register(
            gpuenvs.EnvSpec(
                id="NaNPole-v0",
                state=base.state,
                params=base.params,
                reset=base.reset,
                step=_nan_step,
                observe=base.observe,
                observation_space=base.observation_space,
                action_space=base.action_space,
                max_episode_steps=500,
            )
        )
    return "NaNPole-v0"
