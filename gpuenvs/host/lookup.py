"""From an id to what makes one environment: Gymnasium's registry, `file.py:Name` or `package.module:Name`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

import gymnasium
from gymnasium.envs.registration import EnvSpec as Registered
from gymnasium.envs.registration import load_env_creator

from gpuenvs.errors import ConfigError, GpurlError, HostError, UnknownEnvError, near_names

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
        HostError: the module that holds it raised when it was imported.
    """
    place, colon, name = env_id.rpartition(":")
    if colon:
        module = _from_file(env_id, Path(place)) if place.endswith(".py") else _from_module(env_id, place)
        target = getattr(module, name, None)
        if callable(target):
            return Found(None, target)
        if name in gymnasium.registry:  # Gymnasium's own way of writing "import this module, then take this id"
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
        return str(error), getattr(error, "traceback", "")
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


def _from_file(env_id: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise UnknownEnvError(f"there is no file {path} for the environment {env_id!r}")
    path = path.resolve()
    name = path.stem
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    if loaded is not None or importlib.util.find_spec(name) is not None:
        name = f"gpurl_env_file_{name}"  # must not hide another module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # a file finds its neighbours, as a script does
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, Exception):
            raised(env_id, "importing it", error)
        raise
    return module


def _from_module(env_id: str, name: str) -> ModuleType:
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UnknownEnvError(f"there is no module {error.name!r} for the environment {env_id!r}") from None
        raised(env_id, "importing it", error)
    except Exception as error:
        raised(env_id, "importing it", error)
