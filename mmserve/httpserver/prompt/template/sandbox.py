"""jinja2 for untrusted templates: its immutable sandbox, with limits on time and memory.

jinja2's sandbox keeps a template from Python's internals and from changing its input. Here it cannot take a worker's
time or memory either: the generated code, operators, filters, tests and methods count what they make and read in the
rendering's ``TemplateContext``.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Namespace

from mmserve.httpserver.prompt.template.checks import (
    MAX_FORMATTED_CHARS,
    check_percent,
    check_power,
    check_product,
    check_widths,
    checked_method,
)
from mmserve.httpserver.prompt.template.filters import limited_filters, limited_tests
from mmserve.httpserver.prompt.template.limits import TemplateContext, TemplateLimitExceeded

_METHODS: dict[type, frozenset[str]] = {
    str: frozenset(
        "capitalize casefold count endswith find format index isalnum isalpha isascii isdecimal isdigit isidentifier "
        "islower isnumeric isprintable isspace istitle isupper join lower lstrip partition removeprefix removesuffix "
        "replace rfind rindex rpartition rsplit rstrip split splitlines startswith strip swapcase title upper".split()
    ),
    dict: frozenset(("copy", "get", "items", "keys", "values")),
    list: frozenset(("copy", "count", "index")),
    tuple: frozenset(("count", "index")),
}
"""Of built-in types, whose results are not longer than what they read, or are checked in ``call``."""
_SEQUENCES = (str, list, tuple)
_SCALARS = (int, float, jinja2.Undefined)
_DICT_NAMES = frozenset(dir(dict))
_OPERATORS = {
    "eq": "==",
    "ne": "!=",
    "gt": ">",
    "gteq": ">=",
    "lt": "<",
    "lteq": "<=",
    "in": "in",
    "notin": "not in",
}
_NODES_PER_UNIT = 4
_CHARS_PER_UNIT = 64


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """Templates must be compiled by ``template``, and rendered in a ``TemplateContext``."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, **options: Any) -> None:
        super().__init__(finalize=_finalize, **options)
        self.code_generator_class = _CodeGenerator
        self.context_class = TemplateContext
        self.filters = limited_filters(self.filters)
        self.tests.update(limited_tests(self.tests))
        del self.globals["lipsum"]

    def template(self, source: str) -> jinja2.Template:
        """Raises jinja2.TemplateError."""
        parsed = self.parse(source)
        _count_bodies(parsed)
        return self.template_class.from_code(self, self.compile(parsed), self.make_globals(None))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Of built-in types only the methods that templates need."""
        for kind, names in _METHODS.items():
            if isinstance(obj, kind):
                return attr in names
        return not isinstance(obj, int | float | bytes) and super().is_safe_attribute(obj, attr, value)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """jinja2 looks for an attribute first, and so raises an exception for each field of a message."""
        kind = type(obj)
        if kind is dict:
            if attribute in obj and attribute not in _DICT_NAMES:
                return obj[attribute]
        elif kind is Namespace and not attribute.startswith("_"):
            try:
                return getattr(obj, attribute)
            except AttributeError:
                pass
        return super().getattr(obj, attribute)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """``str.format``, with limits of its own because it has no context."""
        if super().wrap_str_format(value) is None:
            return None
        if value.__name__ != "format":
            raise SecurityError("format_map is not available")
        return lambda *args, **kwargs: _Formatter(self).vformat(str(value.__self__), args, kwargs)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        __context.spend(1)
        if type(__obj) is Macro:  # its body counts what it does
            return __context.call(__obj, *args, **kwargs)
        for each in args:
            __context.read(each)
        for name, each in kwargs.items():
            if name not in ("_loop_vars", "_block_vars"):  # jinja2's own
                __context.read(each)
        if isinstance(__obj, types.BuiltinMethodType):
            args = checked_method(__context, __obj.__self__, __obj.__name__, args)
        return super().call(__context, __obj, *args, **kwargs)

    @staticmethod
    def concat_all(context: TemplateContext, values: tuple[Any, ...]) -> str:
        """The operator ``~``."""
        context.make(sum(map(context.size, values)))
        return "".join(map(str, values))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "+":
            if isinstance(left, _SEQUENCES) and isinstance(right, _SEQUENCES):
                context.make(len(left) + len(right))
            return left + right
        if operator == "%" and isinstance(left, str):
            check_percent(context, left, right)
        elif operator == "*":
            check_product(context, left, right)
        elif operator == "**":
            check_power(left, right)
        return super().call_binop(context, operator, left, right)


@jinja2.pass_context
def _finalize(context: TemplateContext, value: Any) -> Any:
    """Of each output."""
    if isinstance(value, str):
        context.make(len(value))
    elif value is not None and not isinstance(value, _SCALARS):
        context.make(context.size(value))
    return value


class _Formatter(SandboxedFormatter):
    """Counts what is made, because fields may be repeated and padded."""

    _made = 0

    def format_field(self, value: Any, format_spec: str) -> Any:
        check_widths(format_spec)
        text = super().format_field(value, format_spec)
        self._made += len(text)
        if self._made > MAX_FORMATTED_CHARS:
            raise TemplateLimitExceeded(f"it formats texts of more than {MAX_FORMATTED_CHARS} characters")
        return text


def _is_constant(node: nodes.Expr) -> bool:
    """And so no larger than the template."""
    return isinstance(node, nodes.Const) or (
        isinstance(node, nodes.List | nodes.Tuple) and all(isinstance(item, nodes.Const) for item in node.items)
    )


def _count_bodies(template: nodes.Template) -> None:
    """Puts a statement that counts the work before each body that may run more than once."""
    for node in [*template.find_all((nodes.For, nodes.Macro, nodes.CallBlock))]:
        chars = sum(len(each.data) for each in node.find_all(nodes.TemplateData))
        units = 1 + sum(1 for _ in node.find_all(nodes.Node)) // _NODES_PER_UNIT + chars // _CHARS_PER_UNIT
        assert isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock)
        node.body.insert(0, nodes.ExprStmt(nodes.Const((units, chars), lineno=node.lineno), lineno=node.lineno))


class _CodeGenerator(CodeGenerator):
    """Adds calls of the context to the code of a template."""

    def visit_ExprStmt(self, node: nodes.ExprStmt, frame: Frame) -> None:
        """Only ``_count_bodies`` makes such statements."""
        assert isinstance(node.node, nodes.Const)
        units, chars = node.node.value
        self.writeline(f"context.spend({units}, {chars})", node)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat_all(context, (")
        for each in node.nodes:
            self.visit(each, frame)
            self.write(", ")
        self.write("))")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        """Comparing with a constant is cheap, except for searching it in something else."""
        operands = [node.expr, *(operand.expr for operand in node.ops)]
        last = node.ops[-1]
        searched = last.op in ("in", "notin") and not _is_constant(last.expr)
        cheap = len(operands) == 2 and not searched and any(map(_is_constant, operands))
        self.write("(")
        for operator, operand in zip(["", *(each.op for each in node.ops)], operands, strict=True):
            self.write(f" {_OPERATORS[operator]} " if operator else "")
            self._call("" if cheap or _is_constant(operand) else "context.read", operand, frame)
        self.write(")")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if isinstance(node.arg, nodes.Slice):
            self._call("context.read", node.node, frame)
            self.write("[")
            self.visit(node.arg, frame)
            self.write("]")
        else:
            self.write("environment.getitem(")
            self.visit(node.node, frame)
            self.write(", ")
            self._key(node.arg, frame)
            self.write(")")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self.write("{")
        for pair in node.items:
            self._key(pair.key, frame)
            self.write(": ")
            self.visit(pair.value, frame)
            self.write(", ")
        self.write("}")

    def _key(self, node: nodes.Expr, frame: Frame) -> None:
        self._call("" if _is_constant(node) else "context.key", node, frame)

    def _call(self, function: str, node: nodes.Expr, frame: Frame) -> None:
        self.write(f"{function}(")
        self.visit(node, frame)
        self.write(")")
