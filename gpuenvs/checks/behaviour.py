"""Checks of what an environment does: observations, extreme actions, resets, episodes, repetition, speed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gpuenvs.checks.plain import Birth, PlainRow, first_nonfinite
from gpuenvs.checks.report import FAIL, NOTE, OK, Finding
from gpuenvs.checks.subject import REAL, Rollout, Subject, shown
from gpuenvs.contract.faults import short
from gpuenvs.runtime.threads import allowed_cores
from gpuenvs.spec import INT, field_kinds

_ROUNDING = 1e-5  # of float32: cos may be 1.0000001
_RESETS = 4096
_SAME = 0.9999  # rank correlation of numbers made from one random number


def observations(subject: Subject) -> Iterator[Finding]:
    """Every observation of random and extreme rollouts lies inside the space."""
    name, spec = "observation space", subject.spec
    space = spec.observation_space
    seen = [subject.random, subject.extreme]
    low = np.minimum(seen[0].lowest, seen[1].lowest)
    high = np.maximum(seen[0].highest, seen[1].highest)
    bad = seen[0].bad_obs + seen[1].bad_obs
    slack = _ROUNDING * np.maximum(1.0, np.abs(np.where(np.isfinite(space.high), space.high, 1.0)))
    below, above = np.flatnonzero(low < space.low - slack), np.flatnonzero(high > space.high + slack)
    for wrong, value, end in ((below, low, "low"), (above, high, "high")):
        for k in wrong:
            found = f"value {k} reached {value[k]:.6g}, the space ends at {getattr(space, end)[k]:.6g}"
            yield Finding(name, FAIL, found, f"widen observation_space.{end}[{k}], or limit the value in observe")
    if bad:
        yield Finding(
            name, FAIL, f"{bad} values of observations were NaN or infinite", "look at observe's divisions and roots"
        )
    if not bad and not len(below) and not len(above):
        yield Finding(name, OK, f"all inside in {seen[0].steps + seen[1].steps:,} steps")


def extremes(subject: Subject) -> Iterator[Finding]:
    """No NaN or infinity, whatever the actions."""
    name, seen, problems = "extreme actions", subject.extreme, 0
    for rollout, what in ((subject.random, "random"), (seen, "extreme")):
        if rollout.bad_states:
            problems += 1
            yield Finding(
                name,
                FAIL,
                _bad_state(subject, rollout, what),
                "guard the division, root or sum that grows, or limit the state",
            )
        if rollout.bad_rewards:
            problems += 1
            found = f"{rollout.bad_rewards} rewards were NaN or infinite under {what} actions"
            yield Finding(name, FAIL, found, "limit the terms of the reward")
    beyond = subject.beyond
    if not problems and beyond is not None and (beyond.bad_states or beyond.bad_rewards):
        problems += 1
        found = f"actions far outside of their space give {_bad_state(subject, beyond, 'such')}"
        yield Finding(name, NOTE, found, "clip(action[k], low, high) in step: policies may ask for anything")
    if not problems:
        outside = ", nor outside of their space" if beyond is not None else ""
        yield Finding(name, OK, f"no NaN or infinity in {seen.steps:,} steps at the ends of the action space{outside}")


def _bad_state(subject: Subject, rollout: Rollout, what: str) -> str:
    """How many, the first one's step, and the line of the function that made it."""
    if rollout.worst is None:
        return f"{rollout.bad_rewards} rewards that are NaN or infinite"
    state, _, action = rollout.worst
    text = f"NaN or infinity in {rollout.bad_states} states under {what} actions"
    text = f"{text}; first after {shown(state)} with action {shown(action)}"
    birth = _birth(subject, rollout.worst)
    if birth is None:
        return text
    return f"{text}, in {birth.function} ({short(birth.filename)}, line {birth.line}): `{birth.source}`"


def _birth(subject: Subject, step: tuple[Any, Any, Any]) -> Birth | None:
    if subject.spec.traced:
        return None
    row, (state, params, action) = PlainRow(subject.spec, REAL), step
    given = row.numbers(type(state), state), action, row.numbers(type(params), params)
    try:
        return first_nonfinite(lambda: row.step(*given))
    except Exception:  # the check of plain Python reports it
        return None


