"""Checks before operations of a template whose result may be much larger than what they read."""

from __future__ import annotations

import re
from typing import Any

from mmserve.httpserver.prompt.template.limits import TemplateContext, TemplateLimitExceeded

MAX_FORMATTED_CHARS = 1 << 20
"""Of one call of ``str.format``."""
_MAX_BITS = 4096
"""Of an integer."""
_MAX_WIDTH = 1000
_WIDTHS = re.compile(r"\d+")


def check_product(context: TemplateContext, left: Any, right: Any) -> None:
    """``left * right``. Raises TemplateLimitExceeded, as all here."""
    for sequence, count in ((left, right), (right, left)):
        if isinstance(sequence, str | bytes | list | tuple) and isinstance(count, int):
            context.make(len(sequence) * max(count, 0))
    if _bits(left) + _bits(right) > _MAX_BITS:
        raise TemplateLimitExceeded("it makes too large numbers")


def check_power(left: Any, right: Any) -> None:
    """``left ** right``."""
    if isinstance(right, int) and abs(right) * _bits(left) > _MAX_BITS:
        raise TemplateLimitExceeded("it makes too large numbers")


def check_percent(context: TemplateContext, text: str, values: Any) -> None:
    """``text % values``."""
    if "*" in text:
        raise TemplateLimitExceeded("it formats with a width from its input")
    check_widths(text)
    widths = sum(map(int, _WIDTHS.findall(text)))
    context.make(len(text) + widths + text.count("%") * context.size(values))


def check_widths(text: str) -> None:
    """Numbers in a format."""
    for digits in _WIDTHS.findall(text):
        if len(digits) > len(str(_MAX_WIDTH)) or int(digits) > _MAX_WIDTH:
            raise TemplateLimitExceeded(f"it formats with a width above {_MAX_WIDTH}")


def check_replace(context: TemplateContext, text: str, old: str, new: str) -> None:
    """``text.replace(old, new)``."""
    context.make(len(text) + text.count(old) * len(new))


def check_join(context: TemplateContext, separator: str, items: list[Any]) -> None:
    """``separator.join(items)``."""
    context.make(context.size(items) + len(separator) * len(items))


def checked_method(context: TemplateContext, owner: Any, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Before the call of a built-in type's method. Returns the arguments to call it with."""
    if isinstance(owner, str):
        if name == "replace" and len(args) >= 2:
            check_replace(context, owner, *args[:2])
        elif name == "join" and args:
            items = list(args[0])
            check_join(context, owner, items)
            return (items,)
        else:  # split makes a list; upper may make three characters of one
            context.make(3 * len(owner))
    elif isinstance(owner, list | tuple | dict):
        context.read(owner) if name in ("count", "index") else context.make(len(owner))
    return args


def _bits(number: Any) -> int:
    return number.bit_length() if isinstance(number, int) else 0
