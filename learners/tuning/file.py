"""tuning.json: what was measured and decided, and how a run takes the decisions over."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gpuenvs.errors import ConfigError, RunError
from learners.atomic import write_atomic
from learners.compat import algorithm
from learners.compat import schedule as schedule_class
from learners.config import make_config
from learners.runs import make_folder

FORMAT = 1
NAME = "tuning.json"  # in a run's folder
# Every key there is, and what it holds.
KEYS = {
    "format": int,
    "env": str,
    "algo": str,
    "schedule": str,
    "seed": int,
    "budget_seconds": (int, float),
    "seconds": (int, float),
    "versions": dict,
    "machine": dict,
    "fixed": list,
    "default": dict,
    "sampling": list,
    "updates": list,
    "training": list,
    "splits": list,
    "skipped": list,
    "candidates": list,
    "trials": list,
    "decision": dict,
}
DECISION = {
    "chosen": str, "why": str, "goal": (int, float, type(None)), "settings": dict, "schedule_settings": dict,
    "placement": dict,
}  # fmt: skip
PLACEMENT = ("placement", "env_device", "device", "transfer")


def save(path: Path, document: Mapping[str, Any]) -> None:
    """Write it whole. Raises `RunError` when the file system refuses."""
    make_folder(path.parent)
    write_atomic(path, (json.dumps(document, indent=2) + "\n").encode())


def read(path: Path) -> dict[str, Any]:
    """The document in a file, every decision in it checked.

    Raises:
        RunError: there is no such file, or it is not one of these; one line that names the first thing wrong.
    """
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise RunError(f"{path} is damaged (not JSON); tune again") from error
    if not isinstance(document, dict) or "decision" not in document:
        raise RunError(f"{path} is not a file of gpurl tune")
    if document.get("format") != FORMAT:
        raise RunError(f"{path} has format {document.get('format')}; this gpurl reads {FORMAT}; tune again")
    problem = _wrong(document, KEYS) or _wrong(document["decision"], DECISION, "decision.")
    if not problem:
        problem = _wrong(document["decision"]["placement"], dict.fromkeys(PLACEMENT, str), "decision.placement.")
    if problem:
        raise RunError(f"{path}: {problem}; tune again")
    decision = document["decision"]
    try:
        make_config(algorithm(document["algo"]).config_class, decision["settings"])
        own = schedule_class(document["schedule"], document["algo"]).config_class
        make_config(own, decision["schedule_settings"])
    except (ConfigError, TypeError) as error:
        raise RunError(f"{path} does not fit this version of gpurl: {error}") from error
    return document


def _wrong(found: Any, keys: Mapping[str, Any], prefix: str = "") -> str:
    """What is missing, unknown or of the wrong kind; empty if nothing is."""
    for name, kind in keys.items():
        if name not in found:
            return f"{prefix}{name} is missing"
        if not isinstance(found[name], kind) or (isinstance(found[name], bool)):
            return f"{prefix}{name} is not what it should be"
    unknown = [name for name in found if name not in keys]
    return f"{prefix}{unknown[0]} is unknown" if unknown else ""


def given_names(overrides: Iterable[str], options: Mapping[str, Any]) -> list[str]:
    """Settings that the user has decided, by `--set`, `--num-envs` or `--total-steps`."""
    names = [item.partition("=")[0].strip().replace("-", "_") for item in overrides]
    named = [name for name in ("num_envs", "total_steps") if options.get(name) is not None]
    return [name for name in names if not name.startswith("env.")] + named


def applied(
    document: Mapping[str, Any],
    env: str,
    algo: str,
    schedule: str,
    overrides: Iterable[str] = (),
    options: Mapping[str, Any] | None = None,
    where: str = "the tuning",
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """(overrides, options) of `learners.build.resolve` with the decisions in them: the same file makes the same run.

    Args:
        document: of `read`.
        env: the environment's own name.
        algo, schedule, overrides, options: what the user asked for.
        where: the file's name, for errors.

    Raises:
        ConfigError: it was tuned for something else, or the user decides what it has decided.
    """
    overrides, options = tuple(overrides), dict(options or {})
    for what, own in (("env", env), ("algo", algo), ("schedule", schedule)):
        if document[what] != own:
            option = {"env": "train that", "algo": "add --algo", "schedule": "add --schedule"}[what]
            advice = option if what == "env" else f"{option} {document[what]}"
            raise ConfigError(f"{where} is for {what} {document[what]}, this run is {own}; {advice} or tune again")
    decision = document["decision"]
    decided = {**decision["settings"], **decision["schedule_settings"]}
    given = given_names(overrides, options)
    if "total_steps" in given:
        decided.pop("total_steps", None)  # how long to train is the user's to say
    twice = [name for name in given if name in decided]
    if twice:
        name = twice[0]
        raise ConfigError(f"{where} decides {name}={decided[name]}; leave it out, or tune with your own {name}")
    overrides += tuple(f"{name}={_text(value)}" for name, value in decided.items())
    return overrides, _placed(options, decision["placement"], where)


def _placed(options: dict[str, Any], placement: Mapping[str, str], where: str) -> dict[str, Any]:
    """The options with the tuned placement, which those that the user gave must agree with."""
    name, env_device, device = placement["placement"], placement["env_device"], placement["device"]
    asked = options.get("placement")
    if asked not in (None, "auto", name):
        raise ConfigError(f"{where} was made with --placement {name}, not {asked}; tune again for that")
    own = device if name == "host" else env_device
    kind = options.get("device", "auto")
    if kind not in ("auto", own, own.split(":")[0]):
        raise ConfigError(f"{where} was made with --device {own}, not {kind}; tune again for that")
    options |= {"placement": name, "device": own, "transfer": placement["transfer"]}
    if name == "split":
        options["learner_device"] = device
    return options


def _text(value: Any) -> str:
    return repr(value) if isinstance(value, float) else str(value)
