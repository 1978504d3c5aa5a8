"""Content blocks of Anthropic messages. Every error names the block at fault."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from mmserve.httpserver.api.openai.chat.messages import MAX_URL_CHARS
from mmserve.httpserver.call import MediaRef
from mmserve.httpserver.conversation import MediaPart, Message, TextPart, ToolCall
from mmserve.httpserver.media.split_media import SplitUrl, UrlsLeft
from mmserve.runtime.errors import ContextLengthExceeded, InvalidRequest, quoted

Part = TextPart | MediaPart

_HEAD = "data:image;base64,"
"""What stands before an image's base64 text. Only its bytes tell the image's format."""
_IMAGE_TYPE = re.compile(r"image/[a-z0-9.+-]{1,40}")
_ERROR_MARK = "Error: "
"""Before the result of a tool that has failed. Chat templates have no other place for this fact."""
_BOOKKEEPING = {"type", "cache_control"}
_REPLAYED = {"server_tool_use", "mcp_tool_use", "tool_reference"}
"""Blocks of earlier answers, made by tools of another server. So are all types that end with ``_tool_result``."""
_SECRETS = {"type", "cache_control", "encrypted_content", "encrypted_index", "encrypted_stdout", "caller"}
"""Fields of replayed blocks that say nothing to a model here."""


@dataclass
class Turn:
    """What the blocks of one message say. ``results``: messages of the role ``tool``."""

    parts: list[Part] = field(default_factory=list)
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    results: list[Message] = field(default_factory=list)

    def add(self, *parts: Part) -> None:
        """Append parts. Neighbouring texts become one, without a separator."""
        for part in parts:
            last = self.parts[-1] if self.parts else None
            if isinstance(part, TextPart) and isinstance(last, TextPart):
                self.parts[-1] = TextPart(last.text + part.text)
            else:
                self.parts.append(part)


class BlockReader:
    """Reads the blocks of one request; collects its images in ``media``.

    ``max_images``: None if the model takes no images. ``split_urls``: mark -> the image that ``split_media`` cut out of
    the body. ``max_blocks``: limit on all blocks; a prompt has at least one token for each, so the context's length
    bounds the work on a hostile body.
    """

    def __init__(self, max_images: int | None, split_urls: Mapping[str, SplitUrl], max_blocks: int) -> None:
        self._max_images = max_images
        self._split_urls = dict(split_urls)
        self._max_blocks = self._blocks_left = max_blocks
        self._call_ids: set[str] = set()
        self.media: list[MediaRef] = []
        self._readers: dict[str, Mapping[str, Callable[[dict[str, Any], str, Turn], None]]] = {
            "system": {"text": self._text},
            "user": {
                "text": self._text,
                "image": self._image,
                "document": self._document,
                "search_result": self._search_result,
                "tool_result": self._tool_result,
            },
            "assistant": {
                "text": self._text,
                "thinking": self._thinking,
                "redacted_thinking": _skip,
                "tool_use": self._tool_use,
                "compaction": self._compaction,
            },
            "tool": {
                "text": self._text,
                "image": self._image,
                "document": self._document,
                "search_result": self._search_result,
            },
        }

    def turn(self, role: str, content: Any, at: str) -> Turn:
        """The content of one message, which is a string or a list of blocks. ``role``: tool inside a tool's result."""
        turn = Turn()
        if isinstance(content, str):
            self._count(1)
            turn.add(TextPart(content))
            return turn
        if not isinstance(content, list):
            raise InvalidRequest("must be a string or a list of blocks", param=at)
        self._count(len(content))
        for index, block in enumerate(content):
            self._block(role, block, f"{at}[{index}]", turn)
        return turn

    def finish(self) -> None:
        """Raises UrlsLeft if images that were cut out of the body have not been met."""
        if self._split_urls:
            raise UrlsLeft(self._split_urls)

    def _count(self, number: int) -> None:
        self._blocks_left -= number
        if self._blocks_left < 0:
            raise ContextLengthExceeded(
                f"more blocks than the context of {self._max_blocks} tokens has room for", param="messages"
            )

    def _block(self, role: str, block: Any, at: str, turn: Turn) -> None:
        if not isinstance(block, dict):
            raise InvalidRequest("a content block must be an object", param=at)
        type_ = block.get("type")
        if not isinstance(type_, str):
            raise InvalidRequest("must be a string", param=f"{at}.type")
        if reader := self._readers[role].get(type_):
            reader(block, at, turn)
        elif role != "system" and (type_ in _REPLAYED or type_.endswith("_tool_result")):
            kept = {key: value for key, value in block.items() if key not in _SECRETS}
            turn.add(TextPart(f"\n[{type_} {msgspec.json.encode(kept).decode()}]\n"))
        else:
            raise InvalidRequest(f"{quoted(type_)} is not a block of this role, or not supported", param=f"{at}.type")

    def _text(self, block: dict[str, Any], at: str, turn: Turn) -> None:
        check_fields(block, at, {"text", "citations", "parsed_output"})
        turn.add(TextPart(string(block, "text", at)))

    def _thinking(self, block: dict[str, Any], at: str, turn: Turn) -> None:
        check_fields(block, at, {"thinking", "signature"})
        turn.reasoning += string(block, "thinking", at)
        optional_string(block, "signature", at)

    def _compaction(self, block: dict[str, Any], at: str, turn: Turn) -> None:
        check_fields(block, at, {"content", "encrypted_content"})
        turn.add(TextPart(optional_string(block, "content", at)))

    def _tool_use(self, block: dict[str, Any], at: str, turn: Turn) -> None:
        check_fields(block, at, {"id", "name", "input", "caller", "toolset_name"})
        id_, input_ = string(block, "id", at), block.get("input")
        if not isinstance(input_, dict):
            raise InvalidRequest("must be an object", param=f"{at}.input")
        self._call_ids.add(id_)
        turn.calls.append(ToolCall(id_, string(block, "name", at), msgspec.json.encode(input_).decode()))

    def _tool_result(self, block: dict[str, Any], at: str, turn: Turn) -> None:
        check_fields(block, at, {"tool_use_id", "content", "is_error", "caller", "toolset_name"})
        id_, is_error = string(block, "tool_use_id", at), block.get("is_error")
        if id_ not in self._call_ids:
            raise InvalidRequest(f"no tool_use before it has the id {quoted(id_)}", param=f"{at}.tool_use_id")
        if not isinstance(is_error, bool | None):
            raise InvalidRequest("must be true or false", param=f"{at}.is_error")
        result = Turn()
        if is_error:
            result.add(TextPart(_ERROR_MARK))
        if block.get("content") is not None:
            result.add(*self.turn("tool", block["content"], f"{at}.content").parts)
        turn.results.append(Message("tool", tuple(result.parts), tool_call_id=id_))

    def _search_result(self, block: dict[str, Any], at: str, turn: Turn) -> None:
        check_fields(block, at, {"title", "source", "content", "citations"})
        _refuse_citations(block, at)
        turn.add(TextPart(f"{string(block, 'title', at)}\n{string(block, 'source', at)}\n"))
        turn.add(*self.turn("system", block.get("content"), f"{at}.content").parts, TextPart("\n"))

    def _document(self, block: dict[str, Any], at: str, turn: Turn) -> None:
        check_fields(block, at, {"source", "title", "context", "citations"})
        _refuse_citations(block, at)
        for key in ("title", "context"):
            if text := optional_string(block, key, at):
                turn.add(TextPart(f"{text}\n"))
        where = f"{at}.source"
        source, type_ = source_of(block, where)
        if type_ == "text":
            turn.add(TextPart(string(source, "data", where)))
        elif type_ == "content":
            turn.add(*self.turn("tool", source.get("content"), f"{where}.content").parts)
        else:
            raise InvalidRequest(f"documents of the type {quoted(type_)} are not supported", param=f"{where}.type")
        turn.add(TextPart("\n"))

    def _image(self, block: dict[str, Any], at: str, turn: Turn) -> None:
        if self._max_images is None:
            raise InvalidRequest("this model takes no images", param=f"{at}.type")
        if len(self.media) >= self._max_images:
            raise InvalidRequest(f"more than {self._max_images} images in one prompt", param=f"{at}.type")
        check_fields(block, at, {"source"})
        where = f"{at}.source"
        source, type_ = source_of(block, where)
        if type_ not in ("base64", "url"):
            raise InvalidRequest(f"must be base64 or url, not {quoted(type_)}", param=f"{where}.type")
        self.media.append(self._base64(source, where) if type_ == "base64" else self._url(source, where))
        turn.add(MediaPart(len(self.media) - 1))

    def _base64(self, source: dict[str, Any], at: str) -> MediaRef:
        check_fields(source, at, {"media_type", "data"})
        if not _IMAGE_TYPE.fullmatch(string(source, "media_type", at)):
            raise InvalidRequest("must be the type of an image, as image/png", param=f"{at}.media_type")
        where, text = f"{at}.data", string(source, "data", at)
        if text in self._split_urls and not self._split_urls[text].head:
            return MediaRef(_HEAD, where, self._split_urls.pop(text).data)
        if not text or text in self._split_urls or text.startswith("data:"):
            raise InvalidRequest("must be base64 text, not empty and not a data: URL", param=where)
        return MediaRef(_HEAD + text, where)

    def _url(self, source: dict[str, Any], at: str) -> MediaRef:
        check_fields(source, at, {"url"})
        where, url = f"{at}.url", string(source, "url", at)
        if not url or (len(url) > MAX_URL_CHARS and url[:5].lower() != "data:"):
            raise InvalidRequest(f"must have 1 to {MAX_URL_CHARS} characters, unless it is a data: URL", param=where)
        head, data = self._split_urls.pop(url, (url, None))
        return MediaRef(head, where, data)