def resets(subject: Subject) -> Iterator[Finding]:
    """Fresh states: finite, different where they should be, each random number used once."""
    name, spec = "reset distribution", subject.spec
    with subject.make(_RESETS) as env:
        obs, _ = env.reset(seed=subject.seed)
        first, obs = env.get_state(), obs.copy()
        env.reset()
        second = env.get_state()
        env.reset(seed=subject.seed + 1)
        other = env.get_state()
    fields = dict(zip(spec.state._fields, first, strict=True))  # type: ignore[attr-defined]
    broken = [field for field, values in fields.items() if not np.isfinite(values).all()]
    if broken:
        yield Finding(
            name, FAIL, f"reset gives NaN or infinity in {', '.join(broken)}", "check the arithmetic of reset"
        )
        return
    space = spec.observation_space
    outside = np.flatnonzero(((obs < space.low - _ROUNDING) | (obs > space.high + _ROUNDING)).any(axis=0))
    if len(outside):
        found = f"observation values {', '.join(map(str, outside))} lie outside of the space after reset"
        yield Finding(name, FAIL, found, "widen observation_space, or reset inside of it")
    drawn = [field for field, values in fields.items() if len(np.unique(values)) > 1]
    if not drawn:
        found = "every episode begins in the same state"
        yield Finding(name, NOTE, found, "draw something with uniform(rng, draw, low, high), unless that is meant")
        return
    for again, what in ((second, "the next episode"), (other, "another seed")):
        if all(np.array_equal(getattr(first, field), getattr(again, field)) for field in drawn):
            yield Finding(name, FAIL, f"{what} begins like the one before", "take the random numbers from rng")
    twins = [] if spec.traced else _twins({field: fields[field] for field in drawn if _is_real(spec, field)})
    for one, two in twins:
        found = f"{one} and {two} rise and fall together: they are made from the same random number"
        yield Finding(name, NOTE, found, "give each draw of uniform and normal its own number, unless that is meant")
    if not twins and not len(outside):
        fixed = [field for field in fields if field not in drawn]
        text = "; ".join(f"{field} {fields[field].min():.3g}..{fields[field].max():.3g}" for field in drawn[:6])
        more = f", {len(drawn) - 6} more" if len(drawn) > 6 else ""
        still = f"; {len(fixed)} of {len(fields)} fields always begin alike" if fixed else ""
        yield Finding(name, OK, f"{text}{more}{still}")


def _is_real(spec: Any, field: str) -> bool:
    return field_kinds(spec.state)[field] != INT


def _twins(fields: dict[str, np.ndarray]) -> list[tuple[str, str]]:
    """Pairs of fields whose ranks agree over all rows, or are opposite."""
    names = list(fields)
    if len(names) < 2:
        return []
    ranks = np.array([np.argsort(np.argsort(fields[name], kind="stable")) for name in names], np.float64)
    with np.errstate(invalid="ignore"):
        together = np.abs(np.corrcoef(ranks))
    return [(names[i], names[j]) for i in range(len(names)) for j in range(i) if together[i, j] > _SAME]


def determinism(subject: Subject) -> Iterator[Finding]:
    """The same seed and actions give the same bits: again, in part of the batch, with other threads."""
    name, rows, steps = "determinism", 64, 20
    rng = subject.rng(5)
    actions = [subject.random_actions(rng, rows) for _ in range(steps)]
    whole = _run(subject, rows, actions, threads=1)
    problems = []
    if not _equal(whole, _run(subject, rows, actions, threads=1)):
        problems.append(
            ("a second run with the same seed and actions differs", "functions must depend on their arguments alone")
        )
    part = _run(subject, 16, [a[16:32] for a in actions], threads=1, env_offset=16)
    if not _equal({k: v[..., 16:32] for k, v in whole.items()}, part):
        problems.append(("an environment behaves differently in a smaller batch", "no row may depend on another"))
    threads = min(2, allowed_cores())
    if threads > 1 and not _equal(whole, _run(subject, rows, actions, threads=threads)):
        problems.append(("results depend on the number of threads", "no row may depend on another"))
    for found, advice in problems:
        yield Finding(name, FAIL, found, advice)
    if not problems:
        yield Finding(
            name, OK, f"bit for bit again, as part of another batch, with {threads} thread{'s' if threads > 1 else ''}"
        )


def _run(subject: Subject, rows: int, actions: list[np.ndarray], **options: Any) -> dict[str, np.ndarray]:
    """Every output of every step; the last axis is the row."""
    record = []
    with subject.make(rows, **options) as env:
        env.reset(seed=subject.seed)
        for action in actions:
            env.step(action)
            record.append([*env.obs.T, env.reward, env.terminated, env.truncated, *env.get_state()])
    return {"all": np.array(record, np.float64)}


def _equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(one[name], other[name], equal_nan=True) for name in one)


def episodes(subject: Subject) -> Iterator[Finding]:
    """They end."""
    name, limit, seen = "episodes end", subject.spec.max_episode_steps, (subject.random, subject.extreme)
    terminated, truncated = sum(r.terminated for r in seen), sum(r.truncated for r in seen)
    lengths = np.array([length for rollout in seen for length in rollout.lengths])
    if limit is None and not terminated:
        longest = max(rollout.stepped for rollout in seen)
        found = f"none ended within {longest:,} steps, and there is no time limit"
        yield Finding(name, FAIL, found, "set max_episode_steps, or return terminated=True where an episode is over")
    elif len(lengths) and np.median(lengths) < 2:
        found = f"half of the {len(lengths):,} episodes end with their first step"
        yield Finding(name, FAIL, found, "check step's terminated against the states that reset makes")
    elif not terminated:
        found = f"by the time limit of {limit} steps alone (random and extreme actions)"
        yield Finding(name, OK, found)
    else:
        text = f"{terminated:,} terminated and {truncated:,} truncated, {np.median(lengths):.0f} steps in the median"
        yield Finding(name, OK, text if limit else f"{text}; no time limit")


def speed(subject: Subject) -> Iterator[Finding]:
    """Env-steps per second."""
    cores = allowed_cores()
    yield Finding("steps/s", OK, f"{subject.speed:,.0f} on {cores} CPU core{'s' if cores > 1 else ''}, {REAL}")
