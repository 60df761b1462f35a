"""Tasks: an MJCF model and a few scalar functions become an EnvSpec.

    from typing import NamedTuple
    from gpuenvs import mjlite, trace as T

    class Params(NamedTuple):
        target_speed: float = 1.0  # m/s
        noise: float = 0.01

    def reset(start, params):
        start.qpos["rootz"] = 1.3
        start.qvel[:] = [start.normal(0.0, params.noise) for _ in start.qvel]

    def observation(now, params):
        return [*now.qpos[1:], *now.qvel, now.xpos["torso"][2]]

    def reward(before, action, after, params):
        speed = (after.qpos["rootx"] - before.qpos["rootx"]) / after.dt
        return {"reward_speed": T.minimum(speed, params.target_speed), "reward_ctrl": -0.1 * sum(u * u for u in action)}

    def terminated(after, params):
        return after.qpos["rootz"] < 0.7

    SPEC = mjlite.task_spec("Mine-v0", "mine.xml", frame_skip=5, reset=reset, observation=observation, reward=reward,
                            terminated=terminated, params=Params(), max_episode_steps=1000)
    env = gpuenvs.make(SPEC, num_envs=4096)

The functions see one environment and are traced once into a program for all of them: they compute with `+ - * /`,
comparisons, `&`, `|` and the functions of `gpuenvs.trace`. Python's `if`, `and`, `or` and `not` on such a value are
refused: use `T.where`, `&`, `|`, `T.logical_not`. What a name can be is in `gpuenvs.mjlite.quantities`.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box

from gpuenvs.errors import SpecError
from gpuenvs.mjlite.model import Model, load
from gpuenvs.mjlite.pairs import candidate_pairs
from gpuenvs.mjlite.quantities import Key, Names, Quantities, Row, sort_key
from gpuenvs.mjlite.reading import from_data, initial_values, is_below, read
from gpuenvs.mjlite.start import Start
from gpuenvs.runtime import disk_cache
from gpuenvs.spec import EnvSpec, Reference

_NO_CONTACT_FORCES_YET = "cfrc_ext"  # after a reset MuJoCo has computed none, so it reads 0


class NoParams(NamedTuple):
    """Params of a task that has none."""


class Task:
    """The functions of an EnvSpec made from a task's. Arguments as `task_spec` has them.

    Args:
        physics: `control_step`, `reset_forward` and `rne_post_constraint`; default: `gpuenvs.mjlite.forward`.
        random: `uniform` and `normal`; default: `gpuenvs.trace.random`.

    Attributes:
        state: the State class: qpos, qvel, then whatever observations and `before` read of the last forward pass.
        metrics: names of the reward's terms and of what `info` returns.
        obs_dim: numbers in an observation.
        camera: fields of the renderer's free camera, see `gpuenvs.mjlite.render`.
    """

    def __init__(
        self,
        id: str,
        model: str | Path | Model,
        *,
        frame_skip: int,
        observation: Callable[..., Any],
        reward: Callable[..., Any],
        terminated: Callable[..., Any] | None = None,
        info: Callable[..., Any] | None = None,
        reset: Callable[..., Any] | None = None,
        params: Any = None,
        camera: dict[str, Any] | None = None,
        physics: Any = None,
        random: Any = None,
    ) -> None:
        if not isinstance(frame_skip, int) or isinstance(frame_skip, bool) or frame_skip < 1:
            raise SpecError(f"{id}: frame_skip must be a whole number of at least 1, got {frame_skip!r}")
        self.id, self.frame_skip = id, frame_skip
        self.model = model if isinstance(model, Model) else load(model)
        candidate_pairs(self.model)  # refuses pairs of shapes that have no collider
        self.params = NoParams() if params is None else params
        self.camera = dict(camera or {})
        self.physics, self.random = physics, random
        self.names = Names(self.model.mj, id)
        self._functions = {"observation": observation, "reward": reward}
        for name, function in (("terminated", terminated), ("info", info), ("reset", reset)):
            if function is not None:
                self._functions[name] = function
        self._check_functions()
        self._scan()

    def _check_functions(self) -> None:
        arity = {"observation": 2, "reward": 4, "terminated": 2, "info": 4, "reset": 2}
        what = {2: "(after, params)", 4: "(before, action, after, params)"}
        for name, function in self._functions.items():
            if not callable(function) or len(inspect.signature(function).parameters) != arity[name]:
                words = {"observation": "(now, params)", "reset": "(start, params)"}.get(name, what[arity[name]])
                raise SpecError(f"{self.id}: {name} must be a function of {words}, got {function!r}")

    # --- what the functions read ---------------------------------------------------------------------------------------

    def _scan(self) -> None:
        """Call the functions once with two environments' worth of plain numbers, to see what they read and return."""
        seen: dict[str, set[Key]] = {"now": set(), "before": set(), "after": set()}
        values = initial_values(self.model)

        def moment(name: str) -> Quantities:
            def read(key: Key) -> np.ndarray:
                seen[name].add(key)
                return np.full(2, values(key))

            return self._quantities(read)

        params = type(self.params)(*(np.full(2, float(value)) for value in self.params))
        action = tuple(np.full(2, 0.5) for _ in range(self.model.nu))
        with np.errstate(all="ignore"):
            self.obs_dim = len(self._observation(moment("now"), params))
            _, terms = self._reward(moment("before"), action, moment("after"), params)
            self._call("terminated", moment("after"), params)
            more = self._info(moment("before"), action, moment("after"), params)
        if self.obs_dim == 0:
            raise SpecError(f"{self.id}: observation returns nothing")
        self.metrics = (*terms, *more)
        if len(set(self.metrics)) < len(self.metrics):
            raise SpecError(f"{self.id}: reward and info share a name: {', '.join(set(terms) & set(more))}")
        self._make_state(seen["now"] | seen["before"], seen["after"])

    def _make_state(self, kept: set[Key], after: set[Key]) -> None:
        model = self.model
        coordinates = [Key("qpos", k, 0) for k in range(model.nq)] + [Key("qvel", k, 0) for k in range(model.nv)]
        watched = (kept | after).difference(coordinates)
        self._kept = tuple(sorted(kept.difference(coordinates), key=sort_key))
        # The kept ones come first, so that the State's are the head of what a step watches.
        self._watched = (*self._kept, *sorted(watched.difference(self._kept), key=sort_key))
        self._state_keys = (*coordinates, *self._kept)
        fields = [(self.names.label(key), float) for key in self._state_keys]
        self.state = NamedTuple("State", fields)  # type: ignore[misc]
        self.state.__doc__ = f"State of {self.id}."

    def _quantities(self, read: Callable[[Key], Any]) -> Quantities:
        step = self.model.timestep
        return Quantities(self.names, read, step, step * self.frame_skip, list(self.model.qpos0))

    def _moment(self, keys: Iterable[Key], values: Iterable[Any]) -> Quantities:
        return self._quantities(dict(zip(keys, values, strict=True)).__getitem__)

    def _call(self, name: str, *args: Any) -> Any:
        """The task's own function; what Python says of an `if` on a value becomes one line that tells what to do."""
        function = self._functions.get(name)
        if function is None:
            return None
        try:
            return function(*args)
        except (ValueError, TypeError) as error:
            text = str(error)
            if "truth value of an array" in text:
                raise SpecError(
                    f"{self.id}: {name} decides with `if`, `and`, `or` or `not` on a value of the simulation; "
                    "use gpuenvs.trace.where, `&`, `|` or logical_not"
                ) from error
            if "converted to Python scalars" in text or "does not support ufuncs" in text:
                raise SpecError(
                    f"{self.id}: {name} gives a value of the simulation to a function of plain numbers (math, numpy, float); "
                    "use the function of gpuenvs.trace"
                ) from error
            raise

    def _observation(self, now: Quantities, params: Any) -> tuple[Any, ...]:
        return tuple(_flat(self._call("observation", now, params)))

    def _reward(self, before: Quantities, action: Any, after: Quantities, params: Any) -> tuple[Any, dict[str, Any]]:
        """(total, terms): the function returns terms, whose sum is the total, or both."""
        out = self._call("reward", before, action, after, params)
        if isinstance(out, dict):
            return sum(out.values()), out
        if isinstance(out, tuple) and len(out) == 2 and isinstance(out[1], dict):
            return out
        raise SpecError(
            f"{self.id}: reward must return a dict of terms or (total, dict of terms), got {type(out).__name__}"
        )

    def _info(self, before: Quantities, action: Any, after: Quantities, params: Any) -> dict[str, Any]:
        return dict(self._call("info", before, action, after, params) or {})

    # --- the spec's functions ------------------------------------------------------------------------------------------

    def reset(self, rng: Any, params: Any) -> Any:
        """A new episode's State, with what a forward pass at rest controls leaves."""
        start = Start(self.names, self.model.qpos0, self.model.nv, self._random(), rng)
        self._call("reset", start, params)
        qpos, qvel = list(start.qpos), list(start.qvel)
        watch = [key for key in self._kept if key.field != _NO_CONTACT_FORCES_YET]
        found: dict[Key, Any] = {}
        if watch:
            values = self._physics().reset_forward(
                self.model, qpos, qvel, lambda d: [read(self.model, d, k) for k in watch]
            )
            found = dict(zip(watch, values, strict=True))
        return self.state(*qpos, *qvel, *(found.get(key, 0.0) for key in self._kept))

    def step(self, state: Any, action: Any, params: Any) -> tuple[Any, Any, Any, tuple[Any, ...]]:
        """(State, reward, terminated, metrics) after one control step of `frame_skip` simulation steps."""
        nq, nv = self.model.nq, self.model.nv
        qpos, qvel = list(state[:nq]), list(state[nq : nq + nv])
        before = self._moment(self._state_keys, state)
        qpos, qvel, watched = self._physics().control_step(
            self.model, qpos, qvel, list(action), self.frame_skip, self._watch
        )
        new = self.state(*qpos, *qvel, *watched[: len(self._kept)])
        after = self._moment(
            (*self._state_keys, *self._watched[len(self._kept) :]), (*new, *watched[len(self._kept) :])
        )
        reward, terms = self._reward(before, action, after, params)
        ended = self._call("terminated", after, params)
        more = self._info(before, action, after, params)
        return new, reward, False if ended is None else ended, (*terms.values(), *more.values())

    def observe(self, state: Any, params: Any) -> tuple[Any, ...]:
        """The observation's numbers."""
        return self._observation(self._moment(self._state_keys, state), params)

    def _watch(self, d: Any) -> list[Any]:
        if any(key.field == "cfrc_ext" for key in self._watched):
            self._physics().rne_post_constraint(self.model, d)
        return [read(self.model, d, key) for key in self._watched]

    def _physics(self) -> Any:
        if self.physics is not None:
            return self.physics
        from gpuenvs.mjlite import forward

        return forward

    def _random(self) -> Any:
        if self.random is not None:
            return self.random
        from gpuenvs.trace import random

        return random

    def key(self) -> bytes:
        """Digest of what the functions compute, for the cache of compiled kernels; empty where code cannot be followed."""
        try:
            code = disk_cache.fingerprint(tuple(self._functions.values()))
        except disk_cache.Unknown:
            return b""
        layout = (self.frame_skip, self.camera, self._state_keys, self._watched, tuple(self._functions))
        return hashlib.sha256(self.model.key() + repr((code, layout)).encode()).digest()

    # --- Gymnasium's own environment -------------------------------------------------------------------------------------

    def to_reference(self, env: Any, state: Any) -> None:
        """Put `state` into a Gymnasium MuJoCo environment, with the watched quantities in its mjData as well."""
        nq, nv = self.model.nq, self.model.nv
        values = np.array(state, np.float64)
        env.set_state(values[:nq], values[nq : nq + nv])
        for key, value in zip(self._kept, values[nq + nv :], strict=True):
            place = getattr(env.data, key.field)
            if key.field == "subtree_com":  # Gymnasium sums the bodies' own centres of mass, so they move along
                below = [b for b in range(self.model.nbody) if is_below(self.model, b, key.row)]
                env.data.xipos[below, key.component] += value - place[key.row, key.component]
            place[(key.row, key.component) if place.ndim == 2 else key.row] = value

    def from_reference(self, env: Any) -> Any:
        """The State that a Gymnasium MuJoCo environment is in, watched quantities as its mjData holds them."""
        return self.state(*(from_data(env.data, key) for key in self._state_keys))


