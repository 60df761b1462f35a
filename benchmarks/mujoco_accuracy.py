"""`python -m benchmarks.mujoco_accuracy`: one compiled simulation step against the C engine, for every MuJoCo task's model.

From each sampled state both make one `mj_step`; the largest and the median difference of the new velocities are reported

* in float64 against the C engine at full precision (tolerance 0; its Newton solver, also for the two Humanoids, whose own
  projected Gauss-Seidel at 50 iterations is up to 1e-4 off the minimum),
* in float64 against the C engine as the models set it (Newton for the Humanoids),
* in float32 against full precision, from states rounded to float32.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks import machine
from benchmarks.cases import MUJOCO_IDS
from benchmarks.mujoco_states import Sample, each_step, sample
from benchmarks.report import markdown

RESULTS = Path(__file__).resolve().parent / "results"
BOUND_EXACT, BOUND_DEFAULT, BOUND_SINGLE = 1e-11, 2e-6, 1e-3


def one_step_spec(model: Any) -> Any:
    """A traced environment whose step is one simulation step and nothing else: state (qpos, qvel), action = ctrl."""
    from typing import NamedTuple

    import gymnasium

    from gpuenvs.mjlite.forward import control_step
    from gpuenvs.spec import EnvSpec

    names = [f"qpos_{k}" for k in range(model.nq)] + [f"qvel_{k}" for k in range(model.nv)]
    state = NamedTuple("State", [(name, float) for name in names])  # type: ignore[misc]
    params = NamedTuple("Params", [])()  # type: ignore[misc]

    def reset(rng: Any, params: Any) -> Any:
        return state(*[0.0] * len(names))

    def step(s: Any, action: Any, params: Any) -> Any:
        qpos, qvel, _ = control_step(model, list(s[: model.nq]), list(s[model.nq :]), list(action), 1)
        return state(*qpos, *qvel), 0.0, False

    return EnvSpec(
        id="OneStep-v0", state=state, params=params, reset=reset, step=step, observe=lambda s, params: (s[0],), traced=True,
        observation_space=gymnasium.spaces.Box(-np.inf, np.inf, (1,)),
        action_space=gymnasium.spaces.Box(-np.inf, np.inf, (max(1, model.nu),)),
    )  # fmt: skip


def compiled_step(model: Any, states: Sample, dtype: str) -> np.ndarray:
    """qvel after one step of the compiled kernel, (n, nv)."""
    import gpuenvs

    n = len(states.qpos)
    with gpuenvs.make(one_step_spec(model), n, device="cpu", dtype=dtype, autoreset="disabled") as env:
        env.reset(seed=0)
        env.set_state([*states.qpos.T, *states.qvel.T])
        ctrl = states.ctrl if model.nu else np.zeros((n, 1))
        env.step(ctrl.astype(dtype))
        return np.stack(env.get_state()[model.nq :], axis=1).astype(np.float64)


def exact(mj: Any) -> None:
    """Let the C engine solve to rounding: Newton, tolerance 0."""
    mujoco: Any = importlib.import_module("mujoco")

    mj.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
    mj.opt.tolerance, mj.opt.ls_tolerance = 0.0, 1e-6
    mj.opt.iterations, mj.opt.ls_iterations = 200, 100


def measure(env_id: str, n: int, seed: int = 0) -> dict[str, Any]:
    """One row: errors and coverage."""
    import gymnasium

    mujoco: Any = importlib.import_module("mujoco")

    from gpuenvs.mjlite.model import from_mjmodel
    from gpuenvs.mjlite.quiet import mujoco_warnings_logged

    with mujoco_warnings_logged():
        mj = gymnasium.make(env_id).unwrapped.model  # type: ignore[attr-defined]
    states = sample(mj, n, seed)
    mj.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
    model = from_mjmodel(mj)
    double = compiled_step(model, states, "float64")
    single = compiled_step(model, states.rounded(), "float32")
    row: dict[str, Any] = {"env": env_id}
    _, default, _ = each_step(mj, states)
    row["default"] = _errors(double, default)
    exact(mj)
    _, qvel, coverage = each_step(mj, states)
    row["exact"] = _errors(double, qvel)
    _, rounded, _ = each_step(mj, states.rounded())
    row["float32"] = _errors(single, rounded)
    return row | {"coverage": coverage.row()}


def _errors(got: np.ndarray, expected: np.ndarray) -> dict[str, float]:
    worst = np.abs(got - expected).max(axis=1)
    return {"max": float(worst.max()), "median": float(np.median(worst)), "p99": float(np.quantile(worst, 0.99))}


def report(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    header = (
        "model", "states", "max, exact", "median, exact", "max, default", "median, default", "max, float32", "in contact",
        "contacts, most", "at a limit", "upside down", "fast",
    )  # fmt: skip
    lines = []
    for row in rows:
        seen = row["coverage"]
        errors = [row["exact"]["max"], row["exact"]["median"], row["default"]["max"], row["default"]["median"]]
        shares = [seen["in_contact"], seen["at_limit"], seen["upside_down"], seen["fast"]]
        numbers = [f"{x:.1e}" for x in (*errors, row["float32"]["max"])]
        contact, limit, over, fast = (f"{x:.0%}" for x in shares)
        lines.append(
            [row["env"], str(seen["states"]), *numbers, contact, str(seen["most_contacts"]), limit, over, fast]
        )
    return markdown(header, lines, right=tuple(range(1, len(header))))


@click.command()
@click.option("--states", default=4000, show_default=True, help="Per model.")
@click.option("--write", is_flag=True, help="Write the table to benchmarks/results.")
@click.argument("envs", nargs=-1)
def main(states: int, write: bool, envs: tuple[str, ...]) -> None:
    """One compiled simulation step against the C engine, model by model."""
    rows = []
    for env_id in envs or MUJOCO_IDS:
        rows.append(measure(env_id, states))
        click.echo(report(rows[-1:]).splitlines()[-1])
    text = "Largest difference of a velocity (m/s or rad/s) after one simulation step.\n\n" + report(rows)
    if write:
        (RESULTS / "mujoco_accuracy.json").write_text(
            json.dumps({"machine": machine.describe(), "rows": rows}, indent=1) + "\n"
        )
        (RESULTS / "mujoco_accuracy.md").write_text(text)
    click.echo(text)


if __name__ == "__main__":
    main()
