"""Reads the input items of a Responses request into Messages and MediaRefs. Every error names the item at fault.

Items may lack ``type`` (a message), ``id`` and ``status``, and may have further keys: clients send items back as they
got them, or with less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mmserve.httpserver.api.openai.chat.messages import MAX_NAME_CHARS, ConversationReader, text_field
from mmserve.httpserver.api.openai.fields import MAX_ID_CHARS
from mmserve.httpserver.api.openai.responses.sealed import unsealed
from mmserve.httpserver.conversation import MediaPart, Message, TextPart, ToolCall
from mmserve.httpserver.media.split_media import SplitUrl, UrlsLeft
from mmserve.runtime.errors import ContextLengthExceeded, InvalidRequest, quoted

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TEXT_FIELDS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
"""Text part type -> its field with the text."""
REFERENCE = "item_reference"
_THOUGHT_TYPES = ("summary_text", "reasoning_text", "text")


@dataclass
class _Turn:
    """A turn of the assistant, which may be several items: thoughts, then text, then calls."""

    reasoning: str = ""
    content: tuple[TextPart | MediaPart, ...] = ()
    calls: list[ToolCall] = field(default_factory=list)

    def message(self) -> Message:
        return Message("assistant", self.content, reasoning=self.reasoning, tool_calls=tuple(self.calls))


def type_of(item: Any) -> Any:
    """An item without a type is a message, or a reference if it has nothing but an id."""
    if not isinstance(item, dict):
        return None
    return item.get("type") or (REFERENCE if "id" in item and "role" not in item else "message")


def as_items(given: Any) -> Any:
    """``input``, with a text as an item."""
    return [{"type": "message", "role": "user", "content": given}] if isinstance(given, str) else given


class ItemsReader(ConversationReader):
    """Reads one input. The further parameters are those of ConversationReader.

    ``previous``: number of items at the beginning that are those of earlier responses; -1: not all items are known yet,
    so that an output may be of a call that is not among them.
    """

    def __init__(
        self, max_images: int | None, split_urls: Mapping[str, SplitUrl], max_parts: int, previous: int = 0
    ) -> None:
        super().__init__(max_images, split_urls, max_parts)
        self._previous = previous
        self._messages: list[Message] = []
        self._turn: _Turn | None = None
        self._call_ids: set[str] = set()
        self._readers: dict[str, Callable[[dict[str, Any], str], None]] = {
            "message": self._read_message,
            "function_call": self._read_call,
            "function_call_output": self._read_output,
            "reasoning": self._read_reasoning,
            "compaction": self._read_compaction,
            REFERENCE: self._read_reference,
        }

    def read(self, items: Any) -> tuple[Message, ...]:
        """All messages of ``input`` in order; collects the images in ``media``. Raises InvalidRequest."""
        items = as_items(items)
        if not isinstance(items, list) or not items:
            raise InvalidRequest("input must be a text, or a list with at least one item", param="input")
        self._count(len(items))
        for index, item in enumerate(items):
            own = index - max(0, self._previous)
            self._read_item(item, f"input[{own}]" if own >= 0 else "previous_response_id")
        self._end_turn()
        if self._split_urls:
            raise UrlsLeft(self._split_urls)
        return tuple(self._messages)

    def _too_many(self) -> ContextLengthExceeded:
        error = super()._too_many()
        return ContextLengthExceeded(error.message, param="input")

    def _read_item(self, item: Any, at: str) -> None:
        if not isinstance(item, dict):
            raise InvalidRequest("an item must be an object", param=at)
        type_ = type_of(item)
        reader = self._readers.get(type_) if isinstance(type_, str) else None
        if reader is None:
            raise InvalidRequest(f"an item of the type {quoted(type_)} is not supported", param=f"{at}.type")
        reader(item, at)

    def _read_message(self, item: dict[str, Any], at: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise InvalidRequest(f"role must be one of {', '.join(_ROLES)}", param=f"{at}.role")
        content = self._content(item.get("content"), f"{at}.content")
        if role != "assistant":
            self._end_turn()
            self._messages.append(Message(_ROLES[role], content))
            return
        if self._turn is not None and (self._turn.content or self._turn.calls):
            self._end_turn()
        self._open_turn().content = content

    def _read_reasoning(self, item: dict[str, Any], at: str) -> None:
        if self._turn is not None and (self._turn.content or self._turn.calls):
            self._end_turn()
        # A summary stands for thoughts whose text was not sent.
        kept = unsealed(item.get("encrypted_content"))
        text = self._thoughts(item, "content", at) or kept or self._thoughts(item, "summary", at)
        turn = self._open_turn()
        turn.reasoning = "\n".join(filter(None, (turn.reasoning, text)))

    def _thoughts(self, item: dict[str, Any], field: str, at: str) -> str:
        parts = item.get(field) or []
        if not isinstance(parts, list):
            raise InvalidRequest(f"{field} must be a list", param=f"{at}.{field}")
        self._count(len(parts))
        texts = []
        for index, part in enumerate(parts):
            where = f"{at}.{field}[{index}]"
            if not isinstance(part, dict) or part.get("type") not in _THOUGHT_TYPES:
                raise InvalidRequest(f"type must be one of {', '.join(_THOUGHT_TYPES)}", param=f"{where}.type")
            texts.append(text_field(part, "text", where))
        return "\n".join(texts)

    def _read_call(self, item: dict[str, Any], at: str) -> None:
        name = text_field(item, "name", at, MAX_NAME_CHARS)
        if not name:
            raise InvalidRequest("a call must name its function", param=f"{at}.name")
        id = self._call_id(item, at)
        self._call_ids.add(id)
        self._count(1)
        self._open_turn().calls.append(ToolCall(id, name, text_field(item, "arguments", at)))

    def _read_output(self, item: dict[str, Any], at: str) -> None:
        self._end_turn()
        id = self._call_id(item, at)
        if id not in self._call_ids and self._previous >= 0:
            raise InvalidRequest(f"no call before it has the id {quoted(id)}", param=f"{at}.call_id")
        content = self._content(item.get("output"), f"{at}.output")
        self._messages.append(Message("tool", content, tool_call_id=id))

    def _call_id(self, item: dict[str, Any], at: str) -> str:
        id = text_field(item, "call_id", at, MAX_NAME_CHARS)
        if not id:
            raise InvalidRequest("call_id says which call it is", param=f"{at}.call_id")
        return id

    def _read_compaction(self, item: dict[str, Any], at: str) -> None:
        """What an earlier conversation was compacted to: a turn of the model that wrote it."""
        summary = unsealed(item.get("encrypted_content"))
        if summary is None:
            raise InvalidRequest("this server did not write that", param=f"{at}.encrypted_content")
        self._end_turn()
        self._open_turn().content = (TextPart(f"Summary of the conversation so far:\n{summary}"),)
        self._end_turn()

    def _read_reference(self, item: dict[str, Any], at: str) -> None:
        """The item itself is found in the store, and then read in place of this."""
        if not text_field(item, "id", at, MAX_ID_CHARS):
            raise InvalidRequest("id says which item it is", param=f"{at}.id")

    def _part(self, part: Any, at: str) -> TextPart | MediaPart:
        if not isinstance(part, dict):
            raise InvalidRequest("a content part must be an object", param=at)
        type_ = part.get("type")
        if type_ == "input_image":
            if part.get("file_id") is not None:
                raise InvalidRequest("there are no uploaded files: send the image as image_url", param=f"{at}.file_id")
            if not isinstance(part.get("image_url"), str):
                raise InvalidRequest("image_url must be a URL", param=f"{at}.image_url")
            return self._image(part["image_url"], at)
        if not isinstance(type_, str) or type_ not in _TEXT_FIELDS:
            raise InvalidRequest(f"unsupported content part type {quoted(type_)}", param=f"{at}.type")
        text = part.get(_TEXT_FIELDS[type_])
        if not isinstance(text, str):
            raise InvalidRequest("text must be a string", param=f"{at}.{_TEXT_FIELDS[type_]}")
        return TextPart(text)

    def _open_turn(self) -> _Turn:
        if self._turn is None:
            self._turn = _Turn()
        return self._turn

    def _end_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None and (turn.content or turn.calls or turn.reasoning):  # thoughts may be encrypted
            self._messages.append(turn.message())
