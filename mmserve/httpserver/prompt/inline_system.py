"""System messages in the middle of a conversation, for templates that only know one at its head. Pure.

They stay where they are: at the head they would change the first tokens of the prompt, and the prefix cache would find
nothing of the turns before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mmserve.httpserver.conversation import MediaPart, Message, TextPart

_SEPARATOR = "\n\n"


def fold_late_system(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The text of each system message, except those at the head, becomes part of a neighbour: of the user's message or
    the tool's result before it, or of the one after it. Without such a neighbour it becomes a user's message.
    """
    found: list[Message] = []
    waiting: list[Message] = []
    """System messages that belong to the message that follows."""
    is_head = True
    for message in messages:
        is_head = is_head and message.role == "system"
        if message.role != "system" or is_head:
            if waiting and message.role in ("user", "tool"):
                message = _joined(message.role, [*waiting, message], message)
            elif waiting:
                found.append(_joined("user", waiting))
            waiting = []
            found.append(message)
        elif not waiting and found and found[-1].role in ("user", "tool"):
            found[-1] = _joined(found[-1].role, [found[-1], message], found[-1])
        else:
            waiting.append(message)
    return (*found, *([_joined("user", waiting)] if waiting else []))


def _joined(role: str, messages: Sequence[Message], like: Message | None = None) -> Message:
    """One message with the contents of all. ``like``: whose other fields it has."""
    parts: list[TextPart | MediaPart] = []
    for message in messages:
        first = message.content[0] if message.content else None
        if parts and isinstance(parts[-1], TextPart) and isinstance(first, TextPart):
            parts[-1] = TextPart(parts[-1].text + _SEPARATOR + first.text)
            parts += message.content[1:]
        else:
            parts += message.content
    return replace(like or Message(role, ()), content=tuple(parts))
