"""Reads the system prompt and the messages of an Anthropic request into Messages."""

from __future__ import annotations

from typing import Any

from mmserve.httpserver.api.anthropic.blocks import BlockReader, Part, Turn, check_fields, string
from mmserve.httpserver.conversation import Message, TextPart
from mmserve.runtime.errors import ContextLengthExceeded, InvalidRequest

_ROLES = {"user": "user", "ctx": "user", "msg": "user", "assistant": "assistant", "system": "system"}
_BILLING = "x-anthropic-billing-header"
"""An agent begins a block of its system prompt with this, and with a number that differs in each request. With it no
prompt would find its prefix in the cache."""


def read_messages(system: Any, messages: Any, reader: BlockReader, max_messages: int) -> tuple[Message, ...]:
    """All messages in order, the system prompt first. Raises InvalidRequest.

    If the last one is the assistant's, the answer continues it.
    """
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("must be a list with at least one message", param="messages")
    if len(messages) > max_messages:
        message = f"more messages than the context of {max_messages} tokens has room for"
        raise ContextLengthExceeded(message, param="messages")
    found: list[Message] = []
    if (parts := _system(system, reader)) is not None:
        found.append(Message("system", parts))
    for index, message in enumerate(messages):
        _add(found, *_turn(message, reader, f"messages[{index}]", is_last=index == len(messages) - 1))
    reader.finish()
    if not found or (found[-1].role == "assistant" and len(found) == 1):
        raise InvalidRequest("must have a turn of the user", param="messages")
    return tuple(found)


def _system(system: Any, reader: BlockReader) -> tuple[Part, ...] | None:
    if isinstance(system, list):
        # Taken out of its list, a block would have another index in an error message.
        system = [{"type": "text", "text": ""} if _is_billing(block) else block for block in system]
    parts = None if system is None else tuple(reader.turn("system", system, "system").parts)
    return None if not parts or parts == (TextPart(""),) else parts


def _is_billing(block: Any) -> bool:
    text = block.get("text") if isinstance(block, dict) else None
    return isinstance(text, str) and text.startswith(_BILLING)


def _turn(message: Any, reader: BlockReader, at: str, *, is_last: bool) -> tuple[str, Turn]:
    """The role and the content of a message."""
    if not isinstance(message, dict):
        raise InvalidRequest("a message must be an object", param=at)
    check_fields(message, at, {"role", "content", "id"})
    role = _ROLES.get(string(message, "role", at))
    if role is None:
        raise InvalidRequest("must be user, assistant or system", param=f"{at}.role")
    if message.get("content") is None:
        raise InvalidRequest("field required", param=f"{at}.content")
    turn = reader.turn(role, message["content"], f"{at}.content")
    if role == "assistant" and is_last:
        _begin_answer(turn, at)
    elif not message["content"] and isinstance(message["content"], list):
        raise InvalidRequest("must have at least one block", param=f"{at}.content")
    return role, turn


def _begin_answer(turn: Turn, at: str) -> None:
    """Prepare the last turn, which the answer continues. Blanks at its end would make unusual tokens."""
    if turn.calls:
        raise InvalidRequest("the calls of the last turn need results in a turn after it", param=f"{at}.content")
    if turn.parts and isinstance(last := turn.parts[-1], TextPart):
        turn.parts[-1] = TextPart(last.text.rstrip())
    if turn.parts == [TextPart("")]:
        turn.parts.clear()


def _add(found: list[Message], role: str, turn: Turn) -> None:
    """Append the turn: the results of tools first. The parts of a user who speaks twice become one turn."""
    found += turn.results
    if role == "assistant":
        if turn.parts or turn.calls:
            found.append(Message(role, tuple(turn.parts), reasoning=turn.reasoning, tool_calls=tuple(turn.calls)))
    elif role == "user" and turn.parts and found and found[-1].role == "user":
        found[-1] = Message("user", _joined(found[-1].content, turn.parts))
    elif turn.parts:
        found.append(Message(role, tuple(turn.parts)))


def _joined(first: tuple[Part, ...], second: list[Part]) -> tuple[Part, ...]:
    turn = Turn(list(first))
    if isinstance(first[-1], TextPart) and isinstance(second[0], TextPart):
        turn.add(TextPart("\n\n"))
    turn.add(*second)
    return tuple(turn.parts)
