"""jinja2's filters and tests, with limits on what they read and make."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jinja2

from mmserve.httpserver.prompt.template.checks import check_join, check_percent, check_replace
from mmserve.httpserver.prompt.template.limits import TemplateContext, TemplateLimitExceeded

_UNAVAILABLE = frozenset(("pprint", "urlize", "wordwrap", "xmlattr"))
"""Their results may be much larger than what they read, and no known template uses them."""
_COMPARISONS = frozenset(
    "eq equalto == ne != lt lessthan < le <= gt greaterthan > ge >= in".split(),
)
_MAX_DIGITS = 100
_MAX_INDENT = 16

_SIZED = (str, list, tuple, dict)

_Function = Callable[..., Any]


def limited_filters(filters: dict[str, _Function]) -> dict[str, _Function]:
    """The environment's filters, and ``tojson`` as transformers has it."""
    limited = {name: _limited(name, filter) for name, filter in filters.items() if name not in _UNAVAILABLE}
    return limited | {"tojson": _tojson, "join": _limited_join(filters["join"])}


def limited_tests(tests: Mapping[str, Any]) -> dict[str, _Function]:
    """Those that compare."""
    return {name: _limited_test(test) for name, test in tests.items() if name in _COMPARISONS}


def _limited(name: str, filter: _Function) -> _Function:
    check = _CHECKS.get(name)
    first = _first_argument(filter)

    @jinja2.pass_context
    def limited(context: TemplateContext, *args: Any, **kwargs: Any) -> Any:
        for each in args:
            context.read(each)
        if kwargs:
            for each in kwargs.values():
                context.read(each)
        if check is not None:
            check(context, *args, **kwargs)
        result = filter(*first(context), *args, **kwargs) if first else filter(*args, **kwargs)
        if isinstance(result, _SIZED):
            context.make(len(result))
        return result

    return limited


def _limited_join(join: _Function) -> _Function:
    first = _first_argument(join)

    @jinja2.pass_context
    def limited(context: TemplateContext, value: Iterable[Any], d: str = "", attribute: Any = None) -> Any:
        items = list(value)
        check_join(context, str(d), items)
        return join(*(first(context) if first else ()), items, d, attribute)

    return limited


def _limited_test(test: _Function) -> _Function:
    @jinja2.pass_context
    def limited(context: TemplateContext, *args: Any) -> Any:
        for each in args:
            context.read(each)
        return test(*args)

    return limited


def _first_argument(function: _Function) -> Callable[[TemplateContext], tuple[Any, ...]] | None:
    """What jinja2 would pass to the function before the template's arguments; None for nothing."""
    choices: dict[str, Callable[[TemplateContext], tuple[Any, ...]]] = {
        "context": lambda context: (context,),
        "eval_context": lambda context: (context.eval_ctx,),
        "environment": lambda context: (context.environment,),
    }
    return choices.get(getattr(getattr(function, "jinja_pass_arg", None), "name", ""))


def _check_center(context: TemplateContext, text: Any, width: int = 80) -> None:
    context.make(int(width))


def _check_indent(context: TemplateContext, text: str, width: int | str = 4, *_: Any, **__: Any) -> None:
    each = len(width) if isinstance(width, str) else int(width)
    context.make(len(text) + each * (text.count("\n") + 2))


def _check_replace_filter(context: TemplateContext, text: Any, old: Any, new: Any, *_: Any, **__: Any) -> None:
    context.make(context.size(text))
    check_replace(context, str(text), str(old), str(new))


def _check_parts(context: TemplateContext, value: Any, count: int = 1, *_: Any, **__: Any) -> None:
    """batch, slice."""
    context.make(int(count))


def _check_round(context: TemplateContext, value: Any, precision: int = 0, *_: Any, **__: Any) -> None:
    if abs(precision) > _MAX_DIGITS:
        raise TemplateLimitExceeded(f"it rounds to more than {_MAX_DIGITS} digits")


def _check_format(context: TemplateContext, text: Any, *args: Any, **kwargs: Any) -> None:
    check_percent(context, str(text), kwargs or args)


def _check_sum(context: TemplateContext, value: Any, attribute: Any = None, start: Any = 0) -> None:
    if not isinstance(start, int | float):
        raise TemplateLimitExceeded("it adds up something other than numbers")


_CHECKS: dict[str, _Function] = {
    "center": _check_center,
    "indent": _check_indent,
    "replace": _check_replace_filter,
    "batch": _check_parts,
    "slice": _check_parts,
    "round": _check_round,
    "format": _check_format,
    "sum": _check_sum,
}


@jinja2.pass_context
def _tojson(
    context: TemplateContext,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike jinja2's filter, without HTML escapes."""
    if (indent or 0) > _MAX_INDENT or any(len(each) > _MAX_INDENT for each in separators or ()):
        raise TemplateLimitExceeded(f"it indents JSON by more than {_MAX_INDENT} characters")
    context.make(context.size(value))
    if indent is None:
        text = json.dumps(value, ensure_ascii=ensure_ascii, separators=separators, sort_keys=sort_keys)
        context.make(len(text))
        return text
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    pieces: list[str] = []
    for piece in encoder.iterencode(value):  # each level adds spaces before each of its lines
        context.make(len(piece))
        pieces.append(piece)
    return "".join(pieces)
