"""What the scripted model says: it calls the tool that the user's words name, reports a tool's result, or greets.

It knows prompts only as tests.fakes.models.chat_models.HERMES writes them.
"""

from __future__ import annotations

import json
import re
from typing import Any

GREETING = "Hello! How can I help you today?"
_TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>|$)", re.DOTALL)
_TOOLS = re.compile(r"<tools>(.*?)\n</tools>", re.DOTALL)
_MIN_WORD = 4
"""Shorter words of a tool's name (``get``) do not name it."""


def answer(prompt: str) -> str:
    """The assistant's answer to a rendered prompt."""
    turns = _TURN.findall(prompt)
    said = [(role, text.strip()) for role, text in turns if role != "system"][:-1]
    role, text = said[-1] if said else ("user", "")
    if role == "tool":
        return f"The result is: {text}"
    listed = _TOOLS.search(prompt)
    tools = [json.loads(line)["function"] for line in listed[1].split("\n")] if listed else []
    named = max(tools, key=lambda tool: _mentions(tool["name"], text), default=None)
    if named is None or not _mentions(named["name"], text):
        return GREETING
    return _call(named, text)


def _mentions(name: str, text: str) -> int:
    words = [word for word in re.split(r"[_\W]+", name.lower()) if len(word) >= _MIN_WORD]
    return 100 * (name in text) * len(name) + sum(word in text.lower() for word in words)


def _call(tool: dict[str, Any], text: str) -> str:
    schema = tool.get("parameters") or {}
    properties, required = schema.get("properties", {}), schema.get("required", [])
    arguments = {name: _value(properties.get(name, {}), text) for name in required}
    call = json.dumps({"name": tool["name"], "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def _value(schema: dict[str, Any], text: str) -> Any:
    """A number or a quoted text that the user wrote."""
    if "enum" in schema:
        return schema["enum"][0]
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    match schema.get("type"):
        case "integer" | "number":
            return numbers[0] if numbers else 0
        case "boolean":
            return True
        case "array":
            return []
        case "object":
            return {}
    quoted = re.findall(r"'([^']*)'", text)
    return quoted[0] if quoted else text.rstrip("?.!").split(" ")[-1]
