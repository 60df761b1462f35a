"""`gpurl envs`: the table of environments."""

from __future__ import annotations

import json
from typing import Any

import click


@click.command("envs")
@click.argument("envs", nargs=-1, metavar="[ENV]...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(envs: tuple[str, ...], as_json: bool) -> None:
    """List the environments with their sizes, time limits and thresholds; all built-in ones by default.

    ENV may also be an environment of your own: path/to/my_env.py:NAME or package.module:NAME.
    """
    from gpuenvs.errors import ModelError

    rows, missing = [], {}
    for env_id in envs or _ids():
        try:
            rows.append(_describe(env_id))
        except ModelError as error:  # without the mujoco package the others are still there
            missing.setdefault(str(error), []).append(env_id)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    from cli.tables import print_table

    header = ("environment", "obs", "actions", "time limit", "solved at", "about")
    shown = ("id", "obs_dim", "actions", "max_episode_steps", "reward_threshold", "about")
    print_table(header, [[_text(row[key]) for key in shown] for row in rows], right=(1, 3, 4))
    for reason, ids in missing.items():
        click.echo(f"{', '.join(ids)}: {reason}")


def _ids() -> list[str]:
    import gpuenvs

    return gpuenvs.ids()


def _describe(env_id: str) -> dict[str, Any]:
    import gpuenvs

    spec = gpuenvs.get(env_id)
    actions = f"{spec.action_space.n} discrete" if spec.discrete else f"{spec.action_dim} continuous"  # type: ignore[union-attr]
    about = (spec.doc.strip().splitlines() or [""])[0]
    return {
        "id": spec.id,
        "obs_dim": spec.obs_dim,
        "actions": actions,
        "max_episode_steps": spec.max_episode_steps,
        "reward_threshold": spec.reward_threshold,
        "params": spec.params._asdict(),
        "ranges": {name: str(value) for name, value in spec.ranges.items()},
        "metrics": list(spec.metrics),
        "about": about.removeprefix(f"{spec.id}:").strip(),
    }


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:g}" if isinstance(value, float) else str(value)
