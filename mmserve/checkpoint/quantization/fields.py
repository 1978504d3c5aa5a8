"""Checks of the fields of a quantization's JSON. A field that is not known is refused by name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from mmserve.runtime.errors import StartupError

GROUP_MULTIPLE = 32
"""The kernels' own groups of inputs."""


def refused(what: str) -> StartupError:
    return StartupError(f"quantised checkpoint: {what} is not supported")


def check_known(fields: Mapping[str, Any], known: Collection[str], method: str) -> None:
    """Fields that are null, false or empty say nothing."""
    for name, value in fields.items():
        if value and name not in known:
            raise refused(f"{method} with {name} {value!r}")


def check_one_of(method: str, name: str, value: object, accepted: Collection[object]) -> None:
    if value not in accepted:
        raise refused(f"{method} with {name} {value!r}")


def group_size_of(method: str, value: object) -> int | None:
    """None if all inputs share a scale, which is written as -1 or null."""
    if value is None or value == -1:
        return None
    if not isinstance(value, int) or value <= 0 or value % GROUP_MULTIPLE:
        raise refused(f"{method} with group_size {value!r} (multiples of {GROUP_MULTIPLE} are)")
    return value
