"""A field that a protocol parses is read somewhere, or is declared here as one that changes nothing.

Without this a client could send a field that is accepted and then ignored.
"""

from __future__ import annotations

import ast
import importlib
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mmserve.httpserver import api
from mmserve.httpserver.api.openai.fields import Bookkeeping
from mmserve.httpserver.app import PROTOCOLS

ROOT = Path(api.__file__).parent
MODULES = {
    ".".join(("mmserve.httpserver.api", *path.relative_to(ROOT).with_suffix("").parts)): ast.parse(path.read_text())
    for path in sorted(ROOT.rglob("*.py"))
    if path.name != "__init__.py"
}
WITHOUT_EFFECT = {
    "StreamOptions.include_obfuscation": "no padding is sent, with or without it",
    "ResponsesRequest.truncation": "both values allow what the server does: nothing is dropped from a prompt",
    "MessagesRequest.cache_control": "the prefix cache needs no marks",
    "MessagesRequest.diagnostics": "for the account of a hosted service",
    "MessagesRequest.inference_geo": "for the account of a hosted service",
    "MessagesRequest.service_tier": "for the account of a hosted service",
    "MessagesRequest.speed": "for the account of a hosted service",
}
"""Fields that nothing reads, with the reason why no client is misled. A field of Bookkeeping says it by its class."""


def request_structs() -> dict[str, type[msgspec.Struct]]:
    """The structs of all bodies, those nested in them, and those to which decoded JSON is converted."""
    found: dict[str, type[msgspec.Struct]] = {}
    for name in MODULES:
        for value in vars(importlib.import_module(name)).values():
            is_struct = isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ in MODULES
            if is_struct and value.__struct_config__.forbid_unknown_fields:
                found[f"{value.__module__}.{value.__name__}"] = value
    for protocol in PROTOCOLS:
        for struct in _reachable(msgspec.inspect.type_info(protocol.body_type)):
            found[f"{struct.__module__}.{struct.__name__}"] = struct
    return found


def _reachable(info: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(info, msgspec.inspect.StructType):
        yield info.cls
        for field in info.fields:
            yield from _reachable(field.type)
    elif isinstance(info, msgspec.inspect.UnionType):
        for one in info.types:
            yield from _reachable(one)
    elif isinstance(info, msgspec.inspect.CollectionType):
        yield from _reachable(info.item_type)
    elif isinstance(info, msgspec.inspect.Metadata):
        yield from _reachable(info.type)


STRUCTS = request_structs()
CLASS_NAMES = {name.rpartition(".")[2] for name in STRUCTS}


def own_fields() -> Iterator[tuple[str, type[msgspec.Struct], str]]:
    """Each field once, with the class that declares it."""
    for struct in STRUCTS.values():
        for name in typing.get_type_hints(struct, include_extras=True).keys() & vars(struct).get("__annotations__", {}):
            yield f"{struct.__name__}.{name}", struct, name


class Reads(ast.NodeVisitor):
    """Names of attributes that are read from objects that may be request structs."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._others: list[set[str]] = [{"self"}]
        """Variables that are annotated with another type, by function."""

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        others = {one.arg for one in arguments if one.annotation is not None and not _may_be_request(one.annotation)}
        self._others.append(self._others[-1] | others)
        self.generic_visit(node)
        self._others.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Attribute(self, node: ast.Attribute) -> None:
        is_other = isinstance(node.value, ast.Name) and node.value.id in self._others[-1]
        if isinstance(node.ctx, ast.Load) and not is_other:
            self.names.add(node.attr)
        self.generic_visit(node)

    def visit_MatchClass(self, node: ast.MatchClass) -> None:
        if isinstance(node.cls, ast.Name) and node.cls.id in CLASS_NAMES:
            self.names.update(node.kwd_attrs)
        self.generic_visit(node)


def _may_be_request(annotation: ast.expr) -> bool:
    """True if the annotation names a request struct, or says nothing."""
    names = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
    return bool(names & (CLASS_NAMES | {"Any"})) or not names


def reads_of(*sources: ast.AST) -> set[str]:
    reads = Reads()
    for source in sources:
        reads.visit(source)
    return reads.names


READS = reads_of(*MODULES.values())


def is_constant(struct: type[msgspec.Struct], name: str) -> bool:
    """True if the field has only one value, such as a type."""
    hint = typing.get_type_hints(struct)[name]
    values = [value for value in typing.get_args(hint) if value is not type(None)]
    values = [inner for value in values for inner in (typing.get_args(value) or (value,))]
    return len(values) == 1 and not isinstance(values[0], type) and values[0] is not Any


FIELDS = sorted(own_fields(), key=lambda entry: (entry[1].__module__, entry[0]))


def test_the_structs_of_all_protocols_are_found() -> None:
    assert {protocol.body_type.__name__ for protocol in PROTOCOLS} <= CLASS_NAMES
    assert len(FIELDS) > 100


@pytest.mark.parametrize(("label", "struct", "name"), FIELDS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_parsed_field_is_read(label: str, struct: type[msgspec.Struct], name: str) -> None:
    if struct is Bookkeeping or is_constant(struct, name):
        return
    assert (name in READS) != (label in WITHOUT_EFFECT), f"{struct.__module__}.{label}"


def test_a_field_that_nothing_reads_is_found() -> None:
    source = """
def parse(request: ChatRequest, call: GenerateCall):
    options = request.stream_options
    return options.include_usage, call.prediction
"""
    assert reads_of(ast.parse(source)) == {"stream_options", "include_usage"}


def test_reasons_belong_to_fields_that_exist() -> None:
    assert set(WITHOUT_EFFECT) <= {label for label, _, _ in FIELDS}
