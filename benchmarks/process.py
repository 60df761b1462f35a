"""Runs a worker in a fresh process, under the interpreter that has its contender installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cases import Contender
from gpuenvs.errors import ConfigError

PEERS_VARIABLE = "GPURL_PEERS_PYTHON"
_HERE = Path(__file__).resolve().parent
_TIMEOUT_SECONDS = 900


def peers_python(path: str | None = None) -> str:
    """The interpreter for peers: `path`, else the environment variable GPURL_PEERS_PYTHON, else this one.

    Raises:
        ConfigError: there is no such interpreter.
    """
    chosen = path or os.environ.get(PEERS_VARIABLE)
    if not chosen:
        return sys.executable
    if not os.access(chosen, os.X_OK) or os.path.isdir(chosen):
        raise ConfigError(
            f"no Python interpreter at {chosen!r}; give --peers-python (or {PEERS_VARIABLE}) the path of one"
        )
    return chosen


def measure(contender: Contender, python: str, request: dict[str, Any]) -> dict[str, Any]:
    """The worker's answer; `{"missing": package}` when not installed, `{"error": text}` when it failed.

    Args:
        contender: whom to measure.
        python: interpreter for peers; the others run under this one.
        request: what the worker needs beside the contender's own options.
    """
    message = {"worker": contender.worker, "package": contender.package, **contender.options, **request}
    environment = dict(os.environ)
    if not contender.peer:
        # Also measurable from a checkout that is not installed.
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_HERE.parent), environment.get("PYTHONPATH")]))
    command = [python if contender.peer else sys.executable, str(_HERE / "workers"), json.dumps(message)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {_TIMEOUT_SECONDS} s"}
    lines = done.stdout.strip().splitlines()
    try:
        answer = json.loads(lines[-1])
    except (IndexError, json.JSONDecodeError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return {"error": f"exit code {done.returncode}: {last}"}
    return answer


def gpurl(arguments: Sequence[str], name: str) -> str:
    """What a `gpurl` command printed, run in a process of its own from this source tree.

    Raises:
        ConfigError: it failed; the message is its last line, after `name`.
    """
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_HERE.parent), environment.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise ConfigError(f"{name}: {last}")
    return done.stdout
