"""The state of one conversation: messages, system prompt, settings. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
"""A message as chat completions have it."""
_OWN_FIELDS = frozenset({"messages", "model", "stream", "stream_options", "response_format", "n"})
"""Fields of a body that a setting may not replace."""


class ChatError(Exception):
    """What the user wrote cannot be done. One line."""


@dataclass
class Conversation:
    """``settings``: further fields of each request, as temperature. ``schema``: JSON schema of the answers."""

    system: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    schema: dict[str, Any] | None = None
    messages: list[Message] = field(default_factory=list)

    def ask(self, text: str, picture_urls: Sequence[str] = ()) -> None:
        """Add the user's next message."""
        pictures = [{"type": "image_url", "image_url": {"url": url}} for url in picture_urls]
        content = [*pictures, {"type": "text", "text": text}] if pictures else text
        self.messages.append({"role": "user", "content": content})

    def answered(self, text: str) -> None:
        """Add the model's answer, or as much as there is of it."""
        self.messages.append({"role": "assistant", "content": text})

    def undo(self) -> Message:
        """Remove the last question and its answer. Returns the question. Raises ChatError if there is none."""
        for index in reversed(range(len(self.messages))):
            if self.messages[index]["role"] == "user":
                question = self.messages[index]
                del self.messages[index:]
                return question
        raise ChatError("there is no question yet")

    def retry(self) -> None:
        """Remove the answer to the last question. Raises ChatError if there is no question."""
        self.messages.append(self.undo())

    def set(self, name: str, value: str) -> None:
        """Change a setting; an empty value removes it. Raises ChatError for a field that is not a setting."""
        if name in _OWN_FIELDS:
            raise ChatError(f"{name} is not a setting")
        if value:
            self.settings[name] = _value(value)
        elif self.settings.pop(name, None) is None:
            raise ChatError(f"{name} is not set")

    def body(self, model: str) -> dict[str, Any]:
        """The body of a chat completion that answers the last question."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        body = {"model": model, "messages": [*system, *self.messages], **self.settings}
        if self.schema is not None:
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": self.schema, "strict": True},
            }
        return body

    def to_json(self) -> str:
        """As a file holds it."""
        kept = {"system": self.system, "settings": self.settings, "schema": self.schema, "messages": self.messages}
        return json.dumps(kept, ensure_ascii=False, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Conversation:
        """Read what ``to_json`` wrote, or a list of messages. Raises ChatError."""
        try:
            found = json.loads(text)
        except ValueError as error:
            raise ChatError(f"no JSON: {error}") from None
        if isinstance(found, list):
            found = {"messages": found}
        if not isinstance(found, dict) or found.keys() - {"system", "settings", "schema", "messages"}:
            raise ChatError("no conversation: it has the fields system, settings, schema and messages")
        conversation = cls(**found)
        if not (
            isinstance(conversation.system, str)
            and isinstance(conversation.settings, dict)
            and isinstance(conversation.schema, dict | None)
            and isinstance(conversation.messages, list)
            and all(isinstance(message, dict) and "role" in message for message in conversation.messages)
        ):
            raise ChatError("no conversation: a field has a wrong type")
        return conversation


def _value(text: str) -> Any:
    """A number, truth value, list or object if it is JSON, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text