def task_spec(
    id: str,
    model: str | Path | Model,
    *,
    frame_skip: int,
    observation: Callable[..., Any],
    reward: Callable[..., Any],
    terminated: Callable[..., Any] | None = None,
    info: Callable[..., Any] | None = None,
    reset: Callable[..., Any] | None = None,
    params: Any = None,
    max_episode_steps: int | None = None,
    reward_threshold: float | None = None,
    reference: str | None = None,
    configure: Callable[..., EnvSpec] | None = None,
    curriculum: Callable[..., Any] | None = None,
    camera: dict[str, Any] | None = None,
    doc: str = "",
) -> EnvSpec:
    """An EnvSpec of a MuJoCo model and scalar functions; see the module's example.

    Args:
        id: name with a version.
        model: path of an MJCF file, MJCF text, or what `gpuenvs.mjlite.load` returned.
        frame_skip: simulation steps per control step.
        observation: `(now, params)` -> numbers; rows in it are flattened.
        reward: `(before, action, after, params)` -> dict of terms, whose sum is the reward and which come out in `info`, or
            (reward, dict). `action` is a tuple of nu numbers, not clipped; the model's ctrlrange clips what the motors get.
        terminated: `(after, params)` -> condition; None: never.
        info: `(before, action, after, params)` -> dict of further numbers for `info`.
        reset: `(start, params)`; changes `start.qpos` and `start.qvel` (`gpuenvs.mjlite.start.Start`); None: the model's
            own start.
        params: instance of a NamedTuple class of floats: constants that `gpuenvs.make` can override, per env too. A
            `Range` among them is drawn per environment.
        max_episode_steps, reward_threshold, curriculum: as in EnvSpec.
        reference: id of Gymnasium's own version, a `gymnasium.envs.mujoco.MujocoEnv`.
        configure: makes this spec anew from options that are no params; `gpuenvs.make` passes them on.
        camera: where the renderer looks from: `trackbodyid`, `distance`, `lookat`, `azimuth`, `elevation`.
        doc: what `gpurl envs` shows.

    Raises:
        ModelError: the model does not compile or uses what is not supported.
        SpecError: a function has the wrong arguments, names what the model lacks, or decides with `if` on a value.
    """
    task = Task(
        id,
        model,
        frame_skip=frame_skip,
        observation=observation,
        reward=reward,
        terminated=terminated,
        info=info,
        reset=reset,
        params=params,
        camera=camera,
    )
    return spec_of(
        task,
        max_episode_steps=max_episode_steps,
        reward_threshold=reward_threshold,
        reference=None if reference is None else _reference(reference, task, configure),
        configure=configure,
        curriculum=curriculum,
        doc=doc,
    )


