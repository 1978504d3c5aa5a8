"""Reads an OpenAI conversation into Messages and MediaRefs. Every error names the message and part at fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmserve.httpserver.call import MediaRef
from mmserve.httpserver.conversation import MediaPart, Message, TextPart, ToolCall
from mmserve.httpserver.media.split_media import SplitUrl, UrlsLeft
from mmserve.runtime.errors import ContextLengthExceeded, InvalidRequest, quoted, shortened

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_FIELDS = frozenset(
    "role content name refusal annotations tool_calls tool_call_id function_call reasoning reasoning_content "
    "parsed provider_specific_fields thinking_blocks".split()
)
"""Of a message. Some come back with the answers that clients repeat, and say nothing that the others do not:
``annotations``, ``refusal``, ``parsed`` (openai SDK), ``provider_specific_fields``, ``thinking_blocks`` (LiteLLM)."""
MAX_URL_CHARS = 8192
MAX_NAME_CHARS = 256
MAX_UUID_CHARS = 256
_TEXT_FIELDS = {"text": "text", "refusal": "refusal"}
"""Text part type -> its field with the text."""
_IMAGE_FIELDS = frozenset({"url", "detail"})
_DETAILS = (None, "auto", "low", "high", "original")
"""A hint that changes nothing here: the checkpoint has one size for images."""


class ConversationReader:
    """Reads one conversation.

    ``max_images``: None if the model takes no images. ``split_urls``: marker -> the image URL that ``split_media`` cut
    out of the body and replaced by it. ``max_parts``: limit on the messages and on their parts; a prompt has at least
    one token for each, so the context's length bounds the work on a hostile body.
    """

    def __init__(self, max_images: int | None, split_urls: Mapping[str, SplitUrl], max_parts: int) -> None:
        self._max_parts = self._parts_left = max_parts
        self._max_images = max_images
        self._split_urls = dict(split_urls)
        self.media: list[MediaRef] = []

    def read(self, messages: Any) -> tuple[Message, ...]:
        """All messages in order; collects the images in ``media``. Raises InvalidRequest."""
        if not isinstance(messages, list) or not messages:
            raise InvalidRequest("messages must be a list with at least one message", param="messages")
        if len(messages) > self._max_parts:
            raise self._too_many()
        found = tuple(self._message(message, f"messages[{index}]") for index, message in enumerate(messages))
        if self._split_urls:
            raise UrlsLeft(self._split_urls)
        return found

    def _message(self, message: Any, at: str) -> Message:
        if not isinstance(message, dict):
            raise InvalidRequest("a message must be an object", param=at)
        role = message.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise InvalidRequest(f"role must be one of {', '.join(_ROLES)}", param=f"{at}.role")
        for field in message:
            if field not in _FIELDS and message[field] is not None:
                raise InvalidRequest("a message has no such field", param=f"{at}.{shortened(field)}")
        calls = self._calls(message, at)
        if calls and role != "assistant":
            raise InvalidRequest("only the assistant calls tools", param=f"{at}.tool_calls")
        field = "refusal" if message.get("content") is None and message.get("refusal") else "content"
        no_content = bool(calls) and not message.get(field)
        return Message(
            _ROLES[role],
            () if no_content else self._content(message.get(field), f"{at}.{field}"),
            name=text_field(message, "name", at, MAX_NAME_CHARS),
            reasoning=text_field(message, "reasoning_content", at) or text_field(message, "reasoning", at),
            tool_calls=calls,
            tool_call_id=self._answered_call(message, role, at),
        )

    def _answered_call(self, message: dict[str, Any], role: str, at: str) -> str:
        call_id = text_field(message, "tool_call_id", at, MAX_NAME_CHARS)
        if role == "tool" and not call_id:
            raise InvalidRequest("a tool's message must say which call it answers", param=f"{at}.tool_call_id")
        return call_id

    def _calls(self, message: dict[str, Any], at: str) -> tuple[ToolCall, ...]:
        calls = message.get("tool_calls") or []
        where = f"{at}.tool_calls"
        if not isinstance(calls, list):
            raise InvalidRequest("tool_calls must be a list", param=where)
        if message.get("function_call"):  # the older form: one call without an id
            where, calls = f"{at}.function_call", [{"function": message["function_call"]}]
        self._count(len(calls))
        return tuple(self._call(call, f"{where}[{index}]") for index, call in enumerate(calls))

    def _call(self, call: Any, at: str) -> ToolCall:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or call.get("type") not in (None, "function"):
            raise InvalidRequest("a call must have the type function, and a function", param=at)
        name = text_field(function, "name", f"{at}.function", MAX_NAME_CHARS)
        if not name:
            raise InvalidRequest("a call must name its function", param=f"{at}.function.name")
        arguments = text_field(function, "arguments", f"{at}.function")
        return ToolCall(text_field(call, "id", at, MAX_NAME_CHARS), name, arguments)

    def _content(self, content: Any, at: str) -> tuple[TextPart | MediaPart, ...]:
        self._count(len(content) if isinstance(content, list) else 1)
        if isinstance(content, str):
            return (TextPart(content),)
        if not isinstance(content, list) or not content:
            raise InvalidRequest("content must be a string or a list of parts", param=at)
        return tuple(self._part(part, f"{at}[{index}]") for index, part in enumerate(content))

    def _count(self, num_parts: int) -> None:
        self._parts_left -= num_parts
        if self._parts_left < 0:
            raise self._too_many()

    def _too_many(self) -> ContextLengthExceeded:
        message = f"more messages, or parts of them, than the context of {self._max_parts} tokens has room for"
        return ContextLengthExceeded(message, param="messages")

    def _part(self, part: Any, at: str) -> TextPart | MediaPart:
        if not isinstance(part, dict):
            raise InvalidRequest("a content part must be an object", param=at)
        type_ = part.get("type")
        if type_ == "image_url":
            _check_part(part, "image_url", at)
            return self._image(part.get("image_url"), at, _uuid(part, at))
        if not isinstance(type_, str) or type_ not in _TEXT_FIELDS:
            raise InvalidRequest(f"unsupported content part type {quoted(type_)}", param=f"{at}.type")
        _check_part(part, _TEXT_FIELDS[type_], at)
        text = part.get(_TEXT_FIELDS[type_])
        if not isinstance(text, str):
            raise InvalidRequest("text must be a string", param=f"{at}.{_TEXT_FIELDS[type_]}")
        return TextPart(text)

    def _image(self, image_url: Any, at: str, uuid: str = "") -> MediaPart:
        if self._max_images is None:
            raise InvalidRequest("this model takes no images", param=f"{at}.type")
        if len(self.media) >= self._max_images:
            raise InvalidRequest(f"more than {self._max_images} images in one prompt", param=f"{at}.type")
        where = f"{at}.image_url"
        url = image_url
        if isinstance(image_url, dict):
            _check_image_fields(image_url, where)
            where, url = f"{where}.url", image_url.get("url")
        if uuid and (url is None or url == ""):
            self.media.append(MediaRef("", f"{at}.uuid", uuid=uuid))
            return MediaPart(len(self.media) - 1)
        if isinstance(url, str) and len(url) > MAX_URL_CHARS and not url[:5].lower() == "data:":
            raise InvalidRequest(f"a URL may have {MAX_URL_CHARS} characters, unless it is a data: URL", param=where)
        if not isinstance(url, str) or not url:
            raise InvalidRequest("an image needs a url (data:, http(s): or file:)", param=where)
        head, data = self._split_urls.pop(url, (url, None))
        self.media.append(MediaRef(head, where, data, uuid=uuid))
        return MediaPart(len(self.media) - 1)


def _check_part(part: dict[str, Any], content: str, at: str) -> None:
    """Refuse fields that would be ignored. ``cache_control`` is a hint for hosted services, and changes no answer."""
    for field in part:
        known = ("type", content, "cache_control", "uuid" if content == "image_url" else "")
        if field not in known and part[field] is not None:
            raise InvalidRequest("a content part of this type has no such field", param=f"{at}.{shortened(field)}")


def _uuid(part: dict[str, Any], at: str) -> str:
    """The client's name for the image; empty if it gives none."""
    uuid = part.get("uuid")
    if uuid is None:
        return ""
    if not isinstance(uuid, str) or not 0 < len(uuid) <= MAX_UUID_CHARS:
        raise InvalidRequest(f"uuid must be a text of 1 to {MAX_UUID_CHARS} characters", param=f"{at}.uuid")
    return uuid


def _check_image_fields(image_url: dict[str, Any], at: str) -> None:
    for field in image_url:
        if field not in _IMAGE_FIELDS and image_url[field] is not None:
            raise InvalidRequest("image_url has no such field", param=f"{at}.{shortened(field)}")
    if image_url.get("detail") not in _DETAILS:
        raise InvalidRequest(f"detail cannot be {quoted(image_url['detail'])}", param=f"{at}.detail")


def text_field(fields: Mapping[str, Any], name: str, at: str, max_chars: int | None = None) -> str:
    """A string of an object, empty if it is null or missing. Raises InvalidRequest naming ``at``."""
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or (max_chars is not None and len(value) > max_chars):
        limit = "" if max_chars is None else f" of at most {max_chars} characters"
        raise InvalidRequest(f"{name} must be a string{limit}", param=f"{at}.{name}")
    return value
