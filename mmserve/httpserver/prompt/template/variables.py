"""A conversation as the variables of a chat template, in the form in which transformers passes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from mmserve.httpserver.conversation import Conversation, Message, Tool, ToolCall

Content = Callable[[Message], Any]
"""The content of a message as the template takes it: a string or a list of parts."""


def template_variables(conversation: Conversation, content: Content) -> dict[str, Any]:
    """Variables ``messages``, ``tools``, ``documents``, ``add_generation_prompt``, and those that the client sets."""
    return {
        **msgspec.json.decode(conversation.template_kwargs),
        "messages": [_message(message, content) for message in conversation.messages],
        "tools": [_tool(tool) for tool in conversation.tools] or None,
        "documents": None,
        "add_generation_prompt": conversation.add_generation_prompt and not conversation.continue_final_message,
    }


def _message(message: Message, content: Content) -> dict[str, Any]:
    fields = {"role": message.role, "content": content(message)}
    if message.name:
        fields["name"] = message.name
    if message.reasoning:
        fields["reasoning_content"] = message.reasoning
    if message.tool_calls:
        fields["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
    if message.tool_call_id:
        fields["tool_call_id"] = message.tool_call_id
    return fields


def _tool_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _arguments(call.arguments)}}


def _arguments(text: str) -> Any:
    """Templates print the arguments with ``tojson``, so a text would be quoted twice. It stays one if it is no object.

    An empty text is what clients send for a call without arguments.
    """
    try:
        arguments = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        return text
    return arguments if isinstance(arguments, dict) else text


def _tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "description": tool.description}
    if tool.parameters:
        function["parameters"] = msgspec.json.decode(tool.parameters)
    return {"type": "function", "function": function}