def _reference(id: str, task: Task, configure: Callable[..., EnvSpec] | None) -> Reference:
    """Gymnasium's environment; it takes the options of `configure` and the params that are not one end of a range."""
    options = () if configure is None else tuple(inspect.signature(configure).parameters)
    numbers = (name for name in task.params._fields if not name.endswith(("_low", "_high")))
    return Reference(id, task.to_reference, task.from_reference, (*options, *numbers))


def spec_of(task: Task, **fields: Any) -> EnvSpec:
    """The EnvSpec of a Task; `fields` are the EnvSpec's that the task does not know."""
    model = task.model
    limited = [bool(flag) for flag in model.actuator_ctrllimited]
    ranges = [r if flag else (-np.inf, np.inf) for r, flag in zip(model.actuator_ctrlrange, limited)]
    low, high = np.array(ranges, np.float32).reshape(-1, 2).T
    configure = fields.get("configure")
    return EnvSpec(
        id=task.id,
        state=task.state,
        params=task.params,
        reset=task.reset,
        step=task.step,
        observe=task.observe,
        observation_space=Box(-np.inf, np.inf, (task.obs_dim,), np.float64),
        action_space=Box(low, high, dtype=np.float32),
        metrics=task.metrics,
        traced=True,
        key=task.key(),
        options=() if configure is None else tuple(inspect.signature(configure).parameters),
        **fields,
    )


def task_of(spec: EnvSpec) -> Task | None:
    """The Task that `spec` was made of, None for an environment of another kind."""
    owner = getattr(spec.step, "__self__", None)
    return owner if isinstance(owner, Task) else None


def _flat(values: Any) -> Iterable[Any]:
    for value in values:
        if isinstance(value, Row | list | tuple):
            yield from _flat(value)
        else:
            yield value
