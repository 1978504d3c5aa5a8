"""Tools of a Responses request and the choice among them: the same as in chat completions without inner objects."""

from __future__ import annotations

from typing import Any

import msgspec

from mmserve.httpserver.api.openai.chat.tools import MAX_TOOLS, MAX_TOOLS_NBYTES, FunctionName
from mmserve.httpserver.conversation import Tool, ToolChoice
from mmserve.runtime.errors import InvalidRequest, quoted, shortened


class FunctionTool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Also as the answer repeats it."""

    type: str = "function"
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


def read_tools(tools: Any) -> tuple[list[FunctionTool], tuple[Tool, ...]]:
    """The fields of each tool, and what the model is told of it. Raises InvalidRequest, naming the tool."""
    if tools is None:
        return [], ()
    if not isinstance(tools, list) or len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"tools must be a list of at most {MAX_TOOLS}", param="tools")
    fields = [_fields(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    for index, tool in enumerate(fields):
        if any(tool.name == other.name for other in fields[:index]):
            raise InvalidRequest(f"two tools have the name {quoted(tool.name)}", param=f"tools[{index}].name")
    read = tuple(Tool(tool.name, tool.description or "", _schema(tool), bool(tool.strict)) for tool in fields)
    if sum(len(tool.parameters) for tool in read) > MAX_TOOLS_NBYTES:
        raise InvalidRequest(f"the schemas of the tools have more than {MAX_TOOLS_NBYTES} characters", param="tools")
    return fields, read


def _fields(tool: Any, at: str) -> FunctionTool:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind != "function":
        found = "a tool must have a type" if kind is None else f"a tool of the type {quoted(kind)} is not supported"
        raise InvalidRequest(f"{found}: only functions are, which the client runs", param=f"{at}.type")
    try:
        return msgspec.convert(tool, FunctionTool)
    except msgspec.ValidationError as error:
        _, _, path = str(error).partition(" - at `$.")
        param = f"{at}.{shortened(path.rstrip('`'))}" if path else at
        raise InvalidRequest(f"{at}: {error}", param=param) from None


def _schema(tool: FunctionTool) -> str:
    try:
        return "" if tool.parameters is None else msgspec.json.encode(tool.parameters).decode()
    except (RecursionError, ValueError) as error:
        raise InvalidRequest(f"the schema of {quoted(tool.name)} cannot be read: {error}", param="tools") from None


def read_tool_choice(choice: Any, tools: tuple[Tool, ...]) -> ToolChoice:
    """``tool_choice`` as decoded JSON. None: auto. Raises InvalidRequest."""
    if choice is None or choice in ("auto", "none"):
        return ToolChoice("none" if choice == "none" else "auto")
    if not tools:
        raise InvalidRequest("tool_choice needs tools", param="tool_choice")
    if choice == "required":
        return ToolChoice("required")
    if not isinstance(choice, dict):
        raise InvalidRequest(f"tool_choice cannot be {quoted(choice)}", param="tool_choice")
    match choice.get("type"):
        case "function":
            return ToolChoice("required", (_named(choice, tools, "tool_choice"),))
        case "allowed_tools":
            return _allowed(choice, tools)
        case other:
            raise InvalidRequest(f"{quoted(other)} is not among the tools", param="tool_choice.type")


def _allowed(choice: dict[str, Any], tools: tuple[Tool, ...]) -> ToolChoice:
    names, mode = choice.get("tools"), choice.get("mode", "auto")
    if mode not in ("auto", "required"):
        raise InvalidRequest("mode must be auto or required", param="tool_choice.mode")
    if not isinstance(names, list) or not 1 <= len(names) <= MAX_TOOLS:
        raise InvalidRequest(f"tools must be a list of 1 to {MAX_TOOLS}", param="tool_choice.tools")
    at = "tool_choice.tools"
    return ToolChoice(mode, tuple(_named(one, tools, f"{at}[{index}]") for index, one in enumerate(names)))


def _named(fields: Any, tools: tuple[Tool, ...], at: str) -> str:
    if not isinstance(fields, dict) or fields.get("type") != "function":
        raise InvalidRequest("must be an object of the type function", param=at)
    for tool in tools:
        if tool.name == fields.get("name"):
            return tool.name
    raise InvalidRequest(f"there is no tool named {quoted(fields.get('name'))}", param=f"{at}.name")
