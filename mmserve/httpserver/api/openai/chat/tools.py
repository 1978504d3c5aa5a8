"""Tools and the choice among them, from OpenAI's fields to Tool and ToolChoice. Every error names the field."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from mmserve.httpserver.conversation import Tool, ToolChoice
from mmserve.runtime.errors import InvalidRequest, quoted

MAX_TOOLS = 128
MAX_TOOLS_NBYTES = 256 * 1024
"""JSON of all schemas of a request's tools together. They are read again where the prompt is built."""

FunctionName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")]
"""OpenAI allows 64 characters without dots; names of MCP servers are longer and have dots or colons in them."""


class FunctionFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: FunctionName
    description: str | None = None
    parameters: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    strict: bool | None = None


class ToolFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: Literal["function"]
    function: FunctionFields


class NameFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str


class NamedTool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A function among the request's tools."""

    type: Literal["function"]
    function: NameFields


class AllowedTools(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Meta(min_length=1, max_length=MAX_TOOLS)]


class AllowedChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolList = Annotated[list[ToolFields], Meta(max_length=MAX_TOOLS)]


def read_tools(functions: Iterable[FunctionFields], param: str) -> tuple[Tool, ...]:
    """Tools from their fields. ``param``: the field that lists them. Raises InvalidRequest."""
    tools = tuple(_tool(fields, f"{param}[{index}].function") for index, fields in enumerate(functions))
    names = [tool.name for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidRequest(f"two tools have the name {quoted(name)}", param=f"{param}[{index}].function.name")
    if sum(len(tool.parameters) for tool in tools) > MAX_TOOLS_NBYTES:
        raise InvalidRequest(f"the schemas of the tools have more than {MAX_TOOLS_NBYTES} characters", param=param)
    return tools


def _tool(fields: FunctionFields, param: str) -> Tool:
    parameters = bytes(fields.parameters).decode()
    if parameters == "null":
        parameters = ""
    if parameters and not parameters.startswith("{"):
        raise InvalidRequest("the schema of a function's parameters must be an object", param=f"{param}.parameters")
    return Tool(fields.name, fields.description or "", parameters, bool(fields.strict))


def read_tool_choice(choice: Any, tools: tuple[Tool, ...], param: str = "tool_choice") -> ToolChoice:
    """``tool_choice`` as decoded JSON. None: auto. Raises InvalidRequest, naming ``param``."""
    if choice is None or choice in ("auto", "none"):
        return ToolChoice("none" if choice == "none" else "auto")
    if not tools:
        raise InvalidRequest(f"{param} needs tools", param=param)
    if choice == "required":
        return ToolChoice("required")
    if isinstance(choice, str):
        raise InvalidRequest(f"{param} cannot be {quoted(choice)}", param=param)
    try:
        read: NamedTool | AllowedChoice = msgspec.convert(choice, _choice_type(choice))
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{param}: {error}", param=param) from None
    if isinstance(read, NamedTool):
        return ToolChoice("required", (_known(read.function.name, tools, f"{param}.function.name"),))
    names = (_known(named.function.name, tools, f"{param}.allowed_tools.tools") for named in read.allowed_tools.tools)
    return ToolChoice(read.allowed_tools.mode, tuple(names))


def _choice_type(choice: Any) -> type[NamedTool] | type[AllowedChoice]:
    kind = choice.get("type") if isinstance(choice, dict) else None
    return AllowedChoice if kind == "allowed_tools" else NamedTool


def _known(name: str, tools: tuple[Tool, ...], param: str) -> str:
    if all(tool.name != name for tool in tools):
        raise InvalidRequest(f"there is no tool named {quoted(name)}", param=param)
    return name
