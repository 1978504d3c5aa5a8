"""Reads the tools of an Anthropic request and the choice among them."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from mmserve.httpserver.api.anthropic.blocks import check_fields, optional_string, string
from mmserve.httpserver.api.anthropic.fields import ToolChoiceField
from mmserve.httpserver.api.openai.chat.tools import MAX_TOOLS_NBYTES
from mmserve.httpserver.conversation import Tool, ToolChoice
from mmserve.runtime.errors import InvalidRequest, quoted

_MAX_TOOLS = 512
_NAME = re.compile(r"[a-zA-Z0-9_.:-]{1,128}")
_FIELDS = {
    *("type", "name", "description", "input_schema", "strict", "input_examples", "allowed_callers"),
    *("eager_input_streaming", "defer_loading"),
}
"""The last two are about when a definition or an input is sent: here all definitions are in the prompt, and all inputs
are streamed."""
_MODES: dict[str, Literal["auto", "none", "required"]] = {
    "auto": "auto",
    "any": "required",
    "tool": "required",
    "none": "none",
}


def read_tools(tools: Any) -> tuple[Tool, ...]:
    """Raises InvalidRequest, naming the tool. A tool that Anthropic defines by a ``type`` is refused."""
    if tools is None:
        return ()
    if not isinstance(tools, list):
        raise InvalidRequest("must be a list", param="tools")
    if len(tools) > _MAX_TOOLS:
        raise InvalidRequest(f"may have {_MAX_TOOLS} entries", param="tools")
    found: dict[str, Tool] = {}
    for index, tool in enumerate(tools):
        read = _tool(tool, f"tools[{index}]")
        if found.setdefault(read.name, read) is not read:
            raise InvalidRequest(f"a tool before it has the name {quoted(read.name)}", param=f"tools[{index}].name")
    if sum(len(tool.parameters) for tool in found.values()) > MAX_TOOLS_NBYTES:
        raise InvalidRequest(f"their schemas have more than {MAX_TOOLS_NBYTES} characters", param="tools")
    return tuple(found.values())


def _tool(tool: Any, at: str) -> Tool:
    if not isinstance(tool, dict):
        raise InvalidRequest("a tool must be an object", param=at)
    if tool.get("type") not in (None, "custom"):
        raise InvalidRequest(
            f"the tool {quoted(tool['type'])} is not supported: define it by name and input_schema", param=f"{at}.type"
        )
    check_fields(tool, at, _FIELDS)
    name, schema = string(tool, "name", at), tool.get("input_schema")
    if not _NAME.fullmatch(name):
        raise InvalidRequest("must be 1 to 128 letters, digits or any of _.:-", param=f"{at}.name")
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise InvalidRequest('must be a JSON schema with "type": "object"', param=f"{at}.input_schema")
    if not isinstance(schema.get("properties"), dict | None):
        raise InvalidRequest("must be an object", param=f"{at}.input_schema.properties")
    if tool.get("allowed_callers") not in (None, ["direct"]):
        raise InvalidRequest("only direct callers are supported", param=f"{at}.allowed_callers")
    for key in ("strict", "eager_input_streaming", "defer_loading"):
        if not isinstance(tool.get(key), bool | None):
            raise InvalidRequest("must be true or false", param=f"{at}.{key}")
    return Tool(name, _description(tool, at), msgspec.json.encode(schema).decode(), bool(tool.get("strict")))


def _description(tool: dict[str, Any], at: str) -> str:
    """With the examples of the tool's input, for which chat templates have no place."""
    text, examples = optional_string(tool, "description", at), tool.get("input_examples")
    if examples is None:
        return text
    if not isinstance(examples, list) or not all(isinstance(example, dict) for example in examples):
        raise InvalidRequest("must be a list of objects", param=f"{at}.input_examples")
    return "\n".join([text, *(f"Example of its input: {msgspec.json.encode(one).decode()}" for one in examples)])


def read_tool_choice(choice: ToolChoiceField | None, tools: tuple[Tool, ...]) -> tuple[ToolChoice, bool]:
    """The choice, and whether an answer may have several calls. Raises InvalidRequest."""
    if choice is None:
        return ToolChoice(), True
    mode = _MODES.get(choice.type)
    if mode is None:
        raise InvalidRequest(f"must be one of {', '.join(_MODES)}", param="tool_choice.type")
    if mode == "required" and not tools:
        raise InvalidRequest("a call is required, and there are no tools", param="tool_choice")
    names: tuple[str, ...] = ()
    if choice.type == "tool":
        if choice.name not in {tool.name for tool in tools}:
            raise InvalidRequest(f"there is no tool {quoted(choice.name)}", param="tool_choice.name")
        names = (choice.name,)
    elif choice.name is not None:
        raise InvalidRequest("only for the type tool", param="tool_choice.name")
    return ToolChoice(mode, names), not choice.disable_parallel_tool_use