def _skip(block: dict[str, Any], at: str, turn: Turn) -> None:
    """Thoughts that only their author can decrypt."""
    check_fields(block, at, {"data"})


def _refuse_citations(block: dict[str, Any], at: str) -> None:
    citations = block.get("citations")
    if citations is not None and citations != {"enabled": False}:
        raise InvalidRequest("citations are not supported", param=f"{at}.citations")


def check_fields(value: dict[str, Any], at: str, known: Collection[str]) -> None:
    """Raises InvalidRequest for a field that is neither known nor bookkeeping nor null."""
    for key, item in value.items():
        if key not in known and key not in _BOOKKEEPING and item is not None:
            raise InvalidRequest("no such field", param=f"{at}.{quoted(key)[1:-1]}")
    for key in ("cache_control", "caller"):
        if not isinstance(value.get(key), dict | None):
            raise InvalidRequest("must be an object", param=f"{at}.{key}")


def string(value: dict[str, Any], key: str, at: str) -> str:
    """``value[key]``. Raises InvalidRequest unless it is a string."""
    found = value.get(key)
    if not isinstance(found, str):
        raise InvalidRequest("must be a string" if key in value else "field required", param=f"{at}.{key}")
    return found


def optional_string(value: dict[str, Any], key: str, at: str) -> str:
    """``value[key]``, or an empty string if there is none. Raises InvalidRequest for another type."""
    return "" if value.get(key) is None else string(value, key, at)


def source_of(block: dict[str, Any], at: str) -> tuple[dict[str, Any], str]:
    """The source of an image or a document, and its type. Raises InvalidRequest."""
    source = block.get("source")
    if not isinstance(source, dict):
        raise InvalidRequest("must be an object", param=at)
    return source, string(source, "type", at)
