"""What `--set env.NAME=VALUE` gives an environment: its params, and options that make another environment of it.

A param's value is a number or a range, `0.4..0.6` or `0.4..0.6:episode` (see `gpuenvs.Range`), which stays text here: it is
part of a run's config.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpuenvs.errors import ConfigError
from gpuenvs.ranges import Range
from gpuenvs.spec import EnvSpec

PREFIX = "env."
# Options of gpuenvs.make beside the params and options of the spec.
MAKE_OPTIONS = {"max_episode_steps": int}

_WORDS = {"true": True, "false": False, "none": None, "null": None}


def parse(spec: EnvSpec, items: Iterable[str]) -> dict[str, Any]:
    """Name -> number or range, or for an option of the spec also a flag, a list of numbers ("0.3,1") or a text.

    Raises:
        ConfigError: not written as env.name=value, an unknown name, or a value that the environment cannot take.
    """
    values: dict[str, Any] = {}
    for item in items:
        name, equals, text = item.removeprefix(PREFIX).partition("=")
        name, text = name.strip(), text.strip()
        if not equals:
            raise ConfigError(f"--set {item}: write it as env.name=value")
        if name in spec.options:
            values[name] = option_value(text)
            continue
        if ".." in text:
            values[name] = str(Range.parse(text))
            continue
        try:
            number = float(text)
        except ValueError:
            raise ConfigError(f"--set {item}: {text!r} is neither a number nor a range such as 0.4..0.6") from None
        values[name] = MAKE_OPTIONS.get(name, float)(number) if number.is_integer() else number
    configured(spec, values)
    return values


def option_value(text: str) -> Any:
    """A flag, a number, a list of numbers ("0.3,1") or the text itself."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    parts = text.split(",")
    try:
        numbers = [int(part) if part.strip().lstrip("+-").isdigit() else float(part) for part in parts]
    except ValueError:
        return text
    return numbers if len(numbers) > 1 else numbers[0]


def configured(spec: EnvSpec, values: Mapping[str, Any]) -> EnvSpec:
    """The spec that these values make.

    Raises:
        ConfigError: an unknown name or a value that does not fit.
    """
    own, params = spec.with_options(dict(values))
    own.with_params({name: value for name, value in params.items() if name not in MAKE_OPTIONS})
    return own


def for_evaluation(spec: EnvSpec, values: Mapping[str, Any], told: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A training's values with nothing drawn: where it draws a param, the spec's own number.

    Args:
        spec: the environment.
        values: what the training was given.
        told: what the evaluation is given beside; its ranges are drawn.
    """
    own, params = spec.with_options(dict(values))
    ranges = {name for name, value in params.items() if _is_range(value)} | set(own.ranges).difference(params)
    fixed = {name: value for name, value in values.items() if name not in ranges}
    # The spec's own number is what a param has without being told, unless the spec draws it.
    fixed |= {name: getattr(own.params, name) for name in ranges if name in own.ranges}
    return {**fixed, **(told or {})}


def _is_range(value: Any) -> bool:
    return isinstance(value, Range) or (isinstance(value, str) and ".." in value)


def reference_keywords(spec: EnvSpec, values: Mapping[str, Any]) -> dict[str, Any] | None:
    """The same values as keywords of Gymnasium's own environment; None if it has no such environment or cannot take them."""
    if spec.reference is None or any(name not in (*spec.reference.keywords, *MAKE_OPTIONS) for name in values):
        return None
    return dict(values)
