"""What mkdocs fills in while it builds the site: tables that the program or a result file already has.

A page says `<!-- measured:NAME -->` for a table of benchmarks/results (the names are those of benchmarks.publish), or
`<!-- table:NAME -->` for one of `TABLES` below. So nothing in the documentation is a copy that could grow old.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

_MARKER = re.compile(r"<!-- (measured|table):([\w-]+) -->")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for every page."""
    return filled(markdown)


def filled(markdown: str) -> str:
    """The page with every marker replaced by its table.

    Raises:
        KeyError: there is no such table.
    """
    return _MARKER.sub(lambda match: _measured(match[2]) if match[1] == "measured" else TABLES[match[2]](), markdown)


def _measured(name: str) -> str:
    from benchmarks import publish

    return publish.sections(publish.RESULTS)[name]


def _rows(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    from benchmarks.report import markdown

    return markdown(header, [[cell.replace("|", "\\|") for cell in row] for row in rows])


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def environments() -> str:
    """The built-in environments."""
    import gpuenvs
    from gpuenvs.registry import BUILTIN

    rows = []
    for env_id in BUILTIN:
        spec = gpuenvs.get(env_id)
        actions = (
            f"{_text(getattr(spec.action_space, 'n', spec.action_dim))} {'discrete' if spec.discrete else 'continuous'}"
        )
        about = spec.doc.strip().splitlines()[0].removeprefix(f"{env_id}:").strip()
        rows.append(
            [env_id, str(spec.obs_dim), actions, _text(spec.max_episode_steps), _text(spec.reward_threshold), about]
        )
    return _rows(("id", "observation", "actions", "time limit", "solved at", "about"), rows)


def settings() -> str:
    """What `--set` knows of each algorithm and schedule, with the value it has where no preset sets another."""
    from learners import compat

    parts = [f"## {name}\n\n" + _options(compat.algorithm(name).config_class) for name in compat.ALGORITHMS]
    parts += [f"## --schedule {name}\n\n" + _options(compat.schedule(name).config_class) for name in compat.SCHEDULES]
    return "\n".join(parts)


def _options(config: Any) -> str:
    from learners.config import options

    rows = [
        [f"`{option.name}`", _text(option.default), option.valid(), option.help] for option in options(config).values()
    ]
    return _rows(("setting", "default", "accepts", "meaning"), rows) if rows else "It has no settings of its own.\n"


def commands() -> str:
    """The help of every command."""
    import click

    from cli.app import COMMANDS, gpurl

    parts = []
    with click.Context(gpurl, info_name="gpurl", **gpurl.context_settings) as top:
        for name in COMMANDS:
            command = gpurl.get_command(top, name)
            assert command is not None
            parts.append(_help(command, top, name, 2))
            if isinstance(command, click.Group):
                with click.Context(command, top, name) as context:
                    parts += [_help(command.commands[sub], context, sub, 3) for sub in sorted(command.commands)]
    return "\n".join(parts)


def _help(command: Any, parent: Any, name: str, level: int) -> str:
    import click

    with click.Context(command, parent, name, terminal_width=96) as context:
        return f"{'#' * level} {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"


def errors() -> str:
    """The classes of errors that a user can cause."""
    from gpuenvs import errors as module

    base = module.GpurlError
    classes = [item for item in vars(module).values() if isinstance(item, type) and issubclass(item, base)]
    return _rows(
        ("class", "also a", "raised when"),
        [
            [
                f"`{item.__name__}`",
                ", ".join(f"`{other.__name__}`" for other in item.__bases__ if not issubclass(other, base)),
                " ".join((item.__doc__ or "").split()),
            ]
            for item in classes
            if item is not base
        ],
    )


def timelines() -> str:
    """What the recorded timelines come to."""
    import json

    from benchmarks import timelines

    document = json.loads(timelines.RESULTS.read_text())
    rows = [
        [
            f"`{name}`",
            f"{recorded['steps_per_second']:.0f}",
            f"{recorded['environments_busy']:.0%}",
            f"{recorded['learner_busy']:.0%}",
            f"{recorded['lag']:.2f}",
        ]
        for name, recorded in document["schedules"].items()
    ]
    header = ("schedule", "steps/s", "environments busy", "learner busy", "lag, mean of all rows")
    return _where(document["machine"]) + _rows(header, rows)


def first_page() -> str:
    """How long a fresh user waits."""
    import json

    from benchmarks import first_page

    document = json.loads(first_page.RESULTS.read_text())
    rows = [
        [what, f"{document[key]['wall']:.1f}", f"{document[key]['cpu']:.1f}"]
        for what, key in (
            (f"`gpurl {' '.join(first_page.CHECK)}`", "check"),
            (f"`gpurl {' '.join(first_page.TRAIN)}`", "train"),
            ("of this, compilation", "compilation"),
        )
    ]
    learned = f"Mean return of {document['episodes']} episodes afterwards: {document['mean_return']:.0f}.\n"
    return _where(document["machine"]) + _rows(("command", "seconds", "CPU seconds"), rows) + "\n" + learned


def _where(machine: dict[str, Any]) -> str:
    """The machine, and how busy it was before."""
    from benchmarks import publish

    return f"{publish.where(machine).rstrip()} Load average before: {machine['load']}.\n\n"


EXAMPLES = (
    "swing_up.py", "quadrotor.py", "robot/crawler.py", "robot/crawler.xml", "ring_road.py",
    "dlpack_torch.py", "dlpack_jax.py", "sb3_ppo.py",
)  # fmt: skip


def examples() -> str:
    """The files of examples/: the text at their top, and all of them to unfold."""
    import ast

    parts = []
    for name in EXAMPLES:
        source = (ROOT / "examples" / name).read_text()
        kind = Path(name).suffix[1:].replace("py", "python")
        about = (ast.get_docstring(ast.parse(source)) or "") if kind == "python" else ""
        title, _, rest = about.partition("\n")
        parts.append(f"## {name}\n\n{title}\n{rest}\n")
        code = f"```{kind}\n{source}```\n"
        parts.append(f'??? example "examples/{name}"\n\n' + "".join(f"    {line}\n" for line in code.splitlines()))
    return "\n".join(parts)


TABLES: dict[str, Callable[[], str]] = {
    "commands": commands,
    "environments": environments,
    "errors": errors,
    "examples": examples,
    "first_page": first_page,
    "settings": settings,
    "timelines": timelines,
}
