"""From an id to what makes one environment: Gymnasium's registry, `file.py:Name` or `package.module:Name`."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

import gymnasium
from gymnasium.envs.registration import EnvSpec as Registered
from gymnasium.envs.registration import load_env_creator

from gpuenvs import folder_modules, loading
from gpuenvs.errors import ConfigError, GpurlError, HostError, LoadError, UnknownEnvError, near_names

NEEDS_ATARI = 'pip install "gpurl[atari]"'


class Found(NamedTuple):
    """What an id names: an entry of Gymnasium's registry, or a class or function that returns an environment."""

    registered: Registered | None
    call: Callable[..., Any] | None

    @property
    def atari(self) -> bool:
        """Whether it is a game of the Arcade Learning Environment, which is stepped with its usual preprocessing."""
        entry = self.registered.entry_point if self.registered else None
        return isinstance(entry, str) and entry.startswith("ale_py")


def find(env_id: str) -> Found:
    """What `env_id` names; imports the module that holds it.

    Raises:
        UnknownEnvError: nothing has this name; the message names near ones.
        ConfigError: the Atari games are not installed.
        LoadError: the file or module that holds it raised when it was imported.
        HostError: what Gymnasium's registry names for it raised when it was imported.
    """
    place, colon, name = env_id.rpartition(":")
    if colon:
        module = loading.load_module(place)
        target = getattr(module, name, None)
        if callable(target):
            return Found(None, target)
        if name in gymnasium.registry:  # Gymnasium's own way of writing "import this module, then take this id"
            _let_entry_points_be_found(module)
            return _registered(env_id, name)
        public = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UnknownEnvError(f"{place} has no class or function {name!r}{near_names(name, public)}")
    if env_id not in gymnasium.registry:
        _register_atari(env_id)
    if env_id not in gymnasium.registry:
        known = [key for key, entry in gymnasium.registry.items() if entry.entry_point is not None]
        raise UnknownEnvError(
            f"Gymnasium has no environment {env_id!r}{near_names(env_id, known)}; "
            "for a class of your own write path/to/file.py:Class"
        )
    return _registered(env_id, env_id)


def described(env_id: str, doing: str, error: BaseException) -> tuple[str, str]:
    """One line for what somebody else's code raised, and its traceback; what is a message to users already stays as it is."""
    if isinstance(error, GpurlError):
        trace = "".join(traceback.format_exception(error)) if isinstance(error, LoadError) else ""
        return str(error), getattr(error, "traceback", trace)
    summary = " ".join("".join(traceback.format_exception_only(error)).split())
    return f"{env_id}: {doing} raised {summary[:500]}", "".join(traceback.format_exception(error))


def raised(env_id: str, doing: str, error: Exception) -> NoReturn:
    """Raise what `described` says."""
    raise HostError(*described(env_id, doing, error)) from error


def _registered(env_id: str, name: str) -> Found:
    found = Found(gymnasium.registry[name], None)
    if found.atari:
        _register_atari("ALE/")
        _prepare_atari()
    entry = gymnasium.registry[name].entry_point
    if entry is None:
        raise ConfigError(
            f"{env_id} has no single environment, only a vectorised one; host environments step single ones"
        )
    try:
        if isinstance(entry, str):
            load_env_creator(entry)
    except Exception as error:
        raised(env_id, "importing it", error)
    return found


def _let_entry_points_be_found(module: ModuleType) -> None:
    """Gymnasium imports the strings of its registry by name: those that a file registered are beside it."""
    folder = str(Path(module.__file__ or "").parent)
    if folder_modules.holds(module) and folder not in sys.path:
        sys.path.append(folder)


def _register_atari(env_id: str) -> None:
    """Put the Arcade Learning Environment's ids into the registry, if it is installed."""
    if importlib.util.find_spec("ale_py") is None:
        if env_id.startswith("ALE/"):
            raise ConfigError(f"{env_id} needs ale-py: {NEEDS_ATARI}")
        return
    import ale_py

    gymnasium.register_envs(ale_py)


def _prepare_atari() -> None:
    """Import what the preprocessing needs; one executor uses one core."""
    try:
        import cv2
    except ImportError:
        raise ConfigError(f"Atari games need OpenCV to scale their frames: {NEEDS_ATARI}") from None
    import ale_py

    cv2.setNumThreads(1)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner for each game
