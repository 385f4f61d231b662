"""The keys of a YAML file: known ones only, and of the right kind; every message names the file, the key and the value.

Study files, search files and partitions are checked with these. `source` is what a message begins with.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from horovod_study.config.roles import Option, check_field
from horovod_study.errors import ConfigError, require_known


def one_of(source: str, what: str, value: Any, allowed: Iterable[str]) -> str:
    """Return `value` as a text, or raise ConfigError with the nearest text that is allowed."""
    require_known(f"{source}: {what}", str(value), allowed)
    return str(value)


def mapping(source: str, key: str, value: Any) -> dict[str, Any]:
    """Return the `key: value` lines below `key`; nothing there is none."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{source}: {key} must hold `key: value` lines, not {value!r}")
    return value


def listed(source: str, content: Mapping[str, Any], key: str, default: list[Any]) -> list[Any]:
    """Return the values of `key`, one or a list of them; an empty list is refused."""
    value = content.get(key, default)
    values = value if isinstance(value, list) else [value]
    if key in content and not values:
        raise ConfigError(f"{source}: {key} is an empty list; give at least one value or leave the key out")
    return values


def limits(kind: type, *, low: float | None = None, above: float | None = None) -> Option:
    """Return what `check_field` wants to know of a value: its type, its least value, or what it must exceed."""
    return Option(kind=kind, low=low, above=above)


def number(source: str, content: Mapping[str, Any], key: str, default: float, kind: type, low: float) -> Any:
    """Return the number below `key`, at least `low`."""
    return check_field(source, key, content.get(key, default), limits(kind, low=low), optional=False)
