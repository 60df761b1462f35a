"""While a model is compiled MuJoCo warns through Python's logging, not on the terminal and in a file."""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def mujoco_warnings_logged() -> Iterator[None]:
    """Inside the block, a warning of the C engine is a log record at level INFO. Does nothing without the mujoco package."""
    try:
        mujoco: Any = importlib.import_module("mujoco")
    except ImportError:
        yield
        return
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(logging.getLogger("gpuenvs.mjlite").info)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)
