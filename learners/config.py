"""Settings as frozen dataclasses whose fields carry their own help and range.

An algorithm's config is a frozen dataclass made of `option(...)` fields. The command line's options, `--set name=value`,
the config file of a run and the reference page in the docs are all read from those fields; there is no second list.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from gpuenvs.errors import ConfigError, near_names

C = TypeVar("C")

_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0"}
# Range bounds are written once, as the symbols the user reads: (inclusive low, exclusive low, ...).
_BOUNDS = {
    "ge": (">=", lambda v, b: v >= b),
    "gt": (">", lambda v, b: v > b),
    "le": ("<=", lambda v, b: v <= b),
    "lt": ("<", lambda v, b: v < b),
}


@dataclasses.dataclass(frozen=True)
class Option:
    """One setting as the command line and the docs see it."""

    name: str
    type: Any
    default: Any
    help: str
    bounds: Mapping[str, float]
    choices: tuple[str, ...]

    def valid(self) -> str:
        """What may be given, in words: `an integer >= 1`, `one of tanh, relu`."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        words = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
        text = words.get(self.type, "integers joined by commas")
        limits = " and ".join(f"{_BOUNDS[k][0]} {b:g}" for k, b in self.bounds.items())
        return f"{text}{', each' if self.type not in words and limits else ''} {limits}".rstrip()


def option(
    default: Any,
    help: str,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """A dataclass field with its help text and valid range (`ge` means >=, `gt` >, `le` <=, `lt` <)."""
    bounds = {k: v for k, v in (("ge", ge), ("gt", gt), ("le", le), ("lt", lt)) if v is not None}
    return dataclasses.field(default=default, metadata={"help": help, "bounds": bounds, "choices": choices})


def options(cls: type) -> dict[str, Option]:
    """name -> Option for every field of the config class, in declaration order."""
    hints = typing.get_type_hints(cls)
    return {
        f.name: Option(
            f.name,
            hints[f.name],
            f.default,
            f.metadata.get("help", ""),
            f.metadata.get("bounds", {}),
            f.metadata.get("choices", ()),
        )
        for f in dataclasses.fields(cls)
    }


def parse_value(opt: Option, text: str) -> Any:
    """`text` in the option's type; ConfigError names the option and what it accepts.

    Integers may be written 1e6 or 1_000_000, tuples 64,64 or 64x64, booleans true/false, yes/no, on/off, 1/0.
    """
    try:
        value = _convert(opt.type, text.strip())
    except ValueError:
        raise ConfigError(f"{opt.name}={text}: {opt.name} must be {opt.valid()}") from None
    check_value(opt, value)
    return value


def parse_overrides(cls: type, items: Iterable[str]) -> dict[str, Any]:
    """Typed settings from the `name=value` strings of `--set`; the last of a repeated name wins.

    Raises ConfigError (one line) for a string without "=", an unknown name (near names are listed) or a bad value.
    """
    known = options(cls)
    parsed = {}
    for item in items:
        name, equals, text = item.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise ConfigError(f"--set {item}: write it as name=value")
        parsed[name] = parse_value(_known_option(cls, known, name), text)
    return parsed


def make_config(cls: type[C], values: Mapping[str, Any]) -> C:
    """`cls(**values)` with one clear line for an unknown name; lists (from JSON) become tuples."""
    known = options(cls)
    clean = {}
    for name, value in values.items():
        _known_option(cls, known, name)
        clean[name] = tuple(value) if isinstance(value, list) else value
    return cls(**clean)


def to_dict(config: Any) -> dict[str, Any]:
    """The settings as a plain dict that JSON can hold; `make_config` reads it back."""
    return dataclasses.asdict(config)


def validate(config: Any) -> None:
    """Check type, range and choice of every field; called by each config's `__post_init__`."""
    for name, opt in options(type(config)).items():
        value = getattr(config, name)
        if opt.type is float and type(value) is int:  # gamma=1 means gamma=1.0
            value = float(value)
            object.__setattr__(config, name, value)
        check_value(opt, value)


def check_value(opt: Option, value: Any) -> None:
    """ConfigError unless the value has the option's type and lies in its range."""
    origin = typing.get_origin(opt.type)
    parts = value if origin is tuple and isinstance(value, tuple) else (value,)
    base = typing.get_args(opt.type)[0] if origin is tuple else opt.type
    good = all(_is_a(part, base) for part in parts) and (origin is not tuple or isinstance(value, tuple))
    good = good and not (opt.choices and value not in opt.choices)
    if good and base in (int, float):
        good = all(_BOUNDS[k][1](part, b) for k, b in opt.bounds.items() for part in parts)
    if not good:
        shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
        raise ConfigError(f"{opt.name}={shown}: {opt.name} must be {opt.valid()}")


def _known_option(cls: type, known: Mapping[str, Option], name: str) -> Option:
    if name not in known:
        hint = near_names(name, known) or f"; known: {', '.join(known)}"
        raise ConfigError(f"{cls.__name__} has no setting {name!r}{hint}")
    return known[name]


def _is_a(value: Any, kind: type) -> bool:
    if kind is bool or kind is str:
        return isinstance(value, kind)
    if isinstance(value, bool):
        return False
    if kind is int:
        return isinstance(value, int)
    return isinstance(value, int | float) and math.isfinite(value)


def _convert(kind: Any, text: str) -> Any:
    if typing.get_origin(kind) is tuple:
        part = typing.get_args(kind)[0]
        words = text.strip("()[] ").replace("x", ",").split(",")
        return tuple(_convert(part, word.strip()) for word in words if word.strip())
    if isinstance(kind, types.UnionType):
        raise TypeError(f"config fields have one type each, not {kind}")
    if kind is bool:
        if text.lower() in _TRUE | _FALSE:
            return text.lower() in _TRUE
        raise ValueError(text)
    if kind is int:
        try:
            return int(text)
        except ValueError:
            number = float(text)
            if not number.is_integer():
                raise ValueError(text) from None
            return int(number)
    return kind(text)
